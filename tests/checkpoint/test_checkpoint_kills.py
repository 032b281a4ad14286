"""A writer killed at any call that touches the disk: the old checkpoints are there or the new, whole, and the
next writer cleans up."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from checkpoint_records import in_memory, make_run, snapshot, value_in

from trueup.checkpoint.folder import newest_whole, steps, verified, write_checkpoint
from trueup.checkpoint.retention import Retention
from trueup.checkpoint.writer import CheckpointWriter

CALLS = ("fsync", "rename", "replace", "unlink", "remove", "rmdir", "mkdir", "chmod", "open", "write")
MANY = 400  # more calls than any of these writers makes


class Killer:
    """Counts calls, and kills this process at the n-th."""

    def __init__(self, at: int) -> None:
        self.left = at

    def passes(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.passes()
            return call(*arguments, **named)

        return counted


def arm(at: int) -> None:
    """In the process that is to be killed."""
    killer = Killer(at)
    for name in CALLS:
        setattr(os, name, killer.before(getattr(os, name)))
    shutil.copyfile = killer.before(shutil.copyfile)
    save_file, plain_open = safetensors.torch.save_file, builtins.open

    def save_in_two(tensors: Any, path: Path, **named: Any) -> None:
        save_file(tensors, path, **named)
        raw = path.read_bytes()
        path.write_bytes(raw[: len(raw) // 2])
        killer.passes()  # half of it is there
        path.write_bytes(raw)

    def open_empty(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        stream = plain_open(file, mode, *arguments, **named)
        if mode != "r" and "b" in mode:
            killer.passes()  # the file is there, and nothing in it
        return stream

    safetensors.torch.save_file = save_in_two
    io.open = builtins.open = open_empty  # type: ignore[assignment]


def killed_at(at: int, work: Callable[[], None]) -> bool:
    """Do the work in a fork of this process, which is killed at its n-th call. False where it ends before."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            arm(at)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.fixture
def run() -> Iterator[Path]:
    with in_memory("kills") as folder:
        yield make_run(folder / "run")


def at_every_call(
    run: Path, old: dict[int, float], work: Callable[[], None], every: int = 1
) -> Iterator[int]:
    """Yields after each kill, the old checkpoints (step: value) there before it."""
    root, kept = run / "checkpoints", run / "kept"
    kept.mkdir()
    for step, value in old.items():
        write_checkpoint(kept, given(run, step, value))
    for at in range(1, MANY, every):
        shutil.rmtree(root, ignore_errors=True)
        if old:
            shutil.copytree(kept, root)
        if not killed_at(at, work):
            return
        yield at
    pytest.fail("it did not end")


def newest(root: Path) -> Path:
    found = newest_whole(root, pytest.fail)
    assert found is not None
    return found[0]


def given(run: Path, step: int, value: float) -> Any:
    cache = run / "cache.zip"
    cache.write_bytes(b"compiled code")
    record = (run / "run.json", run / "steps.jsonl")
    return snapshot(step, value=value, record=record, attached={"compile/cache.zip": cache}, best_step=step)


def assert_clean_after_next(run: Path, expected: list[int]) -> None:
    """A following write succeeds, and only whole checkpoints are left."""
    root = run / "checkpoints"
    write_checkpoint(root, given(run, 90, 9.0))
    assert steps(root) == [*expected, 90]
    assert sorted(path.name for path in root.iterdir()) == [f"{step:08d}" for step in (*expected, 90)]
    assert value_in(newest(root)) == 9.0


def test_while_it_writes_the_next_step(run: Path) -> None:
    root = run / "checkpoints"
    new = given(run, 60, 6.0)
    kills, values = 0, []
    for _ in at_every_call(
        run,
        {20: 2.0, 40: 4.0},
        lambda: write_checkpoint(root, new) and None,
    ):
        kills += 1
        values.append(value_in(newest(root)))
        assert values[-1] in (4.0, 6.0)
        left = steps(root)
        assert left == ([20, 40] if values[-1] == 4.0 else [20, 40, 60])
        for step in left:
            verified(root / f"{step:08d}")
        assert_clean_after_next(run, left)
    assert kills > 30
    assert values == sorted(values)  # from some call on it is the new one
    assert {*values} == {4.0, 6.0}


def test_while_it_writes_the_first(run: Path) -> None:
    root = run / "checkpoints"
    new = given(run, 20, 2.0)
    kills = 0
    for _ in at_every_call(run, {}, lambda: write_checkpoint(root, new) and None):
        kills += 1
        found = newest_whole(root, pytest.fail)
        assert found is None or value_in(found[0]) == 2.0
        assert_clean_after_next(run, [] if found is None else [20])
    assert kills > 30


def test_while_it_does_a_step_again(run: Path) -> None:
    """Also between the two renames, where neither has its name."""
    root = run / "checkpoints"
    new = given(run, 40, 5.0)
    kills, values, aside = 0, [], 0
    for _ in at_every_call(
        run,
        {40: 4.0},
        lambda: write_checkpoint(root, new) and None,
    ):
        kills += 1
        aside += not (root / "00000040").exists()
        if kills % 2:  # a reader comes first, or the next writer
            values.append(value_in(newest(root)))
            assert values[-1] in (4.0, 5.0)
        assert_clean_after_next(run, [40])
        assert value_in(root / "00000040") in (4.0, 5.0)
    assert kills > 40
    assert aside
    assert values == sorted(values)
    assert {*values} == {4.0, 5.0}


def test_while_it_removes_old_ones(run: Path) -> None:
    """pytorch-lightning#20953: what a killed run leaves is whole or is not taken for a checkpoint."""
    root = run / "checkpoints"
    new = given(run, 60, 6.0)

    def write_and_retire() -> None:
        writer = CheckpointWriter(root, retention=Retention(keep=1), tell=lambda *_, **__: None)
        writer.save(new)
        writer.wait()

    kills = removed = 0
    for _ in at_every_call(
        run,
        {20: 2.0, 40: 4.0},
        write_and_retire,
        every=2,
    ):
        kills += 1
        assert value_in(newest(root)) in (4.0, 6.0)
        left = steps(root)
        removed += 20 not in left
        for step in left:
            verified(root / f"{step:08d}")
        assert_clean_after_next(run, left)
    assert kills > 30
    assert removed > 5
