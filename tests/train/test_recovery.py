"""What becomes of a step that failed: skipped, rolled back, or done again in smaller micro-batches."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trueup.recipe.models import PrecisionSection
from trueup.recipe.survival import DivergenceSection, FailureSection
from trueup.schema import Event
from trueup.train import stepper
from trueup.train.divergence import FEWEST, DivergedError, Divergence
from trueup.train.failure import NoMemoryError
from trueup.train.recovery import Recovery, RollBack
from trueup.train.scaling import LossScaler
from trueup.train.session import Session
from trueup.train.stepper import NonFiniteError, StepResult

WIDE = ("shapes.tokens_per_microbatch=192", "train.tokens_per_step=384", "compile.mode=none")


@pytest.fixture(autouse=True)
def no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trueup.train.session.CEILING_BUDGET_S", 0.01)


def take_steps(
    session: Session, recovery: Recovery, count: int, lr: float = 1e-2, first: int = 0
) -> list[StepResult]:
    """As the loop does it."""
    results = []
    for n in range(first, first + count):
        planned = session.epoch(0)[n]
        batch = recovery.gather(session, planned)
        results.append(recovery.step(session, planned, batch, lr, step=n + 1))
        recovery.look(session, results[-1], lr, step=n + 1)
    return results


def weights_of(session: Session) -> list[torch.Tensor]:
    return [p.detach().clone() for _, p in session.model.trainable]


def events_of(session: Session, kind: str) -> list[Event]:
    sink: Any = session.timeline._sink
    return [event for event in sink.events if event.kind == kind]


def policy(session: Session, **changes: Any) -> Recovery:
    section = FailureSection.model_validate(changes)
    return Recovery(section, LossScaler(session.recipe.precision))


def no_number_in(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """The gradient of these calls of `accumulate` is NaN."""
    original, calls = stepper.accumulate, [0]

    def patched(session: Session, *arguments: Any) -> float:
        loss = original(session, *arguments)
        calls[0] += 1
        if calls[0] in steps:
            gradient = session.model.trainable[0][1].grad
            assert gradient is not None
            gradient[0, 0] = math.nan
        return loss

    monkeypatch.setattr(stepper, "accumulate", patched)


def little_memory(monkeypatch: pytest.MonkeyPatch, tokens: int) -> list[tuple[int, int]]:
    """Micro-batches of more tokens raise, half of them in the backward pass. Returns the shapes refused."""
    original = stepper.micro_batch_loss
    refused: list[tuple[int, int]] = []

    def patched(session: Session, micro_batch: Any, phase: Any) -> torch.Tensor:
        loss = original(session, micro_batch, phase)
        if micro_batch.processed_tokens > tokens:
            refused.append(micro_batch.shape)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return loss

    monkeypatch.setattr(stepper, "micro_batch_loss", patched)
    return refused


# No number.


def test_a_step_without_a_number_ends_the_run_by_default(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_tiny()
    no_number_in(monkeypatch, 2)
    recovery = Recovery.of(session)
    take_steps(session, recovery, 1)
    before = weights_of(session)
    with pytest.raises(NonFiniteError, match=r"optimizer\.lr"):
        take_steps(session, recovery, 1, first=1)
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(session), strict=True))
    (event,) = events_of(session, "non_finite")
    assert {"step", "lr", "loss_scale", "module", "direction", "batch_examples", "norms"} <= event.data.keys()
    assert event.data["step"] == 2
    assert event.data["grad_norm"] == "nan"
    json.dumps(event.data, allow_nan=False)


def test_a_skipped_step_leaves_no_trace_but_its_place(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and optimizer state are those of a run that never had the step; the random state is that of a
    run that had it."""
    without = open_tiny("tune.dropout=0.3")
    recovery = policy(without, non_finite="skip")
    take_steps(without, recovery, 1)
    random = torch.get_rng_state()
    stepper.accumulate(without, recovery.gather(without, without.epoch(0)[1]))  # draws as the step does
    after_draws = torch.get_rng_state()
    assert not torch.equal(random, after_draws)
    without.optimizer.zero_grad(set_to_none=True)
    take_steps(without, recovery, 1, first=2)

    session = open_tiny("tune.dropout=0.3")
    no_number_in(monkeypatch, 2)
    recovery = policy(session, non_finite="skip")
    results = take_steps(session, recovery, 2)
    assert [result.skipped for result in results] == [False, True]
    assert torch.equal(torch.get_rng_state(), after_draws)
    assert all(p.grad is None for _, p in session.model.trainable)
    take_steps(session, recovery, 1, first=2)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(without), weights_of(session), strict=True))


