"""Saving while the run goes on: one save at a time, failures told and tried again, uploads apart."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from checkpoint_records import ORIGIN, contents, make_run, snapshot, tensors, value_in, write

from trueup.checkpoint import writer as writer_module
from trueup.checkpoint.carry import leave_later
from trueup.checkpoint.folder import (
    best_of,
    folder_name,
    newest_whole,
    read_manifest,
    steps,
    verified,
    write_checkpoint,
)
from trueup.checkpoint.retention import Retention
from trueup.checkpoint.snapshot import Snapshot
from trueup.checkpoint.writer import CheckpointWriter
from trueup.schema import StorageError

WAIT_S = 60  # for another thread, where all is well


@dataclass
class Told:
    """What the run's record would get."""

    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, kind: str, message: str, **data: Any) -> None:
        self.events.append((kind, message, data))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [data for found, _, data in self.events if found == kind]

    def steps(self, kind: str) -> list[int]:
        return [data["step"] for data in self.of(kind)]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.events]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run") / "checkpoints"


MakeWriter = Callable[..., CheckpointWriter]


@pytest.fixture
def make(root: Path, told: Told) -> Iterator[MakeWriter]:
    made: list[CheckpointWriter] = []

    def writer(upload: Callable[[Path], None] | None = None, **rules: int) -> CheckpointWriter:
        retention = Retention(**({"keep": 9} | rules))
        made.append(CheckpointWriter(root, retention=retention, tell=told, upload=upload))
        return made[-1]

    yield writer
    for one in made:
        one.wait()


class Gate:
    """Stands in for a function: it says that it was entered, and goes on when told to."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.entered.set()
        assert self.open.wait(WAIT_S)
        return self.function(*arguments)


# --- Saving -----------------------------------------------------------------------------------------------


def test_a_save_is_told_with_what_it_cost(root: Path, make: MakeWriter, told: Told) -> None:
    writer = make()
    writer.save(snapshot(20, why=("every", "best")))
    writer.wait()
    ((kind, message, data),) = told.events
    assert kind == "checkpoint"
    assert message.startswith("saved step 20: ")
    assert data["step"] == 20
    assert data["why"] == ["every", "best"]
    assert data["bytes"] == verified(root / "00000020").size_bytes
    assert data["seconds"] > 0
    assert data["left_out"] == []


def test_a_save_does_not_keep_the_caller_and_the_next_waits_for_it(
    root: Path, make: MakeWriter, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(write_checkpoint)
    monkeypatch.setattr(writer_module, "write_checkpoint", gate)
    writer = make()
    writer.save(snapshot(20))
    assert gate.entered.wait(WAIT_S)
    assert steps(root) == []  # save has returned, and nothing is written yet
    second = threading.Thread(target=writer.save, args=(snapshot(40),), daemon=True)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    gate.open.set()
    second.join(WAIT_S)
    assert not second.is_alive()
    assert told.steps("checkpoint")[0] == 20
    writer.wait()
    assert told.steps("checkpoint") == [20, 40]


def test_what_the_caller_changes_after_save_is_not_in_it(
    root: Path, make: MakeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytorch#144657 for all that is not tensors; Megatron-Bridge#3267 for the step."""
    gate = Gate(write_checkpoint)
    monkeypatch.setattr(writer_module, "write_checkpoint", gate)
    state: dict[str, Any] = {"losses": [1.0], "step": 20}
    writer = make()
    writer.save(snapshot(20, state=state))
    assert gate.entered.wait(WAIT_S)
    state["losses"].append(2.0)
    state["step"] = 21
    gate.open.set()
    writer.wait()
    assert verified(root / "00000020").state == {"losses": [1.0], "step": 20}


def test_old_ones_go_once_the_new_one_is_whole(root: Path, make: MakeWriter, told: Told) -> None:
    writer = make(keep=2)
    for step in (20, 40, 60, 80):
        writer.save(snapshot(step, best_step=20))
    writer.wait()
    assert steps(root) == [20, 60, 80]
    assert told.steps("checkpoint_removed") == [40]
    assert told.kinds.index("checkpoint_removed") > told.kinds.index("checkpoint", 3)
    assert told.of("checkpoint_removed")[0]["bytes"] > 1000


