"""Rule 2: accumulation is invisible. Rule 1, seen from the loop: neither are shapes.

Cases: transformers#37766 and ms-swift 10084 (loss or gradient wrong under accumulation, short last window).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trueup.data import PlannedBatch
from trueup.train.session import Session
from trueup.train.stepper import accumulate, gather, train_step


def gradient(session: Session, planned: list[PlannedBatch]) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean loss and gradient of one global batch, split into micro-batches as planned."""
    batch = gather(session, planned)
    loss_sum = accumulate(session, batch)
    gradients = {name: p.grad.clone() for name, p in session.model.trainable if p.grad is not None}
    session.optimizer.zero_grad(set_to_none=True)
    assert len(gradients) == len(session.model.trainable)
    return loss_sum / batch.counts.supervised, gradients


def one_by_one(session: Session, examples: list[int]) -> list[PlannedBatch]:
    lengths = session.training.lengths
    return [PlannedBatch(((n,),), int(lengths[n]), int(lengths[n])) for n in examples]


def grouped(session: Session, examples: list[int], sizes: list[int]) -> list[PlannedBatch]:
    """Padded micro-batches of the given numbers of examples; the last one takes what is left."""
    lengths = session.training.lengths
    batches, rest = [], list(examples)
    for size in [*sizes, len(examples)]:
        rows, rest = rest[:size], rest[size:]
        if rows:
            width = max(int(lengths[n]) for n in rows) + 5  # some padding in every row
            useful = sum(int(lengths[n]) for n in rows)
            batches.append(PlannedBatch(tuple((n,) for n in rows), width, useful))
    return batches


def assert_same(a: tuple[float, dict[str, Any]], b: tuple[float, dict[str, Any]], tolerance: float) -> None:
    assert a[0] == pytest.approx(b[0], rel=tolerance)
    for name, left in a[1].items():
        scale = left.norm().clamp_min(1e-12)
        assert float((left - b[1][name]).norm() / scale) < tolerance, name


@pytest.fixture
def wide(open_tiny: Any) -> Session:
    return open_tiny(wide=True)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 2**16))
def test_any_split_into_micro_batches_gives_the_same_gradient(
    wide: Session, sizes: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    examples = torch.randperm(len(wide.training))[:11].tolist()
    perturb_adapters(wide, seed)
    assert_same(
        gradient(wide, one_by_one(wide, examples)), gradient(wide, grouped(wide, examples, sizes)), 1e-9
    )


def perturb_adapters(session: Session, seed: int) -> None:
    """LoRA's B starts at zero, which would leave half of the gradients zero and prove nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in session.model.trainable:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.05 * noise.to(parameter.dtype))


@pytest.mark.parametrize("strategy", ["pack", "bucket", "max", "longest"])
def test_planned_steps_equal_one_by_one_short_last_window_included(open_tiny: Any, strategy: str) -> None:
    session = open_tiny(f"shapes.strategy={strategy}", "train.tokens_per_step=480", wide=True)
    perturb_adapters(session, 0)
    (whole, *_, last) = session.epoch(0)
    for step in (whole, last, last[:1]):
        examples = [n for batch in step for n in batch.examples]
        assert_same(gradient(session, list(step)), gradient(session, one_by_one(session, examples)), 1e-9)


def test_full_fine_tuning_in_single_precision(open_tiny: Any) -> None:
    session = open_tiny("tune.method=full")
    examples = list(range(9))
    assert_same(
        gradient(session, one_by_one(session, examples)),
        gradient(session, grouped(session, examples, [4, 3])),
        1e-5,
    )


def test_the_step_is_the_optimizer_on_the_mean_gradient(open_tiny: Any) -> None:
    """The same global batch in one or in five micro-batches leaves the same weights."""
    results = []
    for sizes in ([9], [2, 2, 2, 2]):
        session = open_tiny("optimizer.lr=1e-2", wide=True)
        perturb_adapters(session, 1)
        for _ in range(3):
            train_step(session, gather(session, grouped(session, list(range(9)), sizes)), lr=1e-2)
        results.append([p.detach().clone() for _, p in session.model.trainable])
    for one, five in zip(*results, strict=True):
        torch.testing.assert_close(one, five, rtol=1e-7, atol=1e-9)
