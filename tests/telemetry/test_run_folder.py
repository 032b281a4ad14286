"""The run folder: readable at any instant, and never a reason for a run to fail."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from records import evaluation, event, header, sample, segment, step

from trueup.schema import (
    Event,
    Frozen,
    InputError,
    Measurement,
    RunHeader,
    Sample,
    Step,
    StorageError,
    unavailable,
)
from trueup.telemetry import MemorySink, RunFolder, TeeSink, line_file


def lines(path: Path, kind: type[Frozen]) -> list[Frozen]:
    return [kind.model_validate_json(line) for line in path.read_text().splitlines()]


class FullDisk:
    """Lets `room` more bytes through os.write, half a write included, then says ENOSPC."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC) -> None:
        self.room: int | None = None
        self.code = code
        self._write = os.write
        monkeypatch.setattr(line_file.os, "write", self.write)

    def write(self, fd: int, data: memoryview) -> int:
        if self.room is None:
            return self._write(fd, data)
        if self.room == 0:
            raise OSError(self.code, os.strerror(self.code))
        n = self._write(fd, data[: self.room])
        self.room -= n
        return n


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FullDisk:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return FullDisk(monkeypatch)


def test_every_record_comes_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "r1")
    folder.header(header())
    for i in range(3):
        folder.segment(segment(i))
        folder.step(step(i))
        folder.sample(sample(i))
    folder.event(event(1.0))
    folder.evaluation(evaluation(2))
    measured = {
        "power_w": unavailable("W", "no sensor"),
        "loss": Measurement(value=1.0, unit="1", kind="measured"),
    }
    folder.measurements(measured)
    folder.header(header("finished"))
    folder.close()
    path = folder.path
    assert RunHeader.model_validate_json((path / "run.json").read_text()) == header("finished")
    assert lines(path / "steps.jsonl", Step) == [step(i) for i in range(3)]
    assert lines(path / "samples.jsonl", Sample) == [sample(i) for i in range(3)]
    assert lines(path / "events.jsonl", Event) == [event(1.0)]
    stored = json.loads((path / "measurements.json").read_text())
    assert {name: Measurement(**row) for name, row in stored.items()} == measured
    assert folder.problems() == []
    assert not [p for p in path.iterdir() if p.name.startswith(".")]


def test_a_diverged_step_is_valid_json_and_reads_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r1")
    folder.step(step(1, loss=math.nan))
    folder.close()
    text = (tmp_path / "r1" / "steps.jsonl").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert math.isnan(Step.model_validate_json(text).loss)


def test_rare_records_are_on_disk_at_once_and_the_rest_within_a_second(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r1")
    folder.step(step(1))
    folder.event(event(1.0))
    assert len(lines(tmp_path / "r1" / "events.jsonl", Event)) == 1
    folder.step(step(2))
    folder.heartbeat()
    assert len(lines(tmp_path / "r1" / "steps.jsonl", Step)) == 2
    folder.step(step(3))
    folder._flushed -= 2  # as if two seconds had gone by without a heartbeat
    folder.step(step(4))
    assert len(lines(tmp_path / "r1" / "steps.jsonl", Step)) == 4
    folder.close()


def test_heartbeat_moves_the_files_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r1")
    beat = tmp_path / "r1" / "heartbeat"
    for show in (lambda: folder.header(header()), folder.heartbeat):
        show()
        assert abs(beat.stat().st_mtime - time.time()) < 60
        os.utime(beat, (1, 1))
    folder.close()


def test_a_folder_that_is_gone_on_with_shows_no_life_before_the_header(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "r1")
    first.header(header())
    beat = tmp_path / "r1" / "heartbeat"
    os.utime(beat, (1, 1))
    again = RunFolder(tmp_path / "r1")
    again.segment(segment(9.0))
    again.flush()
    assert beat.stat().st_mtime == 1
    again.header(header())
    assert beat.stat().st_mtime > 1
    again.close()


def test_flush_waits_for_a_thread_that_is_writing_and_a_heartbeat_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "r1")
    sink = TeeSink(MemorySink(), folder)
    sink.sample(sample(0.0))
    writing, go_on, write = threading.Event(), threading.Event(), os.write

    def slow(fd: int, data: memoryview) -> int:
        if threading.current_thread() is sampler:
            writing.set()
            go_on.wait(60)
        return write(fd, data)

    monkeypatch.setattr(line_file.os, "write", slow)
    sampler = threading.Thread(target=sink.heartbeat)
    sampler.start()
    assert writing.wait(60)
    sink.step(step(1))
    sink.heartbeat()
    assert not (tmp_path / "r1" / "steps.jsonl").exists()
    threading.Timer(0.2, go_on.set).start()
    sink.flush()
    assert lines(tmp_path / "r1" / "steps.jsonl", Step) == [step(1)]
    sampler.join()
    folder.close()


