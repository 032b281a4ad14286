"""Plans and micro-batches: every example once, shapes within limits, targets inside their own example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trueup.data import (
    Plan,
    Strategy,
    assemble,
    choose_strategy,
    count_tokens,
    epoch_plan,
    evaluation_plan,
    steps,
)
from trueup.data.plan import MAX_BUCKETS, bucket_widths
from trueup.recipe.models import ShapesSection
from trueup.schema import InputError

PAD = 10_000
STRATEGIES: tuple[Strategy, ...] = ("pack", "bucket")
LENGTHS = st.lists(st.integers(1, 64), max_size=120)


@dataclass
class Table:
    """Examples whose tokens say where they are from: example n, position t is token 100 n + t."""

    lengths: NDArray[np.int32]
    loss: list[NDArray[np.bool_]]

    @property
    def supervised(self) -> NDArray[np.int32]:
        return np.asarray([loss.sum() for loss in self.loss], dtype=np.int32)

    def example(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        return (100 * n + np.arange(self.lengths[n])).astype(np.int32), self.loss[n]


def table_of(lengths: list[int], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    loss = [rng.random(length) < 0.5 for length in lengths]
    for mask in loss:
        mask[0] = False
    return Table(np.asarray(lengths, dtype=np.int32), loss)


def plan_of(lengths: Any, strategy: Strategy, seed: int = 0, epoch: int = 0, budget: int = 64) -> Plan:
    return epoch_plan(
        lengths, strategy=strategy, tokens_per_microbatch=budget, max_length=64, seed=seed, epoch=epoch
    )


def long_tail(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Lengths like the demo's: median about 76, up to 512."""
    lengths = np.exp(np.random.default_rng(seed).normal(4.35, 0.6, count)) + 30
    return np.minimum(lengths, 512).astype(np.int64)


@settings(deadline=None)
@given(LENGTHS, st.sampled_from(STRATEGIES), st.integers(0, 2**31), st.integers(0, 9), st.integers(64, 300))
def test_every_example_exactly_once_within_the_budget(
    lengths: list[int], strategy: Strategy, seed: int, epoch: int, budget: int
) -> None:
    plan = plan_of(lengths, strategy, seed, epoch, budget)
    assert sorted(n for batch in plan.batches for n in batch.examples) == list(range(len(lengths)))
    assert plan.useful_tokens == sum(lengths)
    for batch in plan.batches:
        assert 0 < batch.processed_tokens <= budget
        assert all(sum(lengths[n] for n in row) <= batch.width for row in batch.rows)
        assert batch.useful_tokens == sum(lengths[n] for n in batch.examples)
        assert strategy == "pack" or all(len(row) == 1 for row in batch.rows)
    assert plan == plan_of(lengths, strategy, seed, epoch, budget)
    if lengths:
        assert plan.padding_share == pytest.approx(1 - sum(lengths) / plan.processed_tokens)
        assert plan.shapes[0][0] * plan.shapes[0][1] == max(b.processed_tokens for b in plan.batches)


@settings(deadline=None)
@given(LENGTHS.filter(bool), st.sampled_from(STRATEGIES), st.integers(0, 99))
def test_targets_stay_in_their_example_and_are_its_supervised_tokens(
    lengths: list[int], strategy: Strategy, seed: int
) -> None:
    table = table_of(lengths, seed)
    found: list[int] = []
    for planned in plan_of(lengths, strategy, seed, budget=200).batches:
        batch = assemble(table, planned, PAD)
        rows_N, targets_N = batch.targets()
        tokens, segments = batch.tokens_BT.ravel(), batch.segments_BT.ravel()
        positions = batch.positions_BT.ravel()
        assert np.array_equal(tokens[rows_N] + 1, targets_N)
        assert np.array_equal(tokens[rows_N + 1], targets_N)
        assert np.array_equal(segments[rows_N], segments[rows_N + 1])
        assert np.all(segments[rows_N] > 0)
        assert np.array_equal(tokens == PAD, segments == 0)
        assert np.array_equal(tokens[segments > 0] % 100, positions[segments > 0])
        assert batch.useful_tokens == planned.useful_tokens
        assert batch.processed_tokens == planned.processed_tokens == tokens.size
        assert batch.supervised_tokens == len(rows_N)
        assert batch.attention_sum_sq == sum(lengths[n] ** 2 for n in batch.example_ids)
        found += targets_N.tolist()
    expected = [100 * n + t for n, mask in enumerate(table.loss) for t in np.flatnonzero(mask)]
    assert sorted(found) == expected


