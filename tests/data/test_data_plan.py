"""Epochs and micro-batches: every example once, shapes within the plan, targets inside their own example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import CHUNK, Table, long_tail, planner_of, profile_of, table_of

from trueup.data import IGNORED, Epoch, assemble, count_tokens, evaluated
from trueup.schema import CompileMode, DeviceRules, Strategy
from trueup.train.world import World

PAD = 10_000
STRATEGIES: tuple[Strategy, ...] = ("pack", "bucket", "max", "longest")
FIXED: tuple[Strategy, ...] = ("pack", "bucket", "max")
LENGTHS = st.lists(st.integers(1, 64), max_size=120)


def epoch_of(
    lengths: Any, strategy: Strategy, seed: int = 0, epoch: int = 0, budget: int = 64, per_step: int = 64
) -> Epoch:
    planner = planner_of(lengths, strategy, budget=budget, per_step=per_step)
    plan = planner.plan()
    return planner.data.arranged(plan).epoch(seed, epoch, plan.micro_batches_per_step)


def flat(epoch: Epoch) -> list[Any]:
    return list(epoch.batches)


@settings(deadline=None)
@given(LENGTHS, st.sampled_from(STRATEGIES), st.integers(0, 2**31), st.integers(0, 9), st.integers(64, 300))
def test_every_example_exactly_once_within_the_budget(
    lengths: list[int], strategy: Strategy, seed: int, number: int, budget: int
) -> None:
    epoch = epoch_of(lengths, strategy, seed, number, budget)
    assert sorted(n for batch in epoch.batches for n in batch.examples) == list(range(len(lengths)))
    assert epoch.useful_tokens == sum(lengths)
    for batch in epoch.batches:
        assert 0 < batch.processed_tokens <= budget
        assert all(0 < sum(lengths[n] for n in row) <= batch.width for row in batch.rows)
        assert batch.useful_tokens == sum(lengths[n] for n in batch.examples)
        assert strategy == "pack" or all(len(row) == 1 for row in batch.rows)
    assert flat(epoch) == flat(epoch_of(lengths, strategy, seed, number, budget))
    if lengths:
        assert epoch.padding_share == pytest.approx(1 - sum(lengths) / epoch.processed_tokens)
        assert epoch.shapes[0][0] * epoch.shapes[0][1] == max(b.processed_tokens for b in epoch.batches)


@settings(deadline=None, max_examples=200)
@given(
    LENGTHS.filter(bool),
    LENGTHS,
    st.sampled_from(FIXED),
    st.sampled_from([("layer", False), ("none", True)]),
    st.sampled_from([1, 8, 32]),
    st.integers(0, 99),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(64, 700),
)
def test_nothing_but_the_plans_shapes_reaches_a_static_device(
    lengths: list[int],
    held_out: list[int],
    strategy: Strategy,
    how: tuple[CompileMode, bool],
    multiple: int,
    seed: int,
    number: int,
    ranks: int,
    per_step: int,
) -> None:
    """optimum-neuron#216, pytorch#188150, open-instruct 1445 (48 shapes, or 396 compiles): nothing may
    compile in evaluation or in the last batch either."""
    mode, static = how
    profile = profile_of(rules=DeviceRules(static=static, multiple=multiple))
    planner = planner_of(
        lengths, strategy, evaluation=held_out, per_step=per_step, profile=profile, modes=(mode,)
    )
    plan = planner.plan()
    assert plan.static
    assert len(plan.training) <= len(plan.full)
    table, seen, epoch = table_of(lengths), [], planner.data.arranged(plan)
    for step in epoch.epoch(seed, number, plan.micro_batches_per_step).steps:
        for rank in range(ranks):
            for planned in World(rank, ranks).share(step):
                batch = assemble(table, planned, PAD)
                assert batch.shape in plan.training
                rows_N, targets_N = batch.targets(plan.chunk_rows)
                assert len(rows_N) == len(targets_N)
                assert not static or len(rows_N) in plan.head_rows
                seen += batch.example_ids
    assert sorted(seen) == list(range(len(lengths)))
    evaluation = planner.data.evaluation(plan)
    assert {batch.shape for batch in evaluation.batches} == set(plan.evaluation)
    assert set(plan.evaluation) <= set(plan.full)
    assert sorted(n for b in evaluation.batches for n in b.examples) == list(range(len(held_out)))
    assert all(width % multiple == 0 for _, width in plan.full)


@settings(deadline=None)
@given(LENGTHS, st.sampled_from(STRATEGIES), st.booleans(), st.integers(1, 400))
def test_the_number_of_steps_and_the_shapes_are_known_without_making_an_epoch(
    lengths: list[int], strategy: Strategy, static: bool, per_step: int
) -> None:
    profile = profile_of(rules=DeviceRules(static=static and strategy != "longest"))
    planner = planner_of(lengths, strategy, per_step=per_step, profile=profile)
    plan = planner.plan()
    arrangement = planner.data.arranged(plan)
    for number in range(3):
        epoch = arrangement.epoch(7, number, plan.micro_batches_per_step)
        assert len(epoch.batches) == arrangement.batches
        assert len(epoch.steps) == plan.steps_per_epoch
        if strategy != "longest":
            assert epoch.shapes == plan.training == arrangement.shapes


@settings(deadline=None)
@given(LENGTHS, st.sampled_from(STRATEGIES), st.integers(64, 400))
def test_steps_partition_the_epoch_and_any_of_them_is_found_alone(
    lengths: list[int], strategy: Strategy, per_step: int
) -> None:
    epoch = epoch_of(lengths, strategy, per_step=per_step)
    assert [batch for step in epoch.steps for batch in step] == flat(epoch)
    assert len({len(step) for step in epoch.steps[:-1]}) <= 1
    if strategy != "longest":  # whose widths follow the data
        assert all(sum(batch.processed_tokens for batch in step) <= per_step for step in epoch.steps)
    for n in range(len(epoch.steps)):
        assert epoch_of(lengths, strategy, per_step=per_step).steps[n] == epoch.steps[n]


@settings(deadline=None)
@given(LENGTHS.filter(bool), st.sampled_from(STRATEGIES), st.integers(0, 99), st.none() | st.integers(1, 40))
def test_targets_stay_in_their_example_and_are_its_supervised_tokens(
    lengths: list[int], strategy: Strategy, seed: int, chunk_rows: int | None
) -> None:
    """trl#1230, trl#805: the token after an example's end belongs to its neighbour and is never a target."""
    table = table_of(lengths, seed)
    found: list[int] = []
    for planned in epoch_of(lengths, strategy, seed, budget=200).batches:
        batch = assemble(table, planned, PAD)
        rows_N, targets_N = batch.targets(chunk_rows)
        real = batch.supervised_tokens
        if chunk_rows is not None:
            assert len(rows_N) % chunk_rows == 0
            assert max(chunk_rows, real) <= len(rows_N) < real + chunk_rows + (real == 0)
        assert np.all(targets_N[real:] == IGNORED)
        assert np.all(rows_N[real:] == 0)
        rows_N, targets_N = rows_N[:real], targets_N[:real]
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
        assert batch.attention_sum_sq == sum(lengths[n] ** 2 for n in batch.example_ids)
        found += targets_N.tolist()
    expected = [100 * n + t for n, mask in enumerate(table.loss) for t in np.flatnonzero(mask)]
    assert sorted(found) == expected


