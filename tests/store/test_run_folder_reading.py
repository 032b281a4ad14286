"""Reading a run folder that is whole, torn, incomplete, or left by a process that is gone."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from store_records import make_header, make_record, make_step, runs, same, write_folder

from trueup.schema import InputError, RunRecord, Segment
from trueup.store import read_run_folder
from trueup.telemetry import RunFolder

quick = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def iso_ago(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat()


def running(home: Path, *, age_s: float, heartbeat_age_s: float, **header: object) -> Path:
    """The folder of a run that started `age_s` ago, with a hole between two of its segments."""
    record, _ = make_record()
    header = {"state": "running", "wall_s": None, "ended_at": None, "started_at": iso_ago(age_s), **header}
    record = record.model_copy(update={"header": make_header(**header)})
    segments = [Segment(name="start", start_s=0.0, end_s=2.0), Segment(name="step", start_s=3.0, end_s=5.0)]
    folder = write_folder(home, record, segments, heartbeat_age_s=heartbeat_age_s)
    os.utime(folder / "run.json", (time.time() - age_s,) * 2)
    return folder


def spans(record: RunRecord) -> dict[str, float]:
    return {span.name: span.seconds for span in record.spans}


@given(run=runs())
@quick
def test_reading_gives_what_was_written(run: tuple[RunRecord, list[Segment]], tmp_path: Path) -> None:
    record, segments = run
    assert same(read_run_folder(write_folder(tmp_path, record, segments)), record)


def test_only_opening_segments_are_counted(tmp_path: Path) -> None:
    record, segments = make_record()
    read = read_run_folder(write_folder(tmp_path, record, segments))
    assert {span.name: span.count for span in read.spans} == {
        "start": 1,
        "step": 1,
        "evaluate": 1,
        "other": 1,
    }
    assert math.fsum(spans(read).values()) == pytest.approx(10.0, abs=1e-9)


def test_samples_are_read_only_when_asked_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, *make_record())
    assert len(read_run_folder(folder).samples) == 2
    assert read_run_folder(folder, samples=False).samples == ()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path: Path, cut: int) -> None:
    record, segments = make_record()
    folder = write_folder(tmp_path, record, segments)
    for name in ("steps.jsonl", "segments.jsonl", "events.jsonl", "samples.jsonl"):
        with (folder / name).open("ab") as stream:
            stream.write((folder / name).read_bytes().split(b"\n")[0][:-cut])
    assert same(read_run_folder(folder), record)


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    record, segments = make_record()
    folder = write_folder(tmp_path, record, segments)
    steps = folder / "steps.jsonl"
    steps.write_bytes(steps.read_bytes().rstrip(b"\n"))
    assert same(read_run_folder(folder), record)


def test_damage_in_the_middle_is_counted_in_a_warning(tmp_path: Path) -> None:
    record, segments = make_record()
    folder = write_folder(tmp_path, record, segments)
    steps = folder / "steps.jsonl"
    steps.write_bytes(b'{"step": 1, "st\x00\xff\n' + steps.read_bytes())
    (folder / "measurements.json").write_text('{"useful_tokens": {"unit"')
    read = read_run_folder(folder)
    assert len(read.steps) == 2
    assert read.measurements == {}
    assert read.events[-1].kind == "warning"
    assert read.events[-1].data == {"unreadable": {"measurements.json": 1, "steps.jsonl": 1}}


def test_null_where_training_diverged_is_nan(tmp_path: Path) -> None:
    record, segments = make_record()
    folder = write_folder(tmp_path, record, segments)
    (folder / "steps.jsonl").write_text(make_step(loss=math.nan, grad_norm=0.5).model_dump_json() + "\n")
    (step,) = read_run_folder(folder).steps
    assert math.isnan(step.loss)
    assert step.grad_norm == 0.5


def test_every_file_but_the_header_may_be_missing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, *make_record())
    for file in folder.iterdir():
        if file.name != "run.json":
            file.unlink()
    assert read_run_folder(folder) == RunRecord(header=make_header())


@pytest.mark.parametrize(
    "content", [None, b"", b'{"id": ', b"[1]", b"\xff\xfe", b'{"id": "x"}', b"[" * 100_000]
)
def test_no_readable_header_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match="run"):
        read_run_folder(tmp_path)


def test_a_newer_format_says_update(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, *make_record())
    (folder / "run.json").write_text(json.dumps({**make_header().model_dump(), "format": 2, "new": 1}))
    with pytest.raises(InputError, match="update trueup"):
        read_run_folder(folder)


def test_a_beating_run_is_running(tmp_path: Path) -> None:
    read = read_run_folder(running(tmp_path, age_s=60, heartbeat_age_s=1))
    assert read.header.state == "running"
    assert read.header.wall_s is None
    assert spans(read) == {"start": 2.0, "step": 2.0}


def test_a_heartbeat_of_before_the_clock_was_set_back_means_interrupted(tmp_path: Path) -> None:
    assert read_run_folder(running(tmp_path, age_s=60, heartbeat_age_s=-3600)).header.state == "interrupted"


def test_a_stale_heartbeat_means_interrupted_and_spans_still_partition(tmp_path: Path) -> None:
    read = read_run_folder(running(tmp_path, age_s=100, heartbeat_age_s=40))
    assert read.header.state == "interrupted"
    assert read.header.reason is not None
    assert "heartbeat stopped at" in read.header.reason
    assert read.header.wall_s == pytest.approx(60, abs=1.0)
    assert spans(read)["other"] == pytest.approx(56, abs=1.0)
    assert math.fsum(spans(read).values()) == pytest.approx(read.header.wall_s, abs=1e-9)


def test_a_copy_of_a_killed_runs_folder_costs_no_more_than_the_run(tmp_path: Path) -> None:
    """`cp -r` and git give every file the time of the copying: the wall clock would reach up to it."""
    folder = running(tmp_path, age_s=86400, heartbeat_age_s=86340)
    assert read_run_folder(folder).header.wall_s == pytest.approx(60, abs=1)
    for file in folder.iterdir():
        os.utime(file, (time.time() - 3600,) * 2)
    read = read_run_folder(folder)
    assert read.header.state == "interrupted"
    assert read.header.wall_s == 5.0
    assert math.fsum(spans(read).values()) == 5.0


def test_wall_clock_reaches_the_last_sample(tmp_path: Path) -> None:
    folder = running(tmp_path, age_s=100, heartbeat_age_s=95)
    with (folder / "samples.jsonl").open("a") as stream:
        stream.write('{"at_s": 71.5, "values": {}}\n{"at_s": 99.9, "val')
    for samples in (True, False):
        assert read_run_folder(folder, samples=samples).header.wall_s == 71.5


def test_a_gone_process_on_this_machine_means_interrupted_at_once(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    environment = {"host": {"hostname": socket.gethostname()}, "process": {"pid": gone.pid}}
    folder = running(tmp_path, age_s=60, heartbeat_age_s=1, environment=environment)
    assert read_run_folder(folder).header.state == "interrupted"
    environment["host"] = {"hostname": socket.gethostname() + "-another"}
    folder = running(tmp_path, age_s=60, heartbeat_age_s=1, environment=environment)
    assert read_run_folder(folder).header.state == "running"


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        (["trueup", "train", "my own.yaml", "--set", "seed=3"], "'my own.yaml' --set seed=3"),
        (["trueup", "train", "r.yaml", "--resume", "auto", "--set", "seed=3"], "r.yaml --set seed=3"),
        (["trueup", "train", "--resume=auto", "r.yaml"], "r.yaml"),
        (["study.py"], "RECIPE"),  # from a Python program
        (None, "RECIPE"),
    ],
)
def test_a_killed_run_that_had_saved_itself_says_how_to_go_on(
    tmp_path: Path, argv: list[str] | None, given: str
) -> None:
    folder = running(tmp_path, age_s=100, heartbeat_age_s=90, environment={"process": {"argv": argv}})
    assert "go on" not in (read_run_folder(folder).header.reason or "")
    (folder / "checkpoints" / "00000400").mkdir(parents=True)
    read = read_run_folder(folder).header
    assert (read.reason or "").endswith(f"; go on: trueup train {given} --resume {read.id}")


def test_a_process_that_died_before_its_header_adds_nothing_to_the_run(tmp_path: Path) -> None:
    """Its time is down time: nobody worked. It must not be taken for the killed process's."""
    folder = running(tmp_path, age_s=100, heartbeat_age_s=40)
    killed = read_run_folder(folder)
    assert killed.header.state == "interrupted"
    RunFolder(folder)
    assert read_run_folder(folder) == killed
    sink = RunFolder(folder)
    sink.header(make_header(state="running", wall_s=None, ended_at=None, started_at=iso_ago(100)))
    assert read_run_folder(folder).header.state == "running"
    sink.close()