def test_a_line_of_a_killed_run_that_lacks_its_newline_stays(tmp_path: Path) -> None:
    """Readers take it for whole: it must not be gone when the run goes on."""
    path = tmp_path / "segments.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": 2}')
    file = line_file.LineFile(path)
    file.append(b'{"c": 3}\n')
    file.close()
    assert path.read_bytes() == b'{"a": 1}\n{"b": 2}\n{"c": 3}\n'


def test_a_half_line_of_a_killed_run_is_cut_off(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r1")
    folder.step(step(1))
    folder.close()
    path = tmp_path / "r1" / "steps.jsonl"
    with path.open("a") as file:
        file.write('{"step": 2, "sta')
    again = RunFolder(tmp_path / "r1")
    again.step(step(2))
    again.close()
    assert lines(path, Step) == [step(1), step(2)]


@pytest.mark.parametrize("size", [0, 1, line_file.CHUNK_BYTES, line_file.CHUNK_BYTES * 2 + 7])
def test_last_newline_is_found_however_long_the_tail(tmp_path: Path, size: int) -> None:
    for whole in (b"", b"first\n"):
        path = tmp_path / f"{size}-{len(whole)}"
        path.write_bytes(whole + b"x" * size)
        with path.open("rb") as file:
            assert line_file.end_of_last_line(file.fileno(), len(whole) + size) == len(whole)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("room", [0, 1, 100, 400])
def test_a_full_disk_tears_nothing_and_loses_nothing(
    tmp_path: Path, disk: FullDisk, code: int, room: int
) -> None:
    folder = RunFolder(tmp_path / "r1")
    folder.step(step(1))
    folder.flush()
    disk.room, disk.code = room, code
    for i in range(2, 10):
        folder.step(step(i))
        folder.event(event(i))
    folder.heartbeat()
    seen = lines(tmp_path / "r1" / "steps.jsonl", Step)  # whole lines at every instant after a flush
    assert seen == [step(i) for i in range(1, len(seen) + 1)]
    assert os.strerror(code) in folder.problems()[0]
    disk.room = None
    folder.heartbeat()
    folder.close()
    assert lines(tmp_path / "r1" / "steps.jsonl", Step) == [step(i) for i in range(1, 10)]
    assert lines(tmp_path / "r1" / "events.jsonl", Event) == [event(i) for i in range(2, 10)]
    assert len(folder.problems()) == 2
    assert "nothing was lost" in folder.problems()[1]


def test_what_a_full_disk_never_takes_goes_to_the_temporary_folder(tmp_path: Path, disk: FullDisk) -> None:
    folder = RunFolder(tmp_path / "r1")
    folder.step(step(1))
    folder.flush()
    disk.room = 0
    folder.step(step(2))
    folder.close()
    folder.close()
    rescued = next(tmp_path.glob("trueup-r1-*"))
    assert str(rescued) in folder.problems()[-1]
    assert lines(tmp_path / "r1" / "steps.jsonl", Step) == [step(1)]
    assert lines(rescued / "steps.jsonl", Step) == [step(2)]


def test_nowhere_to_write_is_said_and_not_raised(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "r1")
    disk.room = 0
    folder.step(step(2))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    folder.close()
    assert "lost: 1 lines of steps.jsonl" in folder.problems()[-1]


def test_memory_is_bounded_and_samples_go_first(tmp_path: Path, disk: FullDisk) -> None:
    folder = RunFolder(tmp_path / "r1", hold_at_most_bytes=20_000)
    disk.room = 0
    for i in range(300):
        folder.sample(sample(i))
        if i % 10 == 0:
            folder.step(step(i))
    assert folder._held_bytes <= 20_000
    disk.room = None
    folder.close()
    assert len(lines(tmp_path / "r1" / "steps.jsonl", Step)) == 30
    kept = lines(tmp_path / "r1" / "samples.jsonl", Sample)
    assert f"dropped {300 - len(kept)} lines of samples.jsonl" in folder.problems()[-1]
    assert kept[-1] == sample(299)


def test_without_samples_the_newest_lines_are_dropped_and_counted(tmp_path: Path, disk: FullDisk) -> None:
    folder = RunFolder(tmp_path / "r1", hold_at_most_bytes=5_000)
    disk.room = 0
    for i in range(100):
        folder.step(step(i))
    disk.room = None
    folder.close()
    kept = lines(tmp_path / "r1" / "steps.jsonl", Step)
    assert kept == [step(i) for i in range(len(kept))]
    assert f"dropped {100 - len(kept)} lines of steps.jsonl" in folder.problems()[-1]


def test_header_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "r1")
    folder.header(header())
    fsync = os.fsync

    def refuse(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    folder.header(header("finished"))
    assert RunHeader.model_validate_json((tmp_path / "r1" / "run.json").read_text()).state == "running"
    monkeypatch.setattr(os, "fsync", fsync)
    folder.heartbeat()
    assert RunHeader.model_validate_json((tmp_path / "r1" / "run.json").read_text()).state == "finished"
    folder.close()


def test_an_interrupt_while_writing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "r1")
    write = os.write

    def interrupted(fd: int, data: memoryview) -> int:
        write(fd, data[:50])
        raise KeyboardInterrupt

    monkeypatch.setattr(line_file.os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.event(event(1.0))
    monkeypatch.setattr(line_file.os, "write", write)
    folder.close()
    assert lines(tmp_path / "r1" / "events.jsonl", Event) == [event(1.0)]


def test_a_signal_handler_may_emit_while_its_thread_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "r1")
    write = os.write
    inside: list[bool] = []

    def with_signal(fd: int, data: memoryview) -> int:
        if not inside:
            inside.append(True)
            folder.event(event(2.0))
        return write(fd, data)

    monkeypatch.setattr(line_file.os, "write", with_signal)
    folder.event(event(1.0))
    folder.close()
    assert lines(tmp_path / "r1" / "events.jsonl", Event) == [event(1.0), event(2.0)]


