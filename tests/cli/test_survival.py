"""Full and read-only disks, locked and damaged databases, signals: what was measured outlives them all."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from in_process import Main, files_of, refused
from trueup.store import Store

Disk = Callable[[str], Path]
LEFT_FOR_A_RUN = 72 << 10  # enough to begin (the probe is 64 KiB), too little to end
PATIENCE_S = 120


def fill(disk: Path, *, leave: int = 0) -> Path:
    """A file that takes all the room there is but `leave` bytes."""
    path = disk / "fill"
    room = os.statvfs(disk)
    path.write_bytes(b"x" * (room.f_bavail * room.f_frsize - leave))
    return path


def only_run(home: Path) -> Path:
    (folder,) = (home / "runs").iterdir()
    return folder


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


# --- a full disk ------------------------------------------------------------------------------------------


def test_a_full_disk_while_the_model_is_written(main: Main, recipe_file: Path, disk: Disk) -> None:
    home = disk("size=300k")
    done = main("prepare", recipe_file, home=home)
    refused(done, 1, f"'tiny' failed in {home}", "No space left", "make room and run again")
    assert files_of(home) == {"models/.tiny.lock"}


def test_a_full_disk_while_data_is_prepared(
    main: Main, finished_home: Path, recipe_file: Path, disk: Disk
) -> None:
    home = disk("size=2m")
    shutil.copytree(finished_home / "models", home / "models")
    filler = fill(home, leave=12 << 10)
    before = files_of(home)
    refused(
        main("prepare", recipe_file, home=home), 1, str(home / "data"), "No space left", "Free some space"
    )
    assert files_of(home) == before
    filler.unlink()
    assert main("prepare", recipe_file, home=home).code == 0


def test_a_disk_full_from_the_start_costs_nothing(main: Main, recipe_file: Path, disk: Disk) -> None:
    home = disk("size=64k")
    fill(home)
    for verb in ("prepare", "train"):
        refused(main(verb, recipe_file, home=home), 1, str(home), "No space left", "set TRUEUP_HOME")
    assert files_of(home) == {"fill"}


def test_a_disk_that_fills_up_while_training(
    main: Main,
    finished_home: Path,
    recipe_file: Path,
    disk: Disk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run goes on to its end and is told whole; what the folder could not take lies elsewhere, and put
    back as the message says it makes the run whole."""
    home, elsewhere = disk("size=2m"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    shutil.copytree(finished_home / "models", home / "models")
    assert main("prepare", recipe_file, home=home).code == 0
    filler = fill(home, leave=LEFT_FOR_A_RUN)
    done = main("train", recipe_file, "--json", home=home)
    assert done.code == 1
    told = json.loads(done.out)
    assert (told["state"], told["reason"]) == ("finished", "all 6 steps done")
    assert "No space left on device" in done.err
    (rescued,) = elsewhere.glob("trueup-*")  # torch may have made a folder of its own
    assert f"the rest is in {rescued}: append its .jsonl files" in done.err
    assert main("runs", "list", home=home).code == 0

    filler.unlink()
    for path in rescued.iterdir():
        with (only_run(home) / path.name).open("ab" if path.suffix == ".jsonl" else "wb") as file:
            file.write(path.read_bytes())
    whole = json.loads(main("runs", "show", "last", "--json", home=home).out)
    assert whole["measurements"] == told["measurements"]
    assert whole["state"] == "finished"
    bill = json.loads(main("bill", "last", "--json", home=home).out)
    assert sum(line["usd"] for line in bill["lines"]) == pytest.approx(bill["total_usd"], rel=1e-9)


def test_a_full_disk_under_what_leaves_the_home(main: Main, finished: Path, disk: Disk) -> None:
    out = disk("size=64k")
    fill(out, leave=4096)
    for verb in (["report", "last", "-o"], ["runs", "export", "last", "-o"]):
        refused(main(*verb, out / "new"), 1, str(out / "new"), "No space left", "Free some space")
    for kind in ("--adapter", "--merged"):
        refused(main("export", "last", kind, out / "new"), 1, "No space left", "make room")
    assert files_of(out) == {"fill"}
    assert sorted(path.name for path in out.iterdir()) == ["fill"]


# --- a read-only disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["read-only", "full"])
def test_what_is_prepared_is_served_by_a_home_that_cannot_be_written(
    main: Main, finished_home: Path, recipe_file: Path, disk: Disk, trouble: str
) -> None:
    home = disk("size=2m")
    shutil.copytree(finished_home / "models", home / "models")
    first = json.loads(main("prepare", recipe_file, "--json", home=home).out)
    if trouble == "full":
        fill(home)
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
    before = files_of(home)
    again = main("prepare", recipe_file, "--json", home=home)
    assert again.code == 0, again.err
    assert json.loads(again.out) == {**first, "cache_hit": True}
    assert files_of(home) == before
    other = main("prepare", recipe_file, "--set", "data.max_length=80", home=home)
    refused(
        other,
        1 if trouble == "full" else 2,
        str(home / "data"),
        "set TRUEUP_HOME" if trouble == "full" else "Set TRUEUP_HOME",
    )
    assert files_of(home) == before


def test_a_read_only_home_still_tells(
    main: Main, finished_home: Path, recipe_file: Path, disk: Disk, tmp_path: Path
) -> None:
    home = disk("size=4m")
    shutil.copytree(finished_home, home, dirs_exist_ok=True)
    assert main("runs", "export", "last", "-o", tmp_path / "run.zip", home=home).code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
    assert [run["name"] for run in json.loads(main("runs", "list", "--json", home=home).out)] == ["tiny"]
    assert json.loads(main("bill", "tiny", "--json", home=home).out)["total_usd"] > 0
    assert main("report", "tiny", "-o", tmp_path / "r.html", home=home).code == 0
    assert main("export", "tiny", "--adapter", tmp_path / "a", home=home).code == 0
    for verb in (["train", recipe_file], ["prepare", recipe_file], ["runs", "import", tmp_path / "run.zip"]):
        refused(
            main(*verb, home=home),
            2,
            str(home),
            "Read-only file system",
            "et TRUEUP_HOME to a folder that can",
        )
    for verb in (["report", "tiny", "-o"], ["runs", "export", "tiny", "-o"]):
        refused(main(*verb, home / "new", home=home), 1, str(home / "new"), "Read-only file system", "-o")
    refused(
        main("export", "tiny", "--merged", home / "new", home=home), 1, "Read-only file system", "writable"
    )


# --- the database -----------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store waits a moment for a lock, not its ten seconds."""
    monkeypatch.setitem(Store.open.__func__.__kwdefaults__, "lock_timeout_s", 0.1)  # type: ignore[attr-defined]


def trained_without_database(main: Main, recipe_file: Path) -> Any:
    done = main("train", recipe_file, "--set", "train.max_steps=1", "--name", "meanwhile", "--json")
    assert done.code == 0
    assert "note: not in the database yet" in done.err
    return json.loads(done.out)


def names_listed(main: Main) -> set[str]:
    return {run["name"] for run in json.loads(main("runs", "list", "--json").out)}


def test_a_database_locked_for_the_whole_run(
    main: Main, finished: Path, recipe_file: Path, impatient: None
) -> None:
    """The run is told, kept in its folder, and taken in by the next command that can."""
    with closing(sqlite3.connect(finished / "trueup.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        told = trained_without_database(main, recipe_file)
        refused(main("runs", "list"), 1, "locked by another process", "Nothing is lost", "Try again")
        other.execute("ROLLBACK")
    assert names_listed(main) == {"meanwhile", "tiny"}
    assert json.loads(main("runs", "show", "meanwhile", "--json").out)["measurements"] == told["measurements"]


def test_a_damaged_database(main: Main, finished: Path, recipe_file: Path) -> None:
    """As told by the message, renaming it is all there is to do."""
    database = finished / "trueup.sqlite"
    database.write_bytes(b"no database " * 1000)
    refused(main("runs", "list"), 1, f"mv {database} {database}.damaged", "Nothing is lost")
    trained_without_database(main, recipe_file)
    database.rename(f"{database}.damaged")
    assert names_listed(main) == {"meanwhile", "tiny"}
    assert main("bill", "tiny").code == 0


# --- signals ----------------------------------------------------------------------------------------------


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `trueup` in a process of its own, to send it signals."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "trueup", *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


LONG = ["--set", "train.epochs=1000", "--set", "train.max_steps=4000", "--set", "evaluate.every=null"]


def after_first_step(home: Path) -> Path:
    """The run folder, once its first step is in it."""
    steps: list[Path] = []

    def stepped() -> bool:
        steps[:] = [path for path in home.glob("runs/*/steps.jsonl") if path.stat().st_size]
        return bool(steps)

    wait_for(stepped)
    return steps[0].parent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_training_keeps_what_was_measured(
    main: Main, built: Path, recipe_file: Path, start: Any, number: signal.Signals
) -> None:
    """Even when it is sent again and again, as by an impatient person."""
    process = start("train", recipe_file, *LONG, "--json")
    folder = after_first_step(built)
    process.send_signal(number)
    events = folder / "events.jsonl"
    wait_for(lambda: process.poll() is not None or (events.exists() and "interrupted" in events.read_text()))
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert "Traceback" not in err
    shown = json.loads(main("runs", "show", "last", "--json").out)
    assert shown["state"] == "interrupted"
    again = re.escape(f"trueup train {shlex.join([str(recipe_file), *LONG])} --resume {shown['id']}")
    assert re.fullmatch(
        rf"{number.name} received after step (\d+); what was measured is kept; go on from step \1: {again}",
        shown["reason"],
    )
    assert shown["measurements"]["useful_tokens"]["value"] > 0
    assert shown["measurements"]["eval_perplexity_first"]["value"] > 0
    spans = sum(span["seconds"] for span in shown["spans"])
    assert spans == pytest.approx(shown["wall_s"], abs=1e-3)
    assert json.loads(main("bill", "last", "--json").out)["total_usd"] > 0


def test_an_interrupt_before_the_first_step_is_recorded_too(
    main: Main, built: Path, recipe_file: Path, start: Any
) -> None:
    process = start("train", recipe_file, *LONG)
    wait_for(lambda: any(built.glob("runs/*/run.json")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "Traceback" in err) == (1, False), err
    assert json.loads(main("runs", "show", "last", "--json").out)["state"] == "interrupted"


def test_a_killed_run_is_shown_as_interrupted_and_billed(
    main: Main, built: Path, recipe_file: Path, start: Any
) -> None:
    process = start("train", recipe_file, *LONG)
    folder = after_first_step(built)
    assert json.loads(main("runs", "list", "--json").out)[0]["state"] == "running"
    process.kill()
    process.communicate()
    (run,) = json.loads(main("runs", "list", "--json").out)
    assert (run["id"], run["state"]) == (folder.name, "interrupted")
    assert f"the process ({process.pid}) ended without closing the run" in run["reason"]
    bill = json.loads(main("bill", "last", "--json").out)
    assert bill["useful_tokens"] > 0
    assert sum(line["seconds"] for line in bill["lines"]) == pytest.approx(run["wall_s"], rel=1e-9)
    assert bill["usd_per_million_useful_tokens"]["value"] > 0
    found = json.loads(main("runs", "show", "last", "--json").out)["measurements"]
    assert found["useful_tokens"]["value"] == bill["useful_tokens"]
    assert found["matmul_ceiling_flops_per_s"]["kind"] == "unavailable"  # it died with the process
    refused(main("export", "last", "--adapter", built / "a"), 2, "keeps no weights here")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_preparing_leaves_nothing_half_written(
    home: Path, recipe_file: Path, start: Any, number: signal.Signals
) -> None:
    process = start("prepare", recipe_file)
    wait_for(lambda: any(home.glob("models/.tiny.part-*")))
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, "")
    assert "Traceback" not in err
    assert f"{number.name} received" in err
    assert files_of(home) == {"models/.tiny.lock"}


def test_an_interrupt_at_any_moment_of_starting_up_gives_no_traceback(
    home: Path, recipe_file: Path, start: Any
) -> None:
    for delay_s in (0.05, 0.15, 0.4):
        process = start("prepare", recipe_file)
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        if "Remainder of file ignored" in err:
            continue  # Python was reading its .pth files, where it takes no interrupt for an end
        assert out == ""
        python_itself = any(said in err for said in ("Fatal Python error", "No module", "import runpy"))
        # else Python had not got as far as to run any code of ours: it ends by the signal or in its words
        if process.returncode == 1 and not python_itself:
            assert err.splitlines()[-1].startswith("trueup: SIGINT received")
            assert "Traceback" not in err


def test_a_run_whose_folder_is_taken_away(
    main: Main, built: Path, recipe_file: Path, start: Any, tmp_path: Path, environment: dict[str, str]
) -> None:
    """It goes on, tells all of itself, and says where the rest is."""
    environment["TMPDIR"] = str(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    process = start("train", recipe_file, *LONG, "--json")
    shutil.rmtree(after_first_step(built))
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "Traceback" in err) == (1, False), err
    assert json.loads(out)["state"] == "interrupted"
    (rescued,) = (tmp_path / "elsewhere").glob("trueup-*")
    assert str(rescued) in err
    assert "was removed by others" in err
    assert (rescued / "segments.jsonl").stat().st_size > 0
    assert json.loads((rescued / "run.json").read_text())["state"] == "interrupted"