def test_skips_in_a_row_are_limited_and_a_good_step_forgives(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_tiny("train.tokens_per_step=96")
    no_number_in(monkeypatch, 1, 2, 4, 5, 6)
    recovery = policy(session, non_finite="skip", most=2)
    results = take_steps(session, recovery, 5)
    assert [result.skipped for result in results] == [True, True, False, True, True]
    with pytest.raises(NonFiniteError, match="2 skips or rollbacks in a row"):
        take_steps(session, recovery, 1, first=5)


def test_rollbacks_to_before_the_same_step_are_limited(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good steps on the way back to where it failed do not count as progress."""
    session = open_tiny("train.tokens_per_step=96")
    no_number_in(monkeypatch, 3, 6, 9)
    recovery = policy(session, non_finite="rollback", most=2)
    saved = recovery.state()
    for _ in range(2):
        with pytest.raises(RollBack, match="gradient norm nan"):
            take_steps(session, recovery, 3)
        recovery.restore(json.loads(json.dumps(saved)))
    with pytest.raises(NonFiniteError, match="in a row"):
        take_steps(session, recovery, 3)


def test_a_rollback_that_gets_past_the_step_starts_the_count_anew(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_tiny("train.tokens_per_step=96")
    no_number_in(monkeypatch, 3, 8)
    recovery = policy(session, non_finite="rollback", most=1)
    saved = recovery.state()
    with pytest.raises(RollBack):
        take_steps(session, recovery, 3)
    recovery.restore(saved)
    take_steps(session, recovery, 4)
    with pytest.raises(RollBack):
        take_steps(session, recovery, 1, first=4)


# Loss scale.


def test_a_loss_scale_of_a_power_of_two_changes_no_bit(open_tiny: Any) -> None:
    found = []
    for scale in ("precision.loss_scale='off'", "precision.loss_scale=static"):
        session = open_tiny(scale)
        results = take_steps(session, Recovery.of(session), 3)
        found.append(([(r.loss, r.grad_norm) for r in results], weights_of(session)))
        assert results[0].loss_scale == (1.0 if "off" in scale else 65536.0)
    (plain, scaled) = found
    assert plain[0] == scaled[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], scaled[1], strict=True))


def test_a_dynamic_scale_skips_without_looking_and_without_counting(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_tiny("precision.loss_scale=dynamic", "train.tokens_per_step=96")
    no_number_in(monkeypatch, 1, 2, 3)
    recovery = policy(session, most=1)
    results = take_steps(session, recovery, 4)
    assert [result.skipped for result in results] == [True, True, True, False]
    assert [result.loss_scale for result in results] == [65536.0, 32768.0, 16384.0, 8192.0]
    assert not events_of(session, "non_finite")
    assert recovery.state()["loss_scale"]["scale"] == 8192.0


def test_no_scale_mends_a_loss_that_is_no_number(open_tiny: Any) -> None:
    session = open_tiny("precision.loss_scale=dynamic", "tune.method=full")
    with torch.no_grad():
        session.model.base.model.layers[1].mlp.down_proj.weight[0, 0] = math.inf
    with pytest.raises(NonFiniteError, match=r"model\.layers\.1\.mlp\.down_proj"):
        take_steps(session, Recovery.of(session), 1)
    (event,) = events_of(session, "non_finite")
    assert event.data["loss_scale"] == 65536.0
    assert event.data["loss"] in ("nan", "inf")


# Out of memory.


@pytest.mark.parametrize("strategy", ["pack", "bucket", "max", "longest"])
@pytest.mark.parametrize(("wide", "tolerance"), [(True, 1e-9), (False, 1e-5)])
def test_a_step_in_smaller_micro_batches_is_the_same_step(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch, strategy: str, wide: bool, tolerance: float
) -> None:
    overrides = (*WIDE, f"shapes.strategy={strategy}")
    undisturbed = open_tiny(*overrides, wide=wide)
    expected = take_steps(undisturbed, Recovery.of(undisturbed), 3)
    session = open_tiny(*overrides, wide=wide)
    refused = little_memory(monkeypatch, 100)
    recovery = Recovery.of(session)
    results = take_steps(session, recovery, 3)
    assert refused
    for one, other in zip(expected, results, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=tolerance)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=tolerance)
        assert other.batch.counts.supervised == one.batch.counts.supervised
        assert other.batch.counts.useful == one.batch.counts.useful
        assert math.prod(other.batch.shape) <= 100
        assert other.batch.micro_batches > one.batch.micro_batches or one.batch.shape[0] == 1
    for a, b in zip(weights_of(undisturbed), weights_of(session), strict=True):
        assert float((a - b).norm() / a.norm()) < tolerance


def test_the_split_is_kept_and_its_finding_recorded(open_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_tiny(*WIDE)
    refused = little_memory(monkeypatch, 100)
    recovery = Recovery.of(session)
    take_steps(session, recovery, 3)
    events = events_of(session, "out_of_memory")
    assert len(events) == len(refused) < 3
    assert events[0].data["refused"] == list(refused[0])
    assert events[0].data["tokens"] == math.prod(refused[0])
    assert events[0].data["done"] == "halved"
    assert events[-1].data["at_most"] == recovery.most_tokens
    resumed = Recovery.of(session)
    resumed.restore(json.loads(json.dumps(recovery.state())))
    count = len(refused)
    take_steps(session, resumed, 1)
    assert len(refused) == count, "it began with the size that had failed"


def test_a_retry_begins_with_the_random_state_of_the_step(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_tiny(*WIDE, "tune.dropout=0.3")
    recovery = Recovery.of(session)
    recovery.most_tokens = 96
    torch.manual_seed(3)
    (expected,) = take_steps(session, recovery, 1, lr=0.0)
    little_memory(monkeypatch, 100)
    torch.manual_seed(3)
    again = Recovery.of(session)
    (result,) = take_steps(session, again, 1, lr=0.0)
    assert again.most_tokens == 96
    assert result.loss == expected.loss


def test_nothing_of_the_failed_attempt_is_held(open_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error's traceback holds the frames it went through, and they hold the activations."""
    session = open_tiny(*WIDE)
    held: list[weakref.ref[torch.Tensor]] = []
    original = stepper.micro_batch_loss

    def patched(session: Session, micro_batch: Any, phase: Any) -> torch.Tensor:
        loss = original(session, micro_batch, phase)
        if not held:
            held.append(weakref.ref(loss))
            raise torch.OutOfMemoryError("out of memory")
        assert held[0]() is None
        return loss

    monkeypatch.setattr(stepper, "micro_batch_loss", patched)
    monkeypatch.setattr("trueup.train.recovery.gc.collect", lambda: 0)
    take_steps(session, Recovery.of(session), 1)


@pytest.mark.parametrize("where", ["stop", "too small"])
def test_where_nothing_can_be_split_the_run_ends_with_the_finding(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    session = open_tiny(*WIDE)
    little_memory(monkeypatch, 100 if where == "stop" else 1)
    recovery = policy(session, out_of_memory="stop" if where == "stop" else "halve")
    before = weights_of(session)
    with pytest.raises(NoMemoryError, match="no memory for a micro-batch of") as caught:
        take_steps(session, recovery, 1)
    assert ("failure.out_of_memory is stop" in str(caught.value)) == (where == "stop")
    assert events_of(session, "out_of_memory")[-1].data["done"] == "ended"
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(session), strict=True))
    assert all(p.grad is None for _, p in session.model.trainable)


def test_where_shapes_are_fixed_no_other_is_made(open_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_tiny(*WIDE, "shapes.strategy=max")
    (full,) = session.plan.full
    fixed = {"static": True, "training": (full, (1, full[1]))}
    little_memory(monkeypatch, 100)
    with_a_row = replace(session, plan=session.plan.model_copy(update=fixed))
    (result,) = take_steps(with_a_row, Recovery.of(with_a_row), 1)
    assert result.batch.shape == (1, full[1])
    without = replace(session, plan=session.plan.model_copy(update=fixed | {"training": (full,)}))
    with pytest.raises(NoMemoryError, match="cannot be cut"):
        take_steps(without, Recovery.of(without), 1)


def test_memory_that_runs_out_in_the_update_is_not_tried_again(
    open_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some weights may have been moved already."""
    session = open_tiny()

    def step() -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(session.optimizer, "step", step)
    with pytest.raises(torch.OutOfMemoryError):
        take_steps(session, Recovery.of(session), 1)


# Divergence.


def verdicts(losses: Sequence[float], **section: Any) -> list[bool]:
    divergence = Divergence(DivergenceSection.model_validate(section))
    return [divergence.look(loss, step) for step, loss in enumerate(losses, start=1)]


LEVEL = [2.0] * FEWEST


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([7.0] * 4, None),
        ([7.0] * 5, 4),
        ([7.0] * 4 + [2.0] + [7.0] * 4, None),
        ([7.0, 7.0, 2.0] * 5, None),
        ([5.9] * 20, None),
        ([7.0, math.nan, 7.0, 7.0, math.inf], 4),  # left out: it counts in a row that has begun,
        ([math.nan] * 4 + [7.0] * 5, 8),  # and begins none
    ],
)
def test_divergence_is_so_many_losses_in_a_row(losses: list[float], expected: int | None) -> None:
    found = verdicts([*LEVEL, *losses])[len(LEVEL) :]
    assert (found.index(True) if True in found else None) == expected


def test_nothing_is_a_divergence_before_there_is_a_level_or_near_zero() -> None:
    assert not any(verdicts([1.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0]))
    assert not any(verdicts([1e-4] * 10 + [5e-2] * 10))


def test_the_verdict_does_not_depend_on_a_resume_in_between() -> None:
    losses = [*LEVEL, *[2.5] * 60, *[9.0] * 4, math.nan, *[9.0] * 2]
    whole = Divergence(DivergenceSection())
    pieces = Divergence(DivergenceSection())
    for step, loss in enumerate(losses, start=1):
        expected = whole.look(loss, step)
        state = json.loads(json.dumps(pieces.state()))
        pieces = Divergence(DivergenceSection())
        pieces.restore(state)
        assert pieces.look(loss, step) == expected
        if expected:
            assert (pieces.median, pieces.losses) == (whole.median, whole.losses)
    assert pieces.state() == whole.state()


@pytest.mark.parametrize("action", ["ignore", "stop", "rollback"])
def test_a_divergence_is_an_event_and_what_the_policy_says(open_tiny: Any, action: str) -> None:
    session = open_tiny()
    recovery = policy(session, divergence={"action": action}, most=1)
    (result,) = take_steps(session, recovery, 1)
    raised: list[Exception] = []
    for n, loss in enumerate([*LEVEL, *[9.0] * 5, *[30.0] * 5]):
        try:
            recovery.look(session, replace(result, loss=loss), 1e-2, step=n + 2)
        except (RollBack, DivergedError) as error:
            raised.append(error)
    events = events_of(session, "divergence")
    assert events
    assert events[0].data["losses"] == [9.0] * 5
    assert 2.0 <= events[0].data["median"] < 6.0
    assert events[0].data["action"] == action
    json.dumps(events[0].data, allow_nan=False)
    if action == "ignore":
        assert not raised
    elif action == "stop":
        assert isinstance(raised[0], DivergedError)
        assert "optimizer.lr" in str(raised[0])
        assert raised[0].losses == (9.0,) * 5
    else:
        assert isinstance(raised[0], RollBack)
        assert raised[0].before == len(LEVEL) + 1, "a checkpoint made while it diverged is no good"


@given(st.lists(st.sampled_from([2.0, 9.0, math.nan]), max_size=60), st.integers(1, 8))
def test_a_divergence_spans_no_more_steps_than_one_is_seen_after(losses: list[float], steps: int) -> None:
    """Those left out with it: a checkpoint from before it is kept for so many steps, and no longer."""
    divergence = Divergence(DivergenceSection(steps=steps))
    for step, loss in enumerate([*LEVEL, *losses], start=1):
        if divergence.look(loss, step):
            assert step - divergence.since + 1 <= steps


def test_a_skipped_step_begins_no_divergence(open_tiny: Any) -> None:
    session = open_tiny()
    recovery = Recovery.of(session)
    (result,) = take_steps(session, recovery, 1)
    for n, loss in enumerate([*LEVEL, *[9.0] * 20]):
        recovery.look(session, replace(result, loss=loss, skipped=loss > 5), 1e-2, step=n + 2)
    assert not events_of(session, "divergence")


def test_a_scaler_of_another_kind_is_taken_as_it_is() -> None:
    recovery = Recovery(FailureSection(), LossScaler(PrecisionSection(loss_scale="dynamic")))
    recovery.scaler.bad_step()
    other = Recovery(FailureSection(), LossScaler(PrecisionSection(loss_scale="dynamic")))
    other.restore(json.loads(json.dumps(recovery.state())))
    assert other.scaler.scale == 32768.0
