"""`trueup ctl`: what people ask of a running run from outside."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from in_process import Main, refused
from trueup.train.control import WORDS, Control


@pytest.fixture
def running(finished: Path) -> Path:
    """The folder of a run that says it is running: this process, with a beating heart."""
    (folder,) = (finished / "runs").iterdir()
    header = json.loads((folder / "run.json").read_text())
    header |= {"state": "running", "reason": None, "ended_at": None, "wall_s": None}
    header["environment"]["host"]["hostname"] = socket.gethostname()
    header["environment"]["process"] |= {"pid": os.getpid(), "started_at": None}
    (folder / "run.json").write_text(json.dumps(header))
    (folder / "heartbeat").touch()
    return folder


@pytest.mark.parametrize("ref", ["last", "tiny", "prefix"])
def test_a_running_run_is_told(main: Main, running: Path, ref: str) -> None:
    control = Control(running)
    for word in WORDS:
        done = main("ctl", running.name[:6] if ref == "prefix" else ref, word, "--why", "a drill")
        assert done.code == 0, done.err
        assert f"told run {running.name} (tiny) to {word}" in done.err
        assert done.out == ""
        (asked,) = control.taken()
        assert (asked.kind, asked.why, asked.who) == (word, "a drill", "by hand")


def test_the_json_says_what_was_done(main: Main, running: Path) -> None:
    done = main("ctl", "last", "pause", "--json")
    document = json.loads(done.out)
    assert document["run"] == running.name
    assert document["order"] == "pause"
    assert Path(document["file"]) == running / "control" / "pause"


def test_a_later_order_overrules_an_earlier_one(main: Main, running: Path) -> None:
    main("ctl", "last", "pause")
    main("ctl", "last", "resume")
    assert [asked.kind for asked in Control(running).taken()] == ["resume"]
    main("ctl", "last", "checkpoint")
    main("ctl", "last", "pause")
    main("ctl", "last", "stop")
    assert [asked.kind for asked in Control(running).taken()] == ["checkpoint", "stop"]
    assert list((running / "control").iterdir()) == []


def test_a_run_that_is_not_running_is_told_nothing(main: Main, finished: Path) -> None:
    (folder,) = (finished / "runs").iterdir()
    refused(main("ctl", "last", "pause"), 2, "is not running: it is finished")
    assert not (folder / "control").exists()


def test_a_run_whose_process_is_gone_is_told_nothing(main: Main, running: Path) -> None:
    os.utime(running / "heartbeat", (0, 0))
    refused(main("ctl", "last", "stop"), 2, "is not running: it is interrupted")


def test_unknown_orders_and_runs_are_refused(main: Main, running: Path) -> None:
    done = main("ctl", "last", "dance")
    assert done.code == 2
    assert "dance" in done.err
    refused(main("ctl", "nobody", "stop"), 2, "there is no run 'nobody'")


def test_a_folder_that_cannot_be_written_is_said(main: Main, running: Path) -> None:
    (running / "control").write_text("a file where the folder should be")
    refused(main("ctl", "last", "stop"), 1, "cannot be written")
    shutil.rmtree(running)
    assert main("ctl", "last", "stop").code == 2