@settings(deadline=None)
@given(LENGTHS, st.sampled_from(STRATEGIES), st.integers(1, 400))
def test_steps_partition_the_plan(lengths: list[int], strategy: Strategy, tokens_per_step: int) -> None:
    plan = plan_of(lengths, strategy)
    groups = list(steps(plan, tokens_per_step))
    assert tuple(batch for group in groups for batch in group) == plan.batches
    for group, following in pairwise(groups):
        tokens = sum(batch.processed_tokens for batch in group)
        assert tokens <= tokens_per_step or len(group) == 1
        assert tokens + following[0].processed_tokens > tokens_per_step


def test_counts_of_a_step_are_known_before_its_arrays() -> None:
    table = table_of([5, 9, 30, 64, 1, 2])
    for group in steps(plan_of(table.lengths, "bucket"), 128):
        batches = [assemble(table, planned, PAD) for planned in group]
        counts = count_tokens(group, table)
        assert counts.useful == sum(batch.useful_tokens for batch in batches)
        assert counts.supervised == sum(batch.supervised_tokens for batch in batches)
        assert counts.processed == sum(batch.processed_tokens for batch in batches)
        assert counts.attention_sum_sq == sum(batch.attention_sum_sq for batch in batches)


def test_a_micro_batch_and_a_step_without_supervised_tokens_show_it() -> None:
    """trl#6668: all labels masked must not look like a loss of 0.0."""
    table = Table(np.asarray([4, 6], dtype=np.int32), [np.zeros(4, np.bool_), np.zeros(6, np.bool_)])
    plan = plan_of(table.lengths, "pack")
    batch = assemble(table, plan.batches[0], PAD)  # type: ignore[arg-type]
    rows_N, targets_N = batch.targets()
    assert (len(rows_N), len(targets_N), batch.supervised_tokens) == (0, 0, 0)
    assert count_tokens(plan.batches, table).supervised == 0  # type: ignore[arg-type]


