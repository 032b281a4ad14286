"""The store: what goes in comes out, whatever state the home, the disk and other processes are in."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from store_records import make_record, make_step, runs, same, write_folder

from trueup.schema import InputError, RunRecord, Segment, StorageError
from trueup.store import Store, read_run_folder

quick = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of one mebibyte, or skip where this user may not mount one."""
    folder = Path(tempfile.mkdtemp())
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode != 0:
        folder.rmdir()
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def fill(file: Path) -> None:
    """Writes until the disk is full."""
    with file.open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(b"x" * 4096):
            pass


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def filled(home: Path, *ids: str) -> None:
    for number, run_id in enumerate(ids):
        started = f"2026-11-{number + 1:02}T00:00:00+00:00"
        write_folder(home, *make_record(run_id, f"run-{run_id}", started_at=started))


@given(run=runs())
@quick
def test_a_run_survives_folder_database_record(run: tuple[RunRecord, list[Segment]]) -> None:
    record, segments = run
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        write_folder(home, record, segments)
        with Store.open(home, read_only=True) as store:  # in memory: the same tables without a file's cost
            assert store.sync() == []
            assert same(store.record(record.header.id, samples=True), record)
            assert store.record(record.header.id).samples == ()


def test_database_and_folder_tell_a_bill_the_same_numbers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, *make_record())
    with Store.open(tmp_path) as store:
        store.sync()
        stored, read = store.record("7f3a91c2"), read_run_folder(folder, samples=False)
    assert stored.header.price == read.header.price
    assert stored.header.wall_s == read.header.wall_s
    assert [(s.name, s.seconds.hex(), s.count) for s in stored.spans] == [
        (s.name, s.seconds.hex(), s.count) for s in read.spans
    ]
    assert [(s.step_s.hex(), s.useful_tokens) for s in stored.steps] == [
        (s.step_s.hex(), s.useful_tokens) for s in read.steps
    ]
    assert stored.measurements == read.measurements


def test_runs_are_listed_newest_first_with_their_figures(tmp_path: Path) -> None:
    filled(tmp_path, "aa01", "bb02", "cc03")
    with Store.open(tmp_path) as store:
        store.sync()
        listed = store.runs()
    assert [run.id for run in listed] == ["cc03", "bb02", "aa01"]
    first = listed[0]
    assert (first.name, first.state, first.model, first.device) == (
        "run-cc03",
        "finished",
        "smollm2-135m",
        "cpu",
    )
    assert (first.wall_s, first.useful_tokens, first.usd_per_million_useful_tokens) == (10.0, 1000.0, None)
    assert first.usd_per_million_useful_tokens_steady == 0.1


def test_newest_is_by_instant_not_by_text(tmp_path: Path) -> None:
    write_folder(tmp_path, *make_record("aa01", started_at="2026-11-29T12:00:00+02:00"))
    write_folder(tmp_path, *make_record("bb02", started_at="2026-11-29T11:00:00Z"))
    with Store.open(tmp_path) as store:
        store.sync()
        assert store.resolve("last") == "bb02"


def test_sync_reads_what_is_new_or_changed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, "aa01", "bb02")
    with Store.open(tmp_path) as store:
        store.sync()
        read: list[str] = []
        ingest = Store.ingest
        monkeypatch.setattr(
            Store, "ingest", lambda self, folder: read.append(folder.name) or ingest(self, folder)
        )
        assert store.sync() == []
        assert read == []
        record, segments = make_record("bb02", "renamed")
        write_folder(tmp_path, record, segments)
        filled(tmp_path / "elsewhere", "cc03")
        shutil.move(tmp_path / "elsewhere" / "runs" / "cc03", tmp_path / "runs" / "cc03")
        store.sync()
        assert read == ["bb02", "cc03"]
        assert same(store.record("bb02", samples=True), record)