def test_a_run_killed_in_its_first_moments_is_interrupted(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    environment = {"host": {"hostname": socket.gethostname()}, "process": {"pid": gone.pid}}
    header = make_header(state="running", wall_s=None, ended_at=None, started_at=iso_ago(2))
    sink = RunFolder(tmp_path / "run")
    sink.header(header.model_copy(update={"environment": environment}))
    read = read_run_folder(tmp_path / "run")
    assert read.header.state == "interrupted"
    assert read.header.wall_s == pytest.approx(2, abs=1.5)
    sink.close()


def test_an_unreaped_process_counts_as_gone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()  # it has closed its output: it is ending, and nobody has waited for it
        environment = {"host": {"hostname": socket.gethostname()}, "process": {"pid": child.pid}}
        folder = running(tmp_path, age_s=60, heartbeat_age_s=1, environment=environment)
        deadline = time.monotonic() + 10
        while read_run_folder(folder).header.state == "running" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert read_run_folder(folder).header.state == "interrupted"


@pytest.mark.parametrize(
    ("started_ago_s", "state"), [(86_400.0, "interrupted"), (0.0, "running"), (None, "running")]
)
def test_a_reused_process_id_is_not_the_run(tmp_path: Path, started_ago_s: float | None, state: str) -> None:
    process: dict[str, object] = {"pid": os.getpid()}
    if started_ago_s is not None:
        process["started_at"] = iso_ago(started_ago_s)
    environment = {"host": {"hostname": socket.gethostname()}, "process": process}
    folder = running(tmp_path, age_s=60, heartbeat_age_s=1, environment=environment)
    assert read_run_folder(folder).header.state == state


@pytest.mark.parametrize(
    "environment", [{}, {"host": "me", "process": 3}, {"host": {}, "process": {"pid": "x"}}]
)
def test_an_environment_without_process_leaves_it_to_the_heartbeat(
    tmp_path: Path, environment: object
) -> None:
    folder = running(tmp_path, age_s=60, heartbeat_age_s=1, environment=environment)
    assert read_run_folder(folder).header.state == "running"