def test_a_damaged_manifest_does_not_end_retention(root: Path, make: MakeWriter, told: Told) -> None:
    write(root, 20, 40)
    (root / "00000020/manifest.json").write_text("torn")
    writer = make(keep=1)
    writer.save(snapshot(60))
    writer.wait()
    assert steps(root) == [60]
    assert told.steps("checkpoint_removed") == [20, 40]


def test_later_steps_of_a_course_that_was_left_go(root: Path, make: MakeWriter, told: Told) -> None:
    """After going back to step 20, the next save is at 40; to resume from 60 would take up the old course."""
    write(root, 20, 60, 80)
    writer = make(keep=2)
    writer.save(snapshot(40))
    writer.wait()
    assert steps(root) == [20, 40]
    assert told.steps("checkpoint_removed") == [60, 80]


def test_what_was_left_aside_goes_when_the_run_has_passed_it(
    root: Path, make: MakeWriter, told: Told
) -> None:
    write(root, 20, 60, 80)
    leave_later(root, 20)
    writer = make(keep=1)
    for step, left in ((40, ["00000060.left", "00000080.left"]), (60, ["00000080.left"]), (90, [])):
        writer.save(snapshot(step))
        writer.wait()
        assert sorted(path.name for path in root.iterdir()) == [f"{step:08d}", *left]
    assert told.steps("checkpoint_removed") == [20, 40, 60, 60, 80]


def test_an_attached_file_that_is_gone_is_left_out_and_told(root: Path, make: MakeWriter, told: Told) -> None:
    writer = make()
    writer.save(snapshot(20, attached={"compile-cache.zip": root / "none"}))
    writer.wait()
    assert told.of("checkpoint")[0]["left_out"] == ["compile-cache.zip"]
    assert "without compile-cache.zip" in told.events[0][1]
    verified(root / "00000020")


# --- Failing ----------------------------------------------------------------------------------------------


def test_a_full_disk_ends_nothing_and_saves_go_on_when_there_is_room(
    disk: Callable[[str], Path], told: Told
) -> None:
    place = disk("size=512k")
    root = make_run(place / "run") / "checkpoints"
    write(root, 20, 40)
    before = contents(root)
    large = tensors(1.0, 65536)
    writer = CheckpointWriter(root, retention=Retention(keep=1), tell=told)
    for step in (60, 80):
        writer.save(snapshot(step, tensors=large))
    writer.wait()
    assert told.kinds == ["checkpoint_failed"] * 2
    assert told.steps("checkpoint_failed") == [60, 80]
    assert all("No space left" in data["error"] for data in told.of("checkpoint_failed"))
    assert contents(root) == before  # what retention would remove is not given up for room
    subprocess.run(["mount", "-o", "remount,size=2m", str(place)], check=True)
    writer.save(snapshot(100, tensors=large))
    writer.save(snapshot(120, tensors=large))
    writer.wait()
    assert steps(root) == [120]
    messages = [message for kind, message, _ in told.events if kind == "checkpoint"]
    assert messages[0].endswith("the 2 saves before it had failed")
    assert "failed" not in messages[1]


def test_a_read_only_disk_ends_nothing(disk: Callable[[str], Path], told: Told) -> None:
    place = disk("size=1m")
    root = make_run(place / "run") / "checkpoints"
    writer = CheckpointWriter(root, retention=Retention(keep=1), tell=told)
    writer.save(snapshot(20))
    writer.wait()
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    writer.save(snapshot(40))
    writer.wait()
    assert told.kinds == ["checkpoint", "checkpoint_failed"]
    assert "Read-only" in told.of("checkpoint_failed")[0]["error"]
    found = newest_whole(root, pytest.fail)
    assert found is not None
    assert found[1].step == 20
    subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
    writer.save(snapshot(60))
    writer.wait()
    assert steps(root) == [60]
    assert told.events[2][1].endswith("the save before it had failed")


