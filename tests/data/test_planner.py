"""The shape planner: exact buckets and packing, the cheapest plan taken, bad input refused in words."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import long_tail, planner_of, profile_of, table_of

from trueup.data import assemble, job_tokens
from trueup.data.buckets import MAX_BUCKETS, bucket_widths
from trueup.data.costs import Costs
from trueup.data.packing import _placed, packed, rows_needed
from trueup.recipe.models import TrainSection
from trueup.schema import DeviceRules, InputError, ShapePlan, TrueupError

LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=120)


# --- buckets ----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=500, derandomize=True)
@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=40),
    st.integers(1, 5),
    st.sampled_from([0.0, 3.0, 40.0, 400.0]),
    st.sampled_from([0.3, 1.0, 7.5]),
    st.sampled_from([80, 200, 1000]),
    st.sampled_from([0.0, 25.0]),
    st.booleans(),
    st.sampled_from([None, 4, 32]),
)
def test_the_dynamic_program_equals_brute_force(
    lengths: list[int],
    most: int,
    shape_s: float,
    passes: float,
    budget: int,
    fixed: float,
    static: bool,
    chunk: int | None,
) -> None:
    """Padded tokens x cost + head + buckets x compile seconds, over every set of candidate widths."""
    costs = Costs(micro_batch_s=fixed, pair_s=0.01, head_row_s=3.0)
    supervised = [length // 3 for length in lengths]

    def price(widths: tuple[int, ...]) -> float:
        total, below = shape_s * len(widths), 0
        for width in widths:
            height = budget // width
            own = [n for n, length in enumerate(lengths) if below < length <= width]
            total += passes * float(costs.of_batches(len(own), height, width, static=static))
            if chunk is not None and own:
                batches = -(-len(own) // height)
                each = -(-sum(supervised[n] for n in own) // batches)
                total += passes * 3.0 * batches * chunk * max(1, -(-each // chunk))
            below = width
        return total

    widths = bucket_widths(
        *(lengths, budget),
        supervised=supervised,
        chunk_rows=chunk,
        costs=costs,
        passes=passes,
        shape_s=shape_s,
        static=static,
        most=most,
    )
    assert widths == sorted(set(widths))
    assert 1 <= len(widths) <= most
    *narrow, last = sorted({-(-length // 8) * 8 for length in lengths})
    best = min(price((*chosen, last)) for size in range(most) for chosen in combinations(narrow, size))
    assert price(tuple(widths)) == pytest.approx(best, rel=1e-12)


def test_a_head_in_whole_chunks_is_worth_a_shape_more() -> None:
    """Twelve micro-batches of one row fill twelve chunks; with four examples in one, they fill nine."""

    def widths(head_row_s: float, chunk_rows: int | None) -> list[int]:
        lengths, costs = [16] * 4 + [64] * 8, Costs(head_row_s=head_row_s)
        head: dict[str, Any] = {"supervised": [1] * 12, "chunk_rows": chunk_rows}
        return bucket_widths(lengths, 64, costs=costs, shape_s=300.0, static=True, **head)

    assert widths(1.0, None) == widths(0.0, 128) == [64]
    assert widths(1.0, 128) == [16, 64]


def test_dearer_compiling_means_fewer_buckets() -> None:
    counts = [
        len(bucket_widths(long_tail(2000), 512, costs=Costs(), shape_s=shape_s))
        for shape_s in (0.0, 3e3, 2e4, 1e9)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == MAX_BUCKETS
    assert counts[-1] == 1


def test_widths_among_very_many_lengths_cover_them() -> None:
    lengths = np.arange(1, 40_000)
    widths = bucket_widths(lengths, 40_000, costs=Costs())
    assert widths[-1] >= lengths.max()
    assert widths[-1] <= 40_000


# --- packing ----------------------------------------------------------------------------------------------


def one_by_one(lengths: list[int], width: int) -> list[int]:
    """Rooms left by best-fit decreasing as the books have it, one example at a time."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        at = bisect_left(rooms, length)
        insort(rooms, (rooms.pop(at) if at < len(rooms) else width) - length)
    return rooms