@pytest.mark.parametrize("chunk_rows", [None, CHUNK])
def test_counts_of_a_step_are_known_before_its_arrays(chunk_rows: int | None) -> None:
    table = table_of([5, 9, 30, 64, 1, 2])
    for step in epoch_of(table.lengths, "bucket", per_step=128).steps:
        batches = [assemble(table, planned, PAD) for planned in step]
        counts = count_tokens(step, table, chunk_rows)
        assert counts.useful == sum(batch.useful_tokens for batch in batches)
        assert counts.supervised == sum(batch.supervised_tokens for batch in batches)
        assert counts.head_rows == sum(len(batch.targets(chunk_rows)[0]) for batch in batches)
        assert counts.processed == sum(batch.processed_tokens for batch in batches)
        assert counts.attention_sum_sq == sum(batch.attention_sum_sq for batch in batches)


def test_a_micro_batch_and_a_step_without_supervised_tokens_show_it() -> None:
    """trl#6668: all labels masked must not look like a loss of 0.0."""
    table: Any = Table(np.asarray([4, 6], dtype=np.int32), [np.zeros(4, np.bool_), np.zeros(6, np.bool_)])
    epoch = epoch_of(table.lengths, "pack")
    batch = assemble(table, epoch.batches[0], PAD)
    rows_N, targets_N = batch.targets()
    assert (len(rows_N), len(targets_N), batch.supervised_tokens) == (0, 0, 0)
    assert count_tokens(epoch.batches, table).supervised == 0


