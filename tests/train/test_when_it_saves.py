"""For what reasons a run saves itself, beside every so many steps, which others test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trueup.checkpoint.folder import checkpoints_of, folder_name, read_manifest, steps
from trueup.schema.run import CHECKPOINT_NOW_FILE
from trueup.train import recovery

PLAIN = ("compile.mode=none", "evaluate.every=null", "checkpoint.keep=9", "checkpoint.best=false")
Run = Callable[..., tuple[Any, Any]]


def reasons(home: Path) -> dict[int, tuple[str, ...]]:
    """Why each checkpoint of the run was made, by step."""
    root = checkpoints_of(home / "run")
    return {step: read_manifest(root / folder_name(step)).why for step in steps(root)}


def test_every_so_many_minutes(run_tiny: Run, home: Path) -> None:
    run_tiny(*PLAIN, "checkpoint.minutes=1e-9", "train.max_steps=3")
    assert reasons(home) == {1: ("minutes",), 2: ("minutes",), 3: ("minutes", "last")}


def test_not_before_the_minutes_are_over(run_tiny: Run, home: Path) -> None:
    run_tiny(*PLAIN, "checkpoint.minutes=1000", "train.max_steps=3")
    assert reasons(home) == {3: ("last",)}


def test_on_a_file_that_somebody_touches(run_tiny: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_step, count = recovery.train_step, 0

    def touching(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            (home / "run" / CHECKPOINT_NOW_FILE).touch()
        return train_step(*arguments)

    monkeypatch.setattr(recovery, "train_step", touching)
    run_tiny(*PLAIN, "train.max_steps=4")
    assert reasons(home) == {2: ("asked",), 4: ("last",)}
    assert not (home / "run" / CHECKPOINT_NOW_FILE).exists()


def test_on_the_guards_word(run_tiny: Run, home: Path) -> None:
    rule = "guard.rules=[{watch: loss, above: 0.0, window_s: 1.0e-3, action: checkpoint}]"
    _, sink = run_tiny(*PLAIN, rule, "train.max_steps=3")
    assert reasons(home) == {1: ("asked",), 3: ("last",)}
    assert [event.kind for event in sink.events if event.kind.startswith("guard")] == ["guard_checkpoint"]


def test_at_the_best_evaluation(run_tiny: Run, home: Path) -> None:
    _, sink = run_tiny(*PLAIN, "checkpoint.best=true", "evaluate.every=2", "train.max_steps=5")
    best = [one.step for one in sink.evaluations if one.best and one.step]
    assert best
    assert [step for step, why in reasons(home).items() if "best" in why] == best