@settings(deadline=None, max_examples=300)
@given(LENGTHS, st.integers(64, 200))
def test_packing_by_histogram_is_best_fit_decreasing(lengths: list[int], width: int) -> None:
    """axolotl#3848 (index error, wrong efficiency): every example in one row, and as many rows as told."""
    lengths_N = np.asarray(lengths, dtype=np.int64)
    expected = one_by_one(lengths, width)
    assert rows_needed(lengths_N, width) == len(expected)
    by_row_N, starts_R1 = packed(lengths_N, width)
    falling_N = np.sort(lengths_N)[::-1][by_row_N]
    sums = np.add.reduceat(falling_N, starts_R1[:-1])
    assert sorted((width - sums).tolist()) == expected
    assert sorted(by_row_N.tolist()) == list(range(len(lengths)))


def test_packing_a_million_examples_is_as_much_work_as_packing_a_thousand_of_the_same_lengths() -> None:
    """transformers#10909: a sampler by length took minutes. Runs of equal rows are placed at once."""
    few = long_tail(1000).astype(np.int64)
    rows, placed = _placed(few, 2048)
    many_rows, many_placed = _placed(np.repeat(few, 1000), 2048)
    assert 0.95 * 1000 * rows <= many_rows <= 1000 * rows
    assert len(many_placed) <= 3 * len(placed)


def test_packing_lengths_like_the_demos_pads_at_most_three_percent() -> None:
    """Also the guard against grouping that is silently off (NeMo Automodel#3755)."""
    plan = planner_of(long_tail(2800), "pack", budget=512).plan()
    assert plan.training == ((1, 512),)
    assert plan.padding_share <= 0.03


def test_small_data_is_not_padded_to_a_full_row() -> None:
    assert planner_of([20, 30], "pack", budget=512).plan().training == ((1, 56),)


def test_one_long_row_or_several_by_what_attention_costs() -> None:
    lengths = long_tail(400)
    plain = planner_of(lengths, "pack", budget=2048, profile=profile_of())
    dear = profile_of().model_copy(update={"pair_s": profile_of().token_s.model_copy(update={"value": 1e-3})})
    assert plain.plan().full[0][0] == 1
    (rows, width), *_ = planner_of(lengths, "pack", budget=2048, profile=dear).plan().full
    assert rows == 4
    assert width <= 512


# --- the choice -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    LENGTHS,
    st.sampled_from([0.0, 1.0, 60.0]),
    st.floats(1, 1e6),
    st.sampled_from([1e-4, 1e-2]),
    st.booleans(),
)
def test_auto_takes_the_least_total_time_and_says_why_the_others_lost(
    lengths: list[int], compile_s: float, tokens: float, token_s: float, static: bool
) -> None:
    profile = profile_of(token_s=token_s, compile_s=compile_s, rules=DeviceRules(static=static))
    planner = planner_of(
        lengths, evaluation=lengths[:3], job_tokens=tokens, profile=profile, modes=("none", "layer")
    )
    plan = planner.plan()
    assert len(plan.alternatives) == 8
    assert [one.verdict for one in plan.alternatives].count("chosen") == 1
    assert all(one.verdict for one in plan.alternatives)
    totals = [one.total_s for one in plan.alternatives if one.total_s is not None]
    if not static:  # what the device compiles in mode none has no figure here
        assert plan.total_s == min(totals)
    assert planner.plan() == plan  # pure
    assert ShapePlan.model_validate_json(plan.model_dump_json()) == plan
    (chosen,) = (one for one in plan.alternatives if one.verdict == "chosen")
    for name in ("padding_share", "head_padding_share", "compile_s", "total_s"):
        assert getattr(plan, name) == getattr(chosen, name) == plan.model_dump()[name]