def test_a_running_run_is_followed_to_its_end(tmp_path: Path) -> None:
    record, segments = make_record(state="running", wall_s=None, ended_at=None)
    folder = write_folder(tmp_path, record, segments[:1], heartbeat_age_s=0)
    with Store.open(tmp_path) as store:
        store.sync()
        assert store.runs()[0].state == "running"
        with (folder / "steps.jsonl").open("a") as stream:
            stream.write(make_step(3).model_dump_json() + "\n")
        store.sync()
        assert [step.step for step in store.record("7f3a91c2").steps] == [1, 2, 3]
        write_folder(tmp_path, record, segments[:1], heartbeat_age_s=3600)
        store.sync()
        assert store.runs()[0].state == "interrupted"
        done, segments = make_record()
        write_folder(tmp_path, done, segments)
        store.sync()
        assert same(store.record("7f3a91c2", samples=True), done)


def test_broken_folders_are_reported_and_the_others_read(tmp_path: Path) -> None:
    filled(tmp_path, "aa01", "bb02", "cc03")
    (tmp_path / "runs" / "aa01" / "run.json").write_text("{")
    (tmp_path / "runs" / "bb02").rename(tmp_path / "runs" / "copy")
    huge, segments = make_record("dd04")
    step = make_step(useful_tokens=2**80)
    write_folder(tmp_path, huge.model_copy(update={"steps": (step,)}), segments)
    filled(tmp_path, "ee05")
    (tmp_path / "runs" / "ee05" / "steps.jsonl").unlink()
    (tmp_path / "runs" / "ee05" / "steps.jsonl").mkdir()
    (tmp_path / "runs" / "a-file").write_text("not a folder")
    (tmp_path / "runs" / "just-starting").mkdir()
    with Store.open(tmp_path) as store:
        problems = store.sync()
        assert [run.id for run in store.runs()] == ["cc03"]
    assert len(problems) == 4
    assert "aa01" in problems[0]
    assert "holds the run bb02" in problems[1]
    assert "dd04" in problems[2]
    assert "steps.jsonl cannot be read" in problems[3]