def test_the_first_token_of_an_example_is_never_a_target() -> None:
    table = Table(np.asarray([3, 3], dtype=np.int32), [np.ones(3, np.bool_)] * 2)
    batch = assemble(table, plan_of([3, 3], "pack").batches[0], PAD)  # type: ignore[arg-type]
    assert batch.supervised_tokens == 4
    assert batch.targets()[0].tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_epochs_and_seeds_differ(strategy: Strategy) -> None:
    lengths = long_tail(300).clip(max=64)
    orders = {plan_of(lengths, strategy, seed, epoch).batches for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def test_packing_the_demo_pads_at_most_three_percent() -> None:
    """Also the guard against grouping that is silently off (NeMo Automodel#3755): the plan's own figures."""
    lengths = long_tail(2800)
    for epoch in range(3):
        plan = epoch_plan(
            lengths, strategy="pack", tokens_per_microbatch=512, max_length=512, seed=0, epoch=epoch
        )
        assert plan.shapes == ((1, 512),)
        assert plan.padding_share <= 0.03


def test_buckets_pad_far_less_than_padding_to_the_longest() -> None:
    lengths = long_tail(2800)
    plan = epoch_plan(lengths, strategy="bucket", tokens_per_microbatch=2048, max_length=512, seed=0, epoch=0)
    assert plan.padding_share < 0.2 < 1 - lengths.mean() / 512
    assert len({width for _, width in plan.shapes}) <= MAX_BUCKETS


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 80), min_size=1, max_size=30), st.integers(1, 4))
def test_bucket_widths_are_the_best_there_are(lengths: list[int], most: int) -> None:
    def cost(widths: list[int]) -> int:
        return sum(min(width for width in widths if width >= length) for length in lengths)

    widths = bucket_widths(lengths, 1000, most)
    assert len(widths) <= most
    assert widths == sorted(set(widths))
    candidates = sorted({-(-length // 8) * 8 for length in lengths})
    best = min(
        cost([*chosen, candidates[-1]])
        for size in range(min(most, len(candidates)))
        for chosen in combinations(candidates[:-1], size)
    )
    assert cost(widths) == best


def test_bucket_widths_of_many_lengths_cover_them() -> None:
    lengths = np.arange(1, 40_000)
    widths = bucket_widths(lengths, 40_000)
    assert len(widths) == MAX_BUCKETS
    assert widths[-1] >= lengths.max()


def test_an_example_longer_than_a_micro_batch_is_refused() -> None:
    with pytest.raises(InputError, match="65 tokens does not fit"):
        plan_of([3, 65], "pack")


def test_small_data_is_not_padded_to_a_full_row() -> None:
    plan = epoch_plan([20, 30], strategy="pack", tokens_per_microbatch=512, max_length=512, seed=0, epoch=0)
    assert plan.shapes == ((1, 56),)


def test_several_rows_a_micro_batch_when_the_budget_allows() -> None:
    plan = epoch_plan(
        long_tail(400), strategy="pack", tokens_per_microbatch=2048, max_length=512, seed=0, epoch=0
    )
    assert plan.shapes[0] == (4, 512)
    assert len(plan.shapes) <= 2


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [(long_tail(1000), "pack"), (np.full(100, 300), "bucket"), (np.full(64, 512), "pack")],
)
def test_auto_takes_what_processes_less_and_says_so(lengths: NDArray[np.int64], expected: str) -> None:
    strategy, reason = choose_strategy(ShapesSection(), lengths, max_length=512)
    assert strategy == expected
    assert reason.startswith("fewer processed tokens an epoch")
    assert choose_strategy(ShapesSection(strategy="bucket"), lengths, max_length=512)[0] == "bucket"


@settings(deadline=None)
@given(LENGTHS.filter(bool), st.sampled_from(STRATEGIES), st.integers(1, 500), st.randoms())
def test_evaluation_takes_the_first_in_order(
    lengths: list[int], strategy: Strategy, max_tokens: int, random: Any
) -> None:
    order = list(range(len(lengths)))
    random.shuffle(order)

    def plan(strategy: Strategy) -> Plan:
        return evaluation_plan(
            lengths,
            strategy=strategy,
            tokens_per_microbatch=64,
            max_length=64,
            max_tokens=max_tokens,
            order=order,
        )

    def taken(found: Plan) -> list[int]:
        return sorted(n for batch in found.batches for n in batch.examples)

    chosen = taken(plan(strategy))
    assert chosen == sorted(order[: len(chosen)])
    assert sum(lengths[n] for n in chosen) <= max_tokens or len(chosen) == 1
    if len(chosen) < len(lengths):
        assert sum(lengths[n] for n in order[: len(chosen) + 1]) > max_tokens
    assert taken(plan("pack")) == taken(plan("bucket"))


def test_evaluation_of_nothing_is_an_empty_plan() -> None:
    makers: list[Callable[[], Plan]] = [
        lambda: evaluation_plan([], strategy="pack", tokens_per_microbatch=64, max_length=64, max_tokens=9),
        lambda: plan_of([], "bucket"),
    ]
    for make in makers:
        assert (make().batches, make().padding_share, make().shapes) == ((), 0.0, ())