def test_the_first_token_of_an_example_is_never_a_target() -> None:
    table: Any = Table(np.asarray([3, 3], dtype=np.int32), [np.ones(3, np.bool_)] * 2)
    batch = assemble(table, epoch_of([3, 3], "pack").batches[0], PAD)
    assert batch.supervised_tokens == 4
    assert batch.targets()[0].tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_epochs_and_seeds_differ(strategy: Strategy) -> None:
    lengths = long_tail(300).clip(max=64)
    orders = {tuple(flat(epoch_of(lengths, strategy, seed, n))) for seed in (0, 1) for n in (0, 1)}
    assert len(orders) == 4


def test_buckets_are_mixed_in_every_part_of_an_epoch() -> None:
    """Hand-made buckets trained one after another cost accuracy: here a step's shape says nothing of when."""
    epoch = epoch_of(long_tail(4000), "bucket", budget=512, per_step=512)
    widths = [batch.width for batch in epoch.batches]
    half = len(widths) // 2
    for width in set(widths):
        first, whole = widths[:half].count(width), widths.count(width)
        assert abs(first - whole / 2) < 4 * (whole / 4) ** 0.5  # four standard deviations of a fair split


def test_packed_rows_are_in_no_order_of_their_lengths() -> None:
    """They are packed from the longest example down."""
    lengths = long_tail(2000)
    epoch = epoch_of(lengths, "pack", budget=512)
    longest = [max(lengths[n] for row in batch.rows for n in row) for batch in epoch.batches]
    middle, half = sorted(longest)[len(longest) // 2], len(longest) // 2
    above = [one > middle for one in longest]
    assert abs(sum(above[:half]) - sum(above) / 2) < 4 * (sum(above) / 4) ** 0.5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_which_examples_are_together_is_drawn_anew(strategy: Strategy) -> None:
    """In a row, where a row has several."""
    lengths = (long_tail(400) // 3).clip(max=64)

    def groups(number: int) -> set[frozenset[int]]:
        batches = epoch_of(lengths, strategy, 0, number, 256).batches
        rows = [row for batch in batches for row in (batch.rows if strategy == "pack" else [batch.examples])]
        return {frozenset(row) for row in rows}

    first, second = groups(0), groups(1)
    assert len(first) > 40
    assert len(first & second) < len(first) / 10


@settings(deadline=None)
@given(LENGTHS.filter(bool), st.sampled_from(STRATEGIES), st.integers(1, 500), st.randoms())
def test_evaluation_takes_the_first_in_order_whatever_the_strategy(
    lengths: list[int], strategy: Strategy, max_tokens: int, random: Any
) -> None:
    order = list(range(len(lengths)))
    random.shuffle(order)
    table: Any = Table(np.asarray(lengths, dtype=np.int32), [], order)
    chosen_N = evaluated(table, max_tokens)
    chosen = chosen_N.tolist()
    assert chosen == order[: len(chosen)]
    assert sum(lengths[n] for n in chosen) <= max_tokens or len(chosen) == 1
    if len(chosen) < len(lengths):
        assert sum(lengths[n] for n in order[: len(chosen) + 1]) > max_tokens
    lengths_N = np.asarray(lengths, dtype=np.int32)
    planner = planner_of([1, 2], strategy, evaluation=lengths_N[chosen_N])
    epoch = planner.data.evaluation(planner.plan()).of_table(lengths_N, chosen_N)
    assert sorted(n for batch in epoch.batches for n in batch.examples) == sorted(chosen)
    assert all(b.useful_tokens == sum(lengths[n] for n in b.examples) for b in epoch.batches)


def test_nothing_makes_an_empty_epoch() -> None:
    nothing: Any = Table(np.zeros(0, dtype=np.int32), [])
    assert evaluated(nothing).tolist() == []
    for strategy in STRATEGIES:
        epoch = epoch_of([], strategy)
        assert (flat(epoch), list(epoch.steps), epoch.padding_share, epoch.shapes) == ([], [], 0.0, ())
