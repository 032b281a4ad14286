"""Whole runs in which steps fail: what is recorded, and what the next run makes of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from trueup.analysis.learnt import learnt_profile
from trueup.checkpoint.choose import chosen
from trueup.checkpoint.folder import load_tensors
from trueup.checkpoint.manifest import WEIGHTS
from trueup.train import stepper
from trueup.train.session import Session

EAGER = ("compile.mode=none", "evaluate.every=null")


@pytest.fixture(autouse=True)
def no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trueup.train.session.CEILING_BUDGET_S", 0.01)


def no_number_in(monkeypatch: pytest.MonkeyPatch, *calls: int) -> None:
    original, count = stepper.accumulate, [0]

    def patched(session: Session, *arguments: Any) -> float:
        loss = original(session, *arguments)
        count[0] += 1
        return math.nan if count[0] in calls else loss

    monkeypatch.setattr(stepper, "accumulate", patched)


def test_a_run_that_skips_a_step_finishes_and_says_which(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_number_in(monkeypatch, 2)
    outcome, sink = run_tiny(*EAGER, "failure.non_finite=skip")
    assert outcome.header.state == "finished", outcome.header.reason
    assert [step.skipped for step in sink.steps] == [False, True, False, False, False, False]
    assert outcome.measurements["skipped_steps_count"].value == 1
    (event,) = (event for event in sink.events if event.kind == "non_finite")
    assert event.data["step"] == 2
    assert event.data["action"] == "skip"


def test_a_run_that_goes_back_to_its_checkpoint_finishes_at_a_smaller_rate(
    run_tiny: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "weights"):  # the run's own folder, which its recorder would make
        (home / name).mkdir(exist_ok=True)
    no_number_in(monkeypatch, 4)
    overrides = ("failure.non_finite=rollback", "checkpoint.every=2", "schedule.kind=constant")
    outcome, sink = run_tiny(*EAGER, *overrides, "schedule.warmup_steps=0")
    assert outcome.header.state == "finished", outcome.header.reason
    assert [step.step for step in sink.steps] == [1, 2, 3, 3, 4, 5, 6]
    assert sink.steps[3].lr == pytest.approx(sink.steps[2].lr / 2)
    assert [event.kind for event in sink.events if event.kind in ("non_finite", "rollback")] == [
        *("non_finite", "rollback")
    ]


def test_without_a_checkpoint_to_go_back_to_the_run_ends_and_says_so(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_number_in(monkeypatch, 2)
    outcome, _ = run_tiny(*EAGER, "failure.non_finite=rollback")
    assert outcome.header.state == "failed"
    assert "checkpoint.every" in str(outcome.header.reason)


def test_a_divergence_ends_the_run_after_the_step_is_recorded(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, count = stepper.accumulate, [0]

    def patched(session: Session, *arguments: Any) -> float:
        count[0] += 1
        return original(session, *arguments) * (9 if count[0] > 5 else 1)

    monkeypatch.setattr(stepper, "accumulate", patched)
    settings = ("train.max_steps=20", "train.epochs=9", "failure.divergence.steps=3")
    outcome, sink = run_tiny(*EAGER, *settings)
    assert outcome.header.state == "failed"
    assert len(sink.steps) == 8
    assert "running median" in str(outcome.header.reason)
    assert sink.events[-1].data["last_step"] == 8
    assert sink.events[-1].data["cause"] == "DivergedError"


def test_a_divergence_goes_back_to_before_it_however_frequent_the_saves(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two newest checkpoints are of the steps in which it diverged."""
    original, count = stepper.accumulate, [0]

    def patched(session: Session, *arguments: Any) -> float:
        count[0] += 1
        return original(session, *arguments) * (9 if 7 < count[0] <= 12 else 1)

    monkeypatch.setattr(stepper, "accumulate", patched)
    settings = ("train.max_steps=14", "train.epochs=9", "checkpoint.every=1", "checkpoint.keep=2")
    outcome, sink = run_tiny(*EAGER, *settings, "failure.divergence.action=rollback")
    assert outcome.header.state == "finished", outcome.header.reason
    (back,) = (event for event in sink.events if event.kind == "rollback")
    assert back.data["failed_at"] == 12
    assert back.data["step"] < 8
    assert sink.steps[-1].step == 14


LARGE = (*EAGER, "shapes.tokens_per_microbatch=192", "train.tokens_per_step=384", "train.max_steps=3")


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is memory for 100 tokens of a micro-batch."""
    original = stepper.micro_batch_loss

    def refusing(session: Session, micro_batch: Any, phase: Any) -> torch.Tensor:
        if micro_batch.processed_tokens > 100:
            raise torch.OutOfMemoryError("out of memory")
        return original(session, micro_batch, phase)

    monkeypatch.setattr(stepper, "micro_batch_loss", refusing)


def trained(home: Path) -> dict[str, torch.Tensor]:
    """The weights of the last checkpoint."""
    folder, _, _ = chosen(home / "run", "last", print)
    return load_tensors(folder, WEIGHTS)


def test_a_run_that_goes_on_in_smaller_micro_batches_learns_the_same(
    run_tiny: Any, home: Path, request: pytest.FixtureRequest
) -> None:
    _, whole = run_tiny(*LARGE)
    expected = trained(home)
    request.getfixturevalue("little_memory")
    _, split = run_tiny(*LARGE)
    assert max(math.prod(step.shape) for step in whole.steps) > 100
    assert max(math.prod(step.shape) for step in split.steps) <= 100
    losses = [[step.loss for step in one.steps] for one in (whole, split)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for name, weight in trained(home).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-5, msg=name)


def test_the_next_run_starts_with_what_this_one_went_on_with(run_tiny: Any, little_memory: None) -> None:
    outcome, sink = run_tiny(*LARGE)
    assert outcome.header.state == "finished", outcome.header.reason
    assert all(math.prod(step.shape) <= 100 for step in sink.steps)
    assert [event.kind for event in sink.events].count("out_of_memory") == 1
    device = outcome.header.environment["device"]
    profile = learnt_profile(
        [outcome.record],
        outcome.header.recipe,
        device_kind=device["kind"],
        device_name=device["name"],
        static=False,
    )
    assert profile is not None
    assert profile.micro_batch_tokens is not None
    assert profile.micro_batch_tokens <= 100