def test_a_run_folder_that_is_gone_is_told_and_not_made_again(
    root: Path, make: MakeWriter, told: Told
) -> None:
    writer = make()
    writer.save(snapshot(20))
    writer.wait()
    shutil.rmtree(root.parent)
    writer.save(snapshot(40, record=(root.parent / "steps.jsonl",)))
    writer.wait()
    assert not root.parent.exists()
    assert told.kinds == ["checkpoint", "checkpoint_failed"]
    assert "is gone; it is not made again" in told.of("checkpoint_failed")[0]["error"]


def test_the_old_best_stays_where_the_save_of_a_better_one_failed(
    root: Path, make: MakeWriter, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_or_fail(root: Path, snapshot: Snapshot) -> Path:
        if snapshot.step == 6:
            raise StorageError("No space left on device")
        return write_checkpoint(root, snapshot)

    monkeypatch.setattr(writer_module, "write_checkpoint", write_or_fail)
    writer = make(keep=2)
    for step, best in ((3, 3), (6, 6), (8, 6), (10, 6)):
        writer.save(snapshot(step, best_step=best))
    writer.wait()
    assert told.steps("checkpoint_failed") == [6]
    assert steps(root) == [3, 8, 10]
    assert [verified(root / folder_name(step)).best_step for step in steps(root)] == [3, 3, 3]
    assert best_of(root) == (root / "00000003", read_manifest(root / "00000003"))
    writer.save(snapshot(12, best_step=12))
    writer.wait()
    assert steps(root) == [10, 12]
    assert best_of(root) == (root / "00000012", read_manifest(root / "00000012"))


def test_a_best_that_was_never_saved_is_not_named(root: Path, make: MakeWriter) -> None:
    writer = make()
    writer.save(snapshot(20, best_step=10))
    writer.save(snapshot(40, best_step=10))
    writer.wait()
    assert [verified(root / folder_name(step)).best_step for step in steps(root)] == [None, None]


def test_one_that_cannot_be_removed_is_told_and_tried_again(
    root: Path, make: MakeWriter, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmtree = shutil.rmtree

    def refuse(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(1, "Operation not permitted")

    writer = make(keep=1)
    writer.save(snapshot(20))
    writer.wait()
    monkeypatch.setattr(shutil, "rmtree", refuse)
    writer.save(snapshot(40))
    writer.wait()
    assert told.kinds == ["checkpoint", "checkpoint", "checkpoint_not_removed"]
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert steps(root) == [40]
    writer.save(snapshot(60))
    writer.wait()
    assert [path.name for path in root.iterdir()] == ["00000060"]


def test_an_error_nobody_foresaw_is_told_and_the_next_save_works(
    root: Path, make: MakeWriter, told: Told
) -> None:
    writer = make()
    writer.save(snapshot(20, state={"bad": {1, 2}}))
    writer.save(snapshot(40))
    writer.wait()
    assert told.kinds == ["checkpoint_failed", "checkpoint"]
    assert told.of("checkpoint_failed")[0]["error"]
    assert [path.name for path in root.iterdir()] == ["00000040"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_hangs_nothing(
    make: MakeWriter, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(writer_module, "write_checkpoint", die)
        writer = make()
        writer.save(snapshot(20))
        writer.wait()
    writer.save(snapshot(40))
    writer.wait()
    assert told.steps("checkpoint") == [40]


@pytest.mark.parametrize("what", ["a disk", "a network"])
def test_the_interpreter_ends_although_a_thread_hangs(tmp_path: Path, what: str) -> None:
    probe = (
        "import sys, threading, pathlib\n"
        "from trueup.checkpoint.retention import Retention\n"
        "from trueup.checkpoint.snapshot import Snapshot\n"
        "from trueup.checkpoint import writer as module\n"
        "from trueup.checkpoint.manifest import Origin\n"
        "entered = threading.Event()\n"
        "def hang(*_): entered.set(); threading.Event().wait()\n"
        "tell = lambda kind, message, **data: print(kind, data['step'], flush=True)\n"
        f"root = pathlib.Path({str(tmp_path)!r}, 'checkpoints')\n"
        f"origin = Origin.model_validate_json({ORIGIN.model_dump_json()!r})\n"
        f"if {what!r} == 'a disk': module.write_checkpoint = hang\n"
        "writer = module.CheckpointWriter(root, retention=Retention(), tell=tell, upload=hang)\n"
        "writer.save(Snapshot(origin, 20, None, None, (), {}, {}))\n"
        "print(entered.wait(30))\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", probe],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [*(["checkpoint 20"] if what == "a network" else []), "True"]


# --- Uploading --------------------------------------------------------------------------------------------


def test_each_whole_checkpoint_is_uploaded(root: Path, make: MakeWriter, told: Told) -> None:
    seen: list[tuple[Path, int]] = []
    writer = make(lambda folder: seen.append((folder, verified(folder).step)))
    for step in (20, 40):
        writer.save(snapshot(step))
    writer.wait()
    assert seen == [(root / "00000020", 20), (root / "00000040", 40)]
    assert told.steps("checkpoint_uploaded") == [20, 40]


def test_a_slow_upload_keeps_no_save_waiting(root: Path, make: MakeWriter, told: Told) -> None:
    gate = Gate(lambda folder: None)
    writer = make(gate, keep=1)
    writer.save(snapshot(20))
    assert gate.entered.wait(WAIT_S)
    for step in (40, 60):
        writer.save(snapshot(step))
    writer.wait_for_write()
    assert told.steps("checkpoint") == [20, 40, 60]
    assert steps(root) == [20, 60]  # the one that is being read stays until it has been
    gate.open.set()
    writer.wait()
    assert told.steps("checkpoint_uploaded") == [20, 60]
    writer.save(snapshot(80))
    writer.wait()
    assert steps(root) == [80]


def test_a_failed_upload_is_told_and_tried_again(root: Path, make: MakeWriter, told: Told) -> None:
    tried: list[str] = []
    down = True

    def upload(folder: Path) -> None:
        tried.append(folder.name)
        if down:
            raise ConnectionError("503 Slow Down")

    writer = make(upload)
    writer.save(snapshot(20))
    writer.wait()
    assert tried == ["00000020"]
    assert told.of("upload_failed") == [{"step": 20, "error": "ConnectionError: 503 Slow Down"}]
    down = False
    writer.save(snapshot(40))
    writer.wait()
    assert tried == ["00000020", "00000040", "00000020"]
    assert told.steps("checkpoint_uploaded") == [40, 20]
    assert steps(root) == [20, 40]


class FarSide:
    """A place that can be down."""

    def __init__(self) -> None:
        self.down = True
        self.tried: list[int] = []

    def __call__(self, folder: Path) -> None:
        self.tried.append(int(folder.name))
        if self.down:
            raise ConnectionError("no route to host")


def test_the_last_upload_is_tried_again_at_the_end(make: MakeWriter, told: Told) -> None:
    far = FarSide()
    writer = make(far)
    writer.save(snapshot(20))
    writer.wait()
    far.down = False
    writer.finish()
    assert far.tried == [20, 20]
    assert told.steps("checkpoint_uploaded") == [20]
    assert len(told.of("upload_failed")) == 1


def test_a_far_side_that_stays_down_is_asked_once_for_each_save_and_once_at_the_end(
    make: MakeWriter, told: Told
) -> None:
    far = FarSide()
    writer = make(far)
    for step in (20, 40, 60, 80):
        writer.save(snapshot(step))
        writer.wait()
    assert far.tried == [20, 40, 60, 80]
    writer.finish()
    assert far.tried == [20, 40, 60, 80, 80]
    assert told.of("upload_failed")[-1] == {"step": 80, "steps": [20, 40, 60, 80]}
    assert told.events[-1][1] == "4 checkpoints are on the local disk alone, the last of step 80"
    assert "tried again" not in told.events[-2][1]


def test_all_that_had_failed_go_when_one_arrives_at_the_end(make: MakeWriter, told: Told) -> None:
    far = FarSide()
    writer = make(far)
    for step in (20, 40, 60):
        writer.save(snapshot(step))
        writer.wait()
    far.down = False
    writer.finish()
    assert sorted(told.steps("checkpoint_uploaded")) == [20, 40, 60]
    assert told.kinds[-1] == "checkpoint_uploaded"


def test_the_newest_that_is_still_there_is_tried_again_at_the_end(
    root: Path, make: MakeWriter, told: Told
) -> None:
    """The run has gone back before the newest that failed."""
    far = FarSide()
    writer = make(far)
    for step in (20, 40):
        writer.save(snapshot(step))
        writer.wait()
    (root / "00000040").rename(root / "00000040.left")
    far.down = False
    writer.finish()
    assert far.tried == [20, 40, 20]
    assert told.steps("checkpoint_uploaded") == [20]


def test_of_those_that_wait_while_one_fails_the_newest_is_tried(make: MakeWriter) -> None:
    far = FarSide()
    gate = Gate(far)
    writer = make(gate)
    writer.save(snapshot(20))
    assert gate.entered.wait(WAIT_S)
    for step in (40, 60, 80):
        writer.save(snapshot(step))
    writer.wait_for_write()
    gate.open.set()
    writer.wait()
    assert far.tried == [20, 80]


def test_one_that_can_never_go_keeps_no_other_waiting(make: MakeWriter, told: Told) -> None:
    def upload(folder: Path) -> None:
        if folder.name == "00000020":
            raise ConnectionError("refused")

    writer = make(upload)
    for step in (20, 40, 60):
        writer.save(snapshot(step))
    writer.finish()
    assert sorted(told.steps("checkpoint_uploaded")) == [40, 60]
    assert told.of("upload_failed")[-1]["steps"] == [20]


def test_one_that_was_removed_is_not_offered_again(make: MakeWriter, told: Told) -> None:
    tried: list[str] = []

    def fail(folder: Path) -> None:
        tried.append(folder.name)
        raise OSError("down")

    writer = make(fail, keep=1)
    for step in (20, 40):
        writer.save(snapshot(step))
        writer.wait()
    writer.wait()
    assert tried == ["00000020", "00000040"]
    assert told.steps("checkpoint_removed") == [20]


def test_a_step_done_again_waits_for_its_older_upload(root: Path, make: MakeWriter) -> None:
    seen: list[float] = []
    gate = Gate(lambda folder: seen.append(value_in(folder)))
    writer = make(gate)
    writer.save(snapshot(20, value=1.0))
    assert gate.entered.wait(WAIT_S)
    writer.save(snapshot(20, value=2.0))
    assert value_in(root / "00000020") == 1.0
    gate.open.set()
    writer.wait()
    assert seen == [1.0, 2.0]


def test_a_failed_save_uploads_nothing(root: Path, make: MakeWriter, told: Told) -> None:
    tried: list[Path] = []
    writer = make(tried.append)
    shutil.rmtree(root.parent)
    writer.save(snapshot(20))
    writer.wait()
    assert tried == []
    assert told.kinds == ["checkpoint_failed"]


def test_snapshots_are_let_go_before_the_upload(make: MakeWriter) -> None:
    """Two copies of a model's state must not lie in memory for as long as a network takes."""
    import gc

    gate = Gate(lambda folder: None)
    writer = make(gate)
    writer.save(snapshot(20))
    assert gate.entered.wait(WAIT_S)
    writer.wait_for_write()
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is Snapshot]
    gate.open.set()
    writer.wait()


def test_nothing_is_done_where_nothing_was_saved(root: Path, make: MakeWriter, told: Told) -> None:
    writer = make()
    writer.wait()
    writer.wait()
    writer.wait()
    assert told.events == []
    assert not os.path.exists(root)
