"""A cache carried between homes is checked before anything is kept, and used only on trust."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cache_runs import FILES, KEY, VARIABLE, blob, run

from trueup.cache import CacheStore
from trueup.cache.archive import export_cache, import_cache
from trueup.schema import InputError, StorageError

Entries = dict[str, bytes]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """What another home exported."""
    run(tmp_path / "theirs", FILES)
    export_cache(tmp_path / "theirs", KEY, tmp_path / "cache.zip")
    return tmp_path / "cache.zip"


def files_of(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}


def read(path: Path) -> Entries:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, entries: Entries) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def changed(entries: Entries, **change: Any) -> Entries:
    manifest = json.loads(entries["manifest.json"]) | change
    return {**entries, "manifest.json": json.dumps(manifest).encode()}


def renamed(entries: Entries, name: str) -> Entries:
    files = json.loads(entries["manifest.json"])["files"]
    files[name] = files.pop(f"{VARIABLE}/ab/kernel.o")
    return changed(entries, files=files)


def first_file(entries: Entries) -> str:
    return next(name for name in entries if name.startswith("files/"))


def test_a_trusted_archive_is_used_from_then_on(home: Path, archive: Path) -> None:
    imported = import_cache(home, archive, trust=True)
    assert (imported.key, len(imported.files)) == (KEY, 3)
    one = run(home)
    assert (one.found, one.said) == (FILES, [])


def test_an_archive_of_another_home_is_refused_without_trust(home: Path, archive: Path) -> None:
    with pytest.raises(InputError, match=r"Compiled code is executed.*--trust-cache"):
        import_cache(home, archive, trust=False)
    assert files_of(home) == set()


def test_a_homes_own_archive_needs_no_trust(home: Path, tmp_path: Path) -> None:
    run(home, FILES)
    export_cache(home, KEY, tmp_path / "own.zip")
    CacheStore(home).prune(None, dry_run=False)
    import_cache(home, tmp_path / "own.zip", trust=False)
    assert run(home).found == FILES


def test_the_same_cache_gives_the_same_archive(archive: Path, tmp_path: Path) -> None:
    export_cache(tmp_path / "theirs", KEY, tmp_path / "again.zip")
    assert archive.read_bytes() == (tmp_path / "again.zip").read_bytes()


def test_what_the_home_has_under_the_key_stays(home: Path, archive: Path) -> None:
    own = {"ab/kernel.o": b"our own", "more.o": b"more"}
    run(home, own)
    import_cache(home, archive, trust=True)
    assert run(home).found == {**FILES, **own}


def test_what_the_home_has_not_signed_gives_way(home: Path, archive: Path) -> None:
    run(home, {"x": b"x"})
    (home / "signing.key").unlink()
    import_cache(home, archive, trust=True)
    assert run(home).found == FILES


@pytest.mark.parametrize("had", [{}, {"own.o": b"own"}])
def test_a_disk_that_fills_leaves_the_home_as_it_was(
    home: Path, archive: Path, had: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: CacheStore, manifest: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run(home, had)
    before = files_of(home)
    with monkeypatch.context() as patch:
        patch.setattr(CacheStore, "write", refuse)
        with pytest.raises(StorageError, match=r"No space left.*Nothing was changed"):
            import_cache(home, archive, trust=True)
    assert files_of(home) == before
    one = run(home)
    assert (one.found, one.said) == (had, [])


BAD: dict[str, tuple[Callable[[Entries], Entries], str]] = {
    "flipped": (lambda e: {**e, first_file(e): b"changed"}, "damaged"),
    "cut": (lambda e: {**e, first_file(e): e[first_file(e)][:-1]}, "damaged"),
    "longer": (lambda e: {**e, first_file(e): e[first_file(e)] + b"x"}, "damaged"),
    "missing": (lambda e: {name: e[name] for name in e if name != first_file(e)}, "entries"),
    "unlisted": (lambda e: {**e, "files/" + "0" * 64: b""}, "entries"),
    "climbs": (lambda e: {**e, "../evil": b""}, "entries"),
    "absolute": (lambda e: {**e, "/tmp/evil": b""}, "entries"),
    "no manifest": (lambda e: {name: e[name] for name in e if name != "manifest.json"}, "no manifest.json"),
    "not json": (lambda e: {**e, "manifest.json": b"{"}, "no compile cache"),
    "of a later format": (lambda e: changed(e, format=2), "format"),
    "no facts": (lambda e: changed(e, facts=None), "facts"),
    "a file that climbs": (lambda e: renamed(e, "../../evil"), "not a path below"),
    "an absolute file": (lambda e: renamed(e, "/etc/evil"), "not a path below"),
    "a file that is a folder": (
        lambda e: renamed(e, f"{VARIABLE}/ab/kernel.cpp/x"),
        "both a file and a folder",
    ),
    "a digest that climbs": (
        lambda e: changed(e, files={"a": {"sha256": "../" * 21 + "x", "bytes": 1}}),
        "sha256",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_archive_leaves_nothing(home: Path, archive: Path, kind: str) -> None:
    change, words = BAD[kind]
    write(archive, change(read(archive)))
    with pytest.raises(InputError, match=words):
        import_cache(home, archive, trust=True)
    assert files_of(home) == set()


def test_a_link_in_an_archive_is_no_way_out(home: Path, archive: Path, tmp_path: Path) -> None:
    """An entry that unpackers would make a symbolic link is bytes like any other, and not those listed."""
    entries = read(archive)
    with zipfile.ZipFile(archive, "w") as out:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name)
            if name == first_file(entries):
                info.create_system, info.external_attr, content = 3, 0o120777 << 16, b"/etc/passwd"
            out.writestr(info, content)
    with pytest.raises(InputError, match="damaged"):
        import_cache(home, archive, trust=True)
    assert files_of(home) == set()


def test_an_entry_that_unpacks_to_more_than_is_said_is_not_read_on(home: Path, archive: Path) -> None:
    entries = read(archive)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in entries.items():
            out.writestr(name, bytes(64 << 20) if name == first_file(entries) else content)
    with pytest.raises(InputError, match="damaged"):
        import_cache(home, archive, trust=True)


def test_an_entry_twice_is_refused(home: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as out, pytest.warns(UserWarning, match="Duplicate"):
        out.writestr("manifest.json", b"{}")
    with pytest.raises(InputError, match="twice"):
        import_cache(home, archive, trust=True)


@pytest.mark.parametrize("content", [b"", b"not a zip", None])
def test_what_is_no_zip_is_refused(home: Path, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.zip"):
        import_cache(home, tmp_path / "x.zip", trust=True)
    with pytest.raises(InputError, match="not a file"):
        import_cache(home, tmp_path, trust=True)


def test_a_cut_archive_is_refused(home: Path, archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(InputError, match="not a readable archive"):
        import_cache(home, archive, trust=True)
    assert files_of(home) == set()


def test_a_cache_larger_than_the_disk_is_refused(archive: Path, disk: Callable[[str], Path]) -> None:
    place = disk("size=1m")
    content = bytes(2 << 20)
    entries = read(archive)
    entries[first_file(entries)] = content
    digest = hashlib.sha256(content).hexdigest()
    entries = changed(entries, files={"zeros": {"sha256": digest, "bytes": len(content)}})
    write(archive, {"manifest.json": entries["manifest.json"], f"files/{digest}": content})
    with pytest.raises(StorageError, match="make room"):
        import_cache(place, archive, trust=True)


def test_only_what_is_whole_and_signed_is_exported(home: Path, tmp_path: Path) -> None:
    run(home, FILES)
    out = tmp_path / "out.zip"
    with pytest.raises(InputError, match="name of a file"):
        export_cache(home, KEY, tmp_path)
    with pytest.raises(InputError, match="name of a file"):
        export_cache(home, KEY, tmp_path / "no folder" / "x.zip")
    content = blob(home, "ab/kernel.o").read_bytes()
    blob(home, "ab/kernel.o").write_bytes(b"other")
    with pytest.raises(InputError, match=r"1 damaged file, the first \S*ab/kernel.o"):
        export_cache(home, KEY, out)
    blob(home, "ab/kernel.o").write_bytes(content)
    (home / "signing.key").unlink()
    with pytest.raises(InputError, match="signature is not this home's"):
        export_cache(home, KEY, out)
    with pytest.raises(InputError, match="no manifest"):
        export_cache(home, "0" * 16, out)
    assert not out.exists()