def test_the_seconds_of_a_job_are_its_compiling_a_warm_up_pass_and_its_micro_batches() -> None:
    profile = profile_of(micro_batch_s=0.5, compile_s=20.0, step_ratio=0.8)
    figures = {"pair_s": 1e-4, "head_row_s": 1e-2}
    profile = profile.model_copy(
        update={name: profile.token_s.model_copy(update={"value": one}) for name, one in figures.items()}
    )
    asked: dict[str, Any] = {"evaluation": [8], "job_tokens": 3 * 9 * 64, "profile": profile}
    planner = planner_of([64] * 9, "max", budget=128, modes=("layer", "none"), **asked)
    found = {(one.strategy, one.compile): one for one in planner.plan().alternatives}
    eager_s = 0.5 + 128 * 1e-3 + 2 * 64**2 * 1e-4  # of a micro-batch of two rows; the last has one
    head_s = 9 * 32 * 1e-2  # of an epoch, the same in both modes
    compiled = found["max", "layer"]  # shapes are fixed: five whole micro-batches
    assert (compiled.shapes, compiled.compile_s) == (1, 20.0 + 20.0 / 4)
    assert compiled.total_s == pytest.approx(25 + 0.8 * eager_s + 3 * (5 * 0.8 * eager_s + head_s))
    short_s = 0.5 + 64 * 1e-3 + 64**2 * 1e-4
    eager = found["max", "none"]
    assert eager.compile_s == 0
    assert eager.total_s == pytest.approx((eager_s + short_s) + 3 * (4 * eager_s + short_s + head_s))


@pytest.mark.parametrize("strategy", ["pack", "bucket", "max"])
def test_the_padding_that_is_told_is_what_the_micro_batches_have(strategy: str) -> None:
    """Of tokens and, where the head takes whole chunks, of its rows: in the micro-batches of an epoch."""
    table = table_of(long_tail(120).clip(max=64).tolist())
    profile = profile_of(rules=DeviceRules(static=True))
    planner = planner_of(table.lengths, strategy, budget=128, profile=profile)
    planner = replace(planner, data=replace(planner.data, supervised_N=table.supervised))
    plan = planner.plan()
    batches = [assemble(table, one, pad_id=0) for one in planner.data.arranged(plan).epoch(0, 0).batches]
    head = sum(len(batch.targets(plan.chunk_rows)[0]) for batch in batches)
    supervised = sum(batch.supervised_tokens for batch in batches)
    assert 0 < supervised < head
    assert plan.head_padding_share == pytest.approx(1 - supervised / head)
    processed = sum(batch.processed_tokens for batch in batches)
    assert plan.padding_share == pytest.approx(1 - int(table.lengths.sum()) / processed)


def test_a_short_job_compiles_nothing_and_a_long_one_does() -> None:
    def mode(tokens: float) -> str:
        planner = planner_of(
            *(long_tail(500),), budget=512, job_tokens=tokens, profile=profile_of(), modes=("none", "layer")
        )
        return planner.plan().compile

    assert mode(2e4) == "none"  # 20 s of steps
    assert mode(2e6) == "layer"


def test_without_figures_the_work_decides() -> None:
    """A static device nobody has measured: one packed shape, and no seconds are made up."""
    profile = profile_of(token_s=None, rules=DeviceRules(static=True, multiple=128))
    plan = planner_of(long_tail(500), budget=2048, profile=profile).plan()
    assert plan.strategy == "pack"
    assert plan.total_s is None
    assert plan.compile_s is None
    assert "processed tokens" in plan.reason


def test_all_of_one_length_need_no_packing_and_no_padding() -> None:
    for strategy in ("auto", "pack", "bucket", "max", "longest"):
        plan = planner_of([64] * 50, strategy, budget=256).plan()
        assert plan.padding_share == 0
        assert {width for _, width in plan.full} <= {64, 128, 256}


def test_auto_is_bucketing_where_packing_wastes_more() -> None:
    assert planner_of([300] * 100, budget=512).plan().strategy != "pack"


def test_a_step_holds_as_many_micro_batches_as_its_tokens_allow() -> None:
    assert planner_of(long_tail(500), "pack", budget=512, per_step=2100).plan().micro_batches_per_step == 4
    loose = planner_of(long_tail(500), "longest", budget=512, per_step=2048).plan()
    assert loose.micro_batches_per_step > 10  # its micro-batches are one row of about 120 tokens