def test_threads_may_emit_together(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r1")

    def emit(work: Callable[[int], None]) -> None:
        for i in range(200):
            work(i)
            folder.heartbeat()

    threads = [
        threading.Thread(target=emit, args=(work,))
        for work in (
            lambda i: folder.sample(sample(i)),
            lambda i: folder.step(step(i)),
            lambda i: folder.event(event(i)),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder.close()
    assert lines(tmp_path / "r1" / "samples.jsonl", Sample) == [sample(i) for i in range(200)]
    assert lines(tmp_path / "r1" / "steps.jsonl", Step) == [step(i) for i in range(200)]
    assert lines(tmp_path / "r1" / "events.jsonl", Event) == [event(i) for i in range(200)]


def test_a_record_after_the_end_is_said(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r1")
    folder.close()
    folder.step(step(1))
    assert "after the run folder was closed" in folder.problems()[-1]


@pytest.mark.parametrize(
    ("code", "error", "advice"),
    [(errno.ENOSPC, StorageError, "free some space"), (errno.EROFS, InputError, "TRUEUP_HOME")],
)
def test_a_place_that_cannot_be_written_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception], advice: str
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(error, match=advice):
        RunFolder(tmp_path / "r1")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="TRUEUP_HOME"):
        RunFolder(tmp_path / "runs" / "r1")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_on_a_real_small_disk(small_disk: Path) -> None:
    folder = RunFolder(small_disk / "r1")
    for i in range(2000):
        folder.step(step(i))
        if i % 100 == 0:
            folder.heartbeat()
    assert "No space left" in folder.problems()[0]
    folder.close()
    rescued = next(Path(tempfile.gettempdir()).glob("trueup-r1-*"))
    rest = lines(rescued / "steps.jsonl", Step)
    here = lines(small_disk / "r1" / "steps.jsonl", Step)
    assert here + rest == [step(i) for i in range(2000)]
    assert here
    for file in rescued.iterdir():
        file.unlink()
    rescued.rmdir()


def test_on_a_real_full_disk(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filler").write_bytes(b"x" * (300 << 10))
    with pytest.raises(StorageError, match="No space left"):
        RunFolder(small_disk / "r1")


def test_on_a_real_read_only_disk(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(InputError, match="Read-only"):
        RunFolder(small_disk / "r1")
