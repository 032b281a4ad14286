"""A run uses what this home has signed and nothing else, and loses nothing that was signed."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_runs import FACTS, FILES, KEY, VARIABLE, blob, compile_files, contents, run
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import _pydantic_core

from trueup.cache import CacheStore, key_of, opened
from trueup.cache.store import PLACEHOLDER


def manifest_file(home: Path) -> Path:
    return home / "compile-cache" / KEY / "manifest.json"


def left_behind(home: Path) -> list[str]:
    """What is in the store beside kept caches and the lock."""
    store = home / "compile-cache"
    works = [str(path.relative_to(store)) for path in store.glob("work/*")]
    parts = [str(path.relative_to(store)) for path in store.rglob(".*")]
    return works + parts


def test_the_next_run_finds_what_was_compiled(home: Path) -> None:
    assert run(home, FILES).found == {}
    second = run(home, {"new": b"more"})
    assert (second.found, second.said) == (FILES, [])
    assert run(home).found == {**FILES, "new": b"more"}
    assert left_behind(home) == []


names = st.from_regex(r"([a-z]{1,3}/){0,2}[a-z]{1,3}\.(o|json)", fullmatch=True)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.dictionaries(names, st.binary(max_size=50), max_size=5), max_size=4))
def test_runs_only_ever_add(tmp_path_factory: pytest.TempPathFactory, runs: list[dict[str, bytes]]) -> None:
    home, expected = tmp_path_factory.mktemp("home"), {}
    for adds in runs:
        one = run(home, adds)
        assert (one.found, one.said) == (expected, [])
        kept = {name for name in adds if name.endswith(".o") or PLACEHOLDER not in adds[name]}
        expected |= {name: adds[name] for name in kept}


def test_what_was_compiled_is_kept_though_the_run_fails(home: Path) -> None:
    def fail() -> None:
        with opened(home, FACTS, variables=[VARIABLE], say=print) as cache:
            compile_files(cache, FILES)
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    assert run(home).found == FILES


def test_what_was_sealed_before_a_kill_stays_and_what_was_not_is_gone(home: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from cache_runs import *\n"
        "with opened(Path(sys.argv[1]), FACTS, variables=[VARIABLE], say=print) as cache:\n"
        "    compile_files(cache, FILES)\n"
        "    assert cache.seal() == 3 and cache.seal() == 0\n"
        "    compile_files(cache, {'late.o': b'half'})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(home)], cwd=Path(__file__).parent, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert left_behind(home) != []
    after = run(home)
    assert after.found == FILES
    assert "killed run" in after.words
    assert left_behind(home) == []


def test_a_run_killed_while_it_sealed_leaves_nothing_that_is_used(home: Path) -> None:
    run(home, FILES)
    (blob(home, "ab/kernel.o").parent / ("0" * 64)).write_bytes(b"unsigned")
    assert "1 unsigned file of a killed run removed" in run(home).words
    manifest_file(home).unlink()
    after = run(home, FILES)
    assert after.found == {}
    assert "no manifest" in after.words
    assert run(home).found == FILES


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_file_is_dropped_and_said_and_the_rest_stays(
    home: Path, harm: Callable[[Path], object]
) -> None:
    run(home, FILES)
    harm(blob(home, "ab/kernel.o"))
    after = run(home)
    assert after.found == {name: FILES[name] for name in FILES if name != "ab/kernel.o"}
    assert f"damaged: 1 of 3 files ({VARIABLE}/ab/kernel.o is the first)" in after.words
    again = run(home, FILES)
    assert again.said == []
    assert run(home).found == FILES


def test_a_link_to_another_file_is_no_way_in(home: Path, tmp_path: Path) -> None:
    run(home, FILES)
    (tmp_path / "evil").write_bytes(b"\x7fELF evil")
    place = blob(home, "ab/kernel.o")
    place.unlink()
    place.symlink_to(tmp_path / "evil")
    assert "ab/kernel.o" not in run(home).found


def test_links_that_a_compiler_made_are_not_kept(home: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with opened(home, FACTS, variables=[VARIABLE], say=print) as cache:
        Path(cache.environment[VARIABLE], "link").symlink_to(tmp_path / "secret")
        Path(cache.environment[VARIABLE], "folder").symlink_to(tmp_path)
        compile_files(
            cache, {"locks/a.lock": b"", ".1.2.tmp": b"half", "tmp.pid_1/x": b"half", "b": b"whole"}
        )
    assert run(home).found == {"b": b"whole"}


def test_a_library_whose_making_was_cut_off_is_not_kept(home: Path) -> None:
    whole = Path(_pydantic_core.__file__).read_bytes()
    cut = {f"{share}.so": whole[: int(len(whole) * share)] for share in (0, 1e-6, 1e-5, 0.5, 0.9)}
    zeros = {"zeros.so": bytes(64) + whole[64:], "text.so": b"a" * 100}
    run(home, {"whole.so": whole, **cut, **zeros})
    assert set(run(home).found) == {"whole.so"}


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest | {"signature": ""},
        lambda manifest: manifest | {"signature": "0" * 64},
        lambda manifest: manifest | {"created": "2020-01-01T00:00:00Z"},
        lambda manifest: manifest | {"files": dict(list(manifest["files"].items())[1:])},
    ],
)
def test_a_manifest_that_this_home_did_not_sign_is_not_used(
    home: Path, change: Callable[[dict[str, object]], dict[str, object]]
) -> None:
    run(home, FILES)
    manifest_file(home).write_text(json.dumps(change(json.loads(manifest_file(home).read_text()))))
    after = run(home, {"own": b"own"})
    assert after.found == {}
    assert "--trust-cache" in after.words
    assert run(home).found == {"own": b"own"}
    assert (home / "compile-cache" / f"{KEY}.aside" / "manifest.json").is_file()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2}', '{"facts": {"x": NaN}}', "\x00"])
def test_a_broken_manifest_is_said_and_never_fatal(home: Path, text: str) -> None:
    run(home, FILES)
    manifest_file(home).write_text(text)
    after = run(home, trust=True)
    assert after.found == {}
    assert "manifest" in after.words


@pytest.mark.parametrize(
    "name", ["../up", "/etc/x", "a/../../b", "a//b", "./a", "C:x", "a\\..\\b", "", "a\nb"]
)
def test_a_signed_path_that_leads_elsewhere_is_refused_too(home: Path, name: str) -> None:
    run(home, FILES)
    manifest = json.loads(manifest_file(home).read_text())
    manifest["files"][name] = manifest["files"].pop(f"{VARIABLE}/ab/kernel.o")
    manifest_file(home).write_text(json.dumps(manifest))
    assert run(home, trust=True).found == {}


def test_another_homes_cache_is_used_only_on_trust_and_then_is_this_homes(home: Path, tmp_path: Path) -> None:
    run(tmp_path / "theirs", FILES)
    run(home)  # makes the home's own store
    shutil.copytree(tmp_path / "theirs" / "compile-cache" / KEY, home / "compile-cache" / KEY)
    trusted = run(home, trust=True)
    assert trusted.found == FILES
    assert "used on trust" in trusted.words
    after = run(home)
    assert (after.found, after.said) == (FILES, [])


def test_a_moved_home_keeps_what_it_has(home: Path, tmp_path: Path) -> None:
    """A compiler that writes its own folder's path into JSON finds its new folder there."""
    with opened(home, FACTS, variables=[VARIABLE], say=print) as cache:
        inner = json.dumps({"child": f"{cache.environment[VARIABLE]}/ä"})
        compile_files(cache, {**FILES, "group.json": inner.encode()})
    assert PLACEHOLDER in blob(home, "group.json").read_bytes()
    shutil.move(home, tmp_path / "moved é")
    said: list[str] = []
    with opened(tmp_path / "moved é", FACTS, variables=[VARIABLE], say=said.append) as cache:
        found = contents(cache)
        assert json.loads(found.pop("group.json")) == {"child": f"{cache.environment[VARIABLE]}/ä"}
    assert (found, said) == (FILES, [])