@pytest.mark.parametrize(
    ("train", "tokens"),
    [
        ({"epochs": 3}, 3000.0),
        ({"epochs": 3, "max_steps": 2, "tokens_per_step": 600}, 1200.0),
        ({"epochs": 3, "stop": {"useful_tokens": 700}}, 700.0),
        ({"epochs": 0.5}, 500.0),
    ],
)
def test_the_size_of_a_job_is_the_least_of_its_limits(train: dict[str, Any], tokens: float) -> None:
    assert job_tokens(TrainSection.model_validate(train), 1000) == tokens
    assert job_tokens(TrainSection.model_validate(train), 1000, profile_of(), wall_s=0.1) == 100.0
    assert job_tokens(TrainSection.model_validate(train), 1000, profile_of(token_s=None), 0.1) == tokens


# --- a device that refuses --------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["pack", "bucket", "max", "longest"])
def test_a_refused_shape_gives_smaller_ones_for_the_same_step_until_none_is_left(strategy: str) -> None:
    planner = planner_of(long_tail(500), strategy, budget=4096, per_step=4096)
    plan = planner.plan()
    while plan.largest != (1, 512):
        tokens = plan.largest[0] * plan.largest[1]
        smaller = planner.smaller(plan, plan.largest)
        assert smaller.strategy == plan.strategy
        assert max(rows * width for rows, width in smaller.training) < tokens
        if strategy != "longest":
            assert smaller.micro_batches_per_step * smaller.largest[0] * smaller.largest[1] <= 4096
            assert smaller.micro_batches_per_step >= 2 * plan.micro_batches_per_step
        assert "no memory" in smaller.reason
        assert planner.data.arranged(smaller)
        plan = smaller
    with pytest.raises(TrueupError, match=r"no memory.*1 x 512.*lower data.max_length"):
        planner.smaller(plan, plan.largest)


def test_a_shape_that_ran_out_of_memory_before_is_not_tried_again() -> None:
    plan = planner_of(long_tail(500), budget=4096, profile=profile_of(edges=((4, 512),))).plan()
    assert max(rows * width for rows, width in plan.training) < 2048
    assert plan.tokens_per_microbatch == 2047
    assert "not 4096: an earlier run on this device had no memory for 4 x 512" in plan.reason


def test_a_plan_starts_with_what_an_earlier_run_went_on_with_after_it_ran_out_of_memory() -> None:
    profile = profile_of(edges=((8, 512), (4, 512)), tokens=1024)
    plan = planner_of(long_tail(500), budget=4096, profile=profile).plan()
    assert plan.tokens_per_microbatch == 1024
    assert plan.micro_batches_per_step * 1024 >= 4096
    assert (
        "at most 1024 tokens, not 4096: an earlier run on this device had no memory for 4 x 512"
        in plan.reason
    )
    assert planner_of(long_tail(500), budget=512, profile=profile).plan().tokens_per_microbatch == 512
    assert "an earlier run" not in planner_of(long_tail(500), budget=512, profile=profile).plan().reason


def test_what_was_learnt_of_memory_refuses_no_row_that_was_not_itself_too_large() -> None:
    profile = profile_of(edges=((8, 512),), tokens=256)
    assert planner_of([3, 500], budget=4096, profile=profile).plan().tokens_per_microbatch == 504
    wide = planner_of([3, 50], "bucket", budget=4096, profile=profile, buckets=(64, 512)).plan()
    assert wide.tokens_per_microbatch == 512


# --- bad input --------------------------------------------------------------------------------------------


def refused(message: str, *args: Any, **options: Any) -> None:
    with pytest.raises(InputError, match=message):
        planner_of(*args, **options).plan()


def test_buckets_that_miss_the_longest_example_are_refused() -> None:
    refused(r"ends at 48.*longest example has 50 tokens", [3, 50], "bucket", buckets=(16, 48))
    refused(r"longest example has 50 tokens", [3], "bucket", buckets=(16, 48), evaluation=[50])
    given = planner_of([3, 50], "bucket", buckets=(16, 56)).plan()
    assert given.full == ((4, 16), (1, 56))


def test_buckets_that_a_static_device_cannot_take_are_refused() -> None:
    strict = profile_of(rules=DeviceRules(static=True, multiple=32))
    refused(r"multiples of 32, not 40", [3], "bucket", buckets=(32, 40), profile=strict)