def test_a_run_killed_before_it_began_is_passed_over(tmp_path: Path) -> None:
    for name, file in (("empty", None), ("begun", "segments.jsonl"), ("lost", "steps.jsonl")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        if file:
            (folder / file).write_text("")
        os.utime(folder, (1, 1))
    with Store.open(tmp_path) as store:
        (problem,) = store.sync()
        assert "lost is not a run folder" in problem
        assert store.runs() == []


def test_a_deleted_folder_leaves_the_run_without_samples(tmp_path: Path) -> None:
    filled(tmp_path, "aa01")
    with Store.open(tmp_path) as store:
        store.sync()
        shutil.rmtree(tmp_path / "runs" / "aa01")
        assert store.sync() == []
        assert len(store.record("aa01", samples=True).steps) == 2
        assert store.record("aa01", samples=True).samples == ()


@pytest.mark.parametrize(
    ("ref", "run_id"),
    [
        ("aa01", "aa01"),
        ("aa0", "aa01"),
        ("b", "bb02"),
        ("run-bb02", "bb02"),
        ("last", "cc03"),
        ("ab", "cc03"),
    ],
)
def test_a_run_is_found_by_id_prefix_name_or_last(tmp_path: Path, ref: str, run_id: str) -> None:
    filled(tmp_path, "aa01", "bb02")
    write_folder(tmp_path, *make_record("cc03", "ab", started_at="2026-12-01T00:00:00Z"))
    with Store.open(tmp_path) as store:
        store.sync()
        assert store.resolve(ref) == run_id


def test_an_ambiguous_or_unknown_reference_lists_what_was_meant(tmp_path: Path) -> None:
    write_folder(tmp_path, *make_record("aa01", "demo", started_at="2026-11-01T00:00:00Z"))
    write_folder(tmp_path, *make_record("aa02", "demo", started_at="2026-11-02T00:00:00Z"))
    with Store.open(tmp_path) as store:
        with pytest.raises(InputError, match="there are no runs yet"):
            store.resolve("demo")
        store.sync()
        with pytest.raises(
            InputError, match=r"2 runs are named 'demo': aa02 .*2026-11-02.*, aa01 .*2026-11-01"
        ):
            store.resolve("demo")
        with pytest.raises(InputError, match="2 runs have an id that begins with 'aa'"):
            store.resolve("aa")
        with pytest.raises(InputError, match="did you mean demo"):
            store.resolve("dmeo")
        for ref in ("zz", "", "%", "a_01"):
            with pytest.raises(InputError, match="there is no run"):
                store.resolve(ref)
        with pytest.raises(InputError, match="no run with the id 'aa'"):
            store.record("aa")


def test_two_processes_bring_in_the_same_runs_at_once(tmp_path: Path) -> None:
    filled(tmp_path, *(f"aa{number:02}" for number in range(1, 13)))
    code = (
        "import sys; from pathlib import Path; from trueup.store import Store\n"
        "with Store.open(Path(sys.argv[1])) as store:\n"
        "    sys.stdin.read()\n"
        "    assert store.sync() == []\n"
        "    for folder in sorted((store.home / 'runs').iterdir()): store.ingest(folder)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    for process in started:
        assert process.wait(60) == 0, process.stderr and process.stderr.read().decode()
        assert process.stderr is not None
        process.stderr.close()
    with Store.open(tmp_path) as store:
        assert len(store.runs()) == 12
        for run in store.runs():
            assert same(store.record(run.id), read_run_folder(tmp_path / "runs" / run.id, samples=False))


def test_a_locked_database_says_so_and_readers_go_on(tmp_path: Path) -> None:
    filled(tmp_path, "aa01")
    with Store.open(tmp_path, lock_timeout_s=0.05) as store:
        store.sync()
        other = sqlite3.connect(tmp_path / "trueup.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        filled(tmp_path, "aa01", "bb02")
        with pytest.raises(StorageError, match=r"locked by another process.*run folders"):
            store.sync()
        assert [run.id for run in store.runs()] == ["aa01"]
        other.execute("ROLLBACK")
        other.close()
        assert store.sync() == []


@pytest.mark.parametrize("damage", ["header", "inside"])
def test_a_damaged_database_tells_how_to_build_it_again(tmp_path: Path, damage: str) -> None:
    filled(tmp_path, "aa01")
    file = tmp_path / "trueup.sqlite"
    with Store.open(tmp_path) as store:
        store.sync()
    raw = bytearray(file.read_bytes())
    raw[: 16 if damage == "header" else 0] = b"x" * (16 if damage == "header" else 0)
    if damage == "inside":
        raw[100:] = b"\xa5" * (len(raw) - 100)
    file.write_bytes(raw)
    with pytest.raises(StorageError, match=r"damaged .* run folders in .*runs hold the truth.*Rename it"):
        Store.open(tmp_path)
    file.rename(tmp_path / "trueup.sqlite.damaged")
    with Store.open(tmp_path) as store:
        store.sync()
        assert [run.id for run in store.runs()] == ["aa01"]


def test_opening_for_reading_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path, "aa01")
    with Store.open(tmp_path) as store:
        store.sync()
    before = {file: file.read_bytes() for file in tmp_path.glob("trueup.sqlite*")}
    filled(tmp_path, "aa01", "bb02")
    with Store.open(tmp_path, read_only=True) as store:
        assert [run.id for run in store.runs()] == ["aa01"]
        assert store.sync() == []
        assert [run.id for run in store.runs()] == ["bb02", "aa01"]
    assert {file: file.read_bytes() for file in tmp_path.glob("trueup.sqlite")} == before


@pytest.mark.parametrize("left", ["", "-wal", "-wal -shm"])
def test_a_read_only_disk_is_listed_and_news_is_kept_in_memory(small_disk: Path, left: str) -> None:
    """Also where a process that was killed left its log (-wal) and the log's index (-shm) behind."""
    home = small_disk / "home"
    filled(home, "aa01")
    with Store.open(home) as store, sqlite3.connect(home / "trueup.sqlite") as held:
        store.sync()
        held.execute("SELECT count(*) FROM runs").fetchone()  # holds the log open
        kept = {end: (home / f"trueup.sqlite{end}").read_bytes() for end in ("", *left.split())}
    held.close()
    for end, raw in kept.items() if left else ():
        (home / f"trueup.sqlite{end}").write_bytes(raw)
    if not left.endswith("-wal"):  # a log without its index cannot be read here: the folders make up for it
        remount(small_disk, "ro")
        with Store.open(home) as reader:
            assert [run.id for run in reader.runs()] == ["aa01"]
        remount(small_disk, "rw")
    filled(home, "aa01", "bb02")
    remount(small_disk, "ro")
    with Store.open(home) as reader:
        assert reader.read_only
        assert reader.sync() == []
        assert [run.id for run in reader.runs()] == ["bb02", "aa01"]
        assert reader.resolve("last") == "bb02"
        assert len(reader.record("bb02", samples=True).samples) == 2


def test_a_read_only_home_without_database_is_read_from_its_folders(small_disk: Path) -> None:
    filled(small_disk, "aa01")
    remount(small_disk, "ro")
    with Store.open(small_disk) as store:
        store.sync()
        assert [run.id for run in store.runs()] == ["aa01"]
    with pytest.raises(StorageError, match=r"TRUEUP_HOME .* cannot be made: Read-only"):
        Store.open(small_disk / "home")


def test_a_full_disk_says_so_and_loses_nothing(small_disk: Path) -> None:
    with Store.open(small_disk) as store:
        filled(small_disk, "aa01")
        store.sync()
        record, segments = make_record("bb02", started_at="2026-12-01T00:00:00Z")
        steps = tuple(make_step(number) for number in range(400))
        write_folder(small_disk, record.model_copy(update={"steps": steps}), segments)
        filler = small_disk / "filler"
        fill(filler)
        (problem,) = store.sync()
        assert "TRUEUP_HOME" in problem
        assert "not kept" in problem
        assert [run.id for run in store.runs()] == ["bb02", "aa01"]
    fill(small_disk / "the rest")  # closing may have given the log's room back
    with Store.open(small_disk) as store:
        store.sync()
        assert store.read_only
        assert len(store.record("bb02").steps) == 400
    filler.unlink()
    with Store.open(small_disk) as store:
        assert not store.read_only
        assert store.sync() == []
        assert len(store.record("bb02").steps) == 400


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        Store.open(tmp_path / "home")


def test_odd_characters_in_the_home_are_only_a_name(tmp_path: Path) -> None:
    home = tmp_path / "a b?mode=ro#c%20é"
    filled(home, "aa01")
    for _ in range(2):
        with Store.open(home) as store:
            store.sync()
            assert [run.id for run in store.runs()] == ["aa01"]
    assert (home / "trueup.sqlite").exists()


def test_listing_runs_loads_nothing_heavy(tmp_path: Path) -> None:
    filled(tmp_path, "aa01")
    Store.open(tmp_path).close()
    heavy = ["torch", "numpy", "pyarrow", "alembic", "pandas", "sqlalchemy"]
    code = (
        "import sys; from pathlib import Path; from trueup.store import Store\n"
        f"store = Store.open(Path({str(tmp_path)!r})); store.sync(); assert len(store.runs()) == 1\n"
        f"loaded = [name for name in {heavy!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_thousands_of_runs_cost_no_reading_when_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, "aa01", "bb02", "cc03")
    with Store.open(tmp_path) as store:
        store.sync()
        opened: list[object] = []
        monkeypatch.setattr(Path, "read_bytes", lambda self: opened.append(self))
        store.sync()
    assert opened == []