def test_a_cache_holds_for_its_facts_alone(home: Path) -> None:
    run(home, FILES)
    for other in ({**FACTS, "torch": "2.14.0"}, {**FACTS, "shapes": [[4, 256]]}):
        assert key_of(other) != KEY
        with opened(home, other, variables=[VARIABLE], say=print) as cache:
            assert contents(cache) == {}
    assert key_of(dict(reversed(FACTS.items()))) == KEY
    (home / "compile-cache" / key_of({"x": 1})).mkdir()
    shutil.copytree(
        home / "compile-cache" / KEY, home / "compile-cache" / key_of({"x": 1}), dirs_exist_ok=True
    )
    said: list[str] = []
    with opened(home, {"x": 1}, variables=[VARIABLE], say=said.append) as cache:
        assert contents(cache) == {}
    assert "of another cache" in said[0]


# --- Many at once ----------------------------------------------------------------------------------------


def one_of_many(home: Path, number: int) -> None:
    for turn in range(5):
        run(home, {f"{number}/{turn}": b"code of %d" % number, "same": b"same"})


def test_runs_that_seal_at_once_lose_nothing(home: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=one_of_many, args=(home, n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert set(run(home).found) == {"same", *(f"{n}/{t}" for n in range(4) for t in range(5))}
    assert left_behind(home) == []


def test_a_run_never_sees_what_another_has_not_sealed(home: Path) -> None:
    with opened(home, FACTS, variables=[VARIABLE], say=print) as first:
        compile_files(first, {"half.o": b"ha"})
        assert run(home, {"whole.o": b"whole"}).found == {}
        compile_files(first, {"half.o": b"half"})
    assert run(home).found == {"half.o": b"half", "whole.o": b"whole"}


def test_processes_of_one_run_share_a_folder_and_the_last_seals(home: Path) -> None:
    run(home, FILES)
    with opened(home, FACTS, variables=[VARIABLE], say=print, shared_as="run") as first:
        with opened(home, FACTS, variables=[VARIABLE], say=print, shared_as="run") as second:
            assert first.environment == second.environment
            compile_files(second, {"of the second": b"2"})
            assert run(home).found == FILES  # and its sweep leaves the folder alone
        assert contents(first)["of the second"] == b"2"
        assert "of the second" not in run(home).found
    assert run(home).found == {**FILES, "of the second": b"2"}
    assert left_behind(home) == []


# --- Places that refuse ----------------------------------------------------------------------------------


def test_a_read_only_home_is_used_and_not_written(
    home: Path, disk: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = disk("size=100m")
    run(place / "home", FILES)
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one = run(place / "home", {"new": b"new"})
    assert one.found == FILES
    assert len(one.said) == 1
    assert "Read-only file system" in one.words
    assert not list(tmp_path.glob("trueup-compile-*"))


def test_a_full_disk_is_said_once_and_the_run_goes_on(disk: Callable[[str], Path]) -> None:
    place = disk("size=1m")
    one = run(place / "home", FILES)
    assert len(one.said) == 1
    assert "MiB are free" in one.words


def test_a_disk_that_fills_before_the_seal_ends_nothing(
    home: Path, disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trueup.cache.run_cache.ROOM_BYTES", 1)
    place = disk("size=3m")
    run(place / "home", FILES)
    one = run(place / "home", {"large": os.urandom(2 << 20)})
    assert "could not be kept" in one.words
    after = run(place / "home")
    assert after.found == FILES
    assert left_behind(place / "home") == []


def test_a_home_that_is_a_file_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    one = run(tmp_path / "home", FILES)
    assert (one.found, len(one.said)) == ({}, 1)


# --- The key ---------------------------------------------------------------------------------------------


def test_the_key_is_the_homes_own_and_for_its_owner_alone(home: Path, tmp_path: Path) -> None:
    run(home, FILES)
    run(tmp_path / "other", FILES)
    key = home / "signing.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32
    assert key.read_bytes() != (tmp_path / "other" / "signing.key").read_bytes()
    assert stat.S_IMODE((home / "compile-cache").stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [None, b"", b"short", b"x" * 33])
def test_without_its_key_nothing_kept_is_used_and_a_new_one_is_made(
    home: Path, content: bytes | None
) -> None:
    run(home, FILES)
    (home / "signing.key").unlink()
    if content is not None:
        (home / "signing.key").write_bytes(content)
    assert run(home, {"own": b"own"}).found == {}
    assert run(home).found == {"own": b"own"}


def test_prune_leaves_running_runs_what_they_have(home: Path) -> None:
    run(home, FILES)
    with opened(home, FACTS, variables=[VARIABLE], say=print) as cache:
        assert CacheStore(home).prune(None, dry_run=True) == [KEY]
        assert CacheStore(home).prune(None, dry_run=False) == [KEY]
        assert contents(cache) == FILES
        compile_files(cache, {"new": b"new"})
    assert run(home).found == {**FILES, "new": b"new"}