def test_a_budget_smaller_than_one_example_is_refused() -> None:
    refused(r"65 tokens does not fit into a micro-batch of 64.*raise shapes.tokens_per_microbatch", [3, 65])
    strict = profile_of(rules=DeviceRules(static=True, multiple=128))
    refused(r"60 tokens, in rows of 128, does not fit", [60], profile=strict)
    refused(
        r"does not fit into a micro-batch of 31.*this device fits no more",
        *([32],),
        profile=profile_of(edges=((2, 16),)),
    )


def test_an_example_longer_than_the_models_positions_is_refused() -> None:
    refused(r"longest example has 50 tokens, and the model positions for 49", [3, 50], positions=49)
    assert planner_of([3, 50], positions=50).plan()


def test_an_example_without_tokens_is_refused() -> None:
    refused(r"example 1 has 0 tokens", [3, 0, 5])
    refused(r"example 0 has 0 tokens", [3], evaluation=[0])


def test_widths_that_follow_the_data_are_refused_where_shapes_are_fixed() -> None:
    refused("longest has no fixed shapes", [3], "longest", profile=profile_of(), modes=("layer",))
    refused("longest has no fixed shapes", [3], "longest", profile=profile_of(rules=DeviceRules(static=True)))


def test_a_plan_for_other_data_is_refused() -> None:
    planner = planner_of([3, 9, 20], evaluation=[4])
    plan = planner.plan()
    others = [planner_of([3, 9, 21], evaluation=[4]), planner_of([3, 9, 20]), planner_of([9, 3, 20])]
    for other in others:
        for use in (other.data.arranged, other.data.evaluation):
            with pytest.raises(InputError, match=r"made for other data.*plan again"):
                use(plan)
    assert replace(planner, tokens_per_step=999).data.arranged(plan).batches


@pytest.mark.parametrize("static", [False, True])
def test_a_plan_for_other_evaluation_keeps_what_is_trained(static: bool) -> None:
    """A run that goes on may evaluate on more than before."""
    profile = profile_of(rules=DeviceRules(static=static))
    before, after = (
        planner_of(
            *([3, 9, 20, 40], "bucket"), evaluation=held_out, budget=128, buckets=(8, 24, 40), profile=profile
        )
        for held_out in ([4], [4, 40, 20, 9, 9])
    )
    plan = before.plan()
    kept = after.evaluating(plan)
    assert (kept.training, kept.full, kept.reason) == (plan.training, plan.full, plan.reason)
    assert {batch.shape for batch in after.data.evaluation(kept).batches} == set(kept.evaluation)
    assert len(kept.evaluation) > len(plan.evaluation)
    assert bool(kept.head_rows) == static
    assert after.data.arranged(kept).batches == before.data.arranged(plan).batches
    assert before.evaluating(kept) == plan
    with pytest.raises(InputError, match="41 tokens does not fit"):
        planner_of([3, 9, 20, 40], evaluation=[41], profile=profile).evaluating(plan)


def test_planning_keeps_no_object_for_each_example() -> None:
    """transformers#10909, and DESIGN's bounded memory: arrays of a few numbers an example, whatever the
    strategy."""
    import tracemalloc

    count = 100_000
    lengths_N = long_tail(count)
    tracemalloc.start()
    planner = planner_of(lengths_N, budget=2048)
    plan = planner.plan()
    epoch = planner.data.arranged(plan).epoch(0, 1, plan.micro_batches_per_step)
    assert len(epoch.steps[-1]) >= 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * count  # a tuple of one integer alone takes 48 bytes, and a list slot 8 more


def test_attention_by_example_costs_every_arrangement_the_same() -> None:
    """Packed rows lose by attention over whole rows, not where each example is walked alone."""
    lengths = long_tail(400)
    by_row = profile_of().model_copy(
        update={"pair_s": profile_of().token_s.model_copy(update={"value": 1e-3})}
    )
    by_example = by_row.model_copy(update={"attention": "example"})
    assert planner_of(lengths, budget=2048, profile=by_row).plan().strategy != "pack"
    plan = planner_of(lengths, budget=2048, profile=by_example).plan()
    assert plan.strategy == "pack"
    longer = {one.strategy: one.total_s for one in plan.alternatives}
    attention_s = 1e-3 * float((lengths.astype(float) ** 2).sum())
    assert all(total is not None and total > attention_s for total in longer.values())
