"""The plan's shapes: finite, few, enough for everything that the engine can ask for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from engine_fakes import plan_of
from hypothesis import given
from hypothesis import strategies as st

from trueup.schema import InputError
from trueup.serve.plan import STEP_TOKENS, ServingPlan, plan_serving

PLANS = st.builds(
    plan_of,
    rows=st.integers(1, 40),
    context=st.integers(2, 3000),
    block_size=st.sampled_from((1, 4, 16, 64)),
    chunk=st.integers(1, 300),
    most_shapes=st.sampled_from((40, 96, 500)),
)


@given(PLANS, st.data())
def test_every_step_that_can_occur_has_a_shape_of_the_plan(plan: ServingPlan, data: st.DataObject) -> None:
    new = data.draw(st.integers(1, min(plan.prefill_chunk, plan.max_context)))
    tokens = data.draw(st.integers(new, plan.max_context))
    rows = data.draw(st.integers(1, plan.max_rows)) if new == 1 else 1
    shape = plan.shape_for(rows, new, plan.blocks_for(tokens))
    assert shape in plan.shapes()
    assert shape[0] >= rows
    assert shape[1] >= new
    assert shape[2] * plan.block_size >= tokens


@given(PLANS)
def test_a_prompt_is_taken_whole_in_chunks_the_plan_has(plan: ServingPlan) -> None:
    for remaining in {1, 2, plan.chunks[0], plan.prefill_chunk, plan.max_context}:
        left = remaining
        while left:
            taken = plan.next_chunk(left)
            assert 1 <= taken <= min(left, plan.prefill_chunk)
            left -= taken


@given(PLANS)
def test_padding_of_a_prompts_chunk_is_a_quarter_of_it_or_a_steps_worth(plan: ServingPlan) -> None:
    for remaining in range(2, plan.prefill_chunk + 1):
        taken = plan.next_chunk(remaining)
        _, tokens, _ = plan.shape_for(1, taken, 1)
        assert tokens - taken <= max(STEP_TOKENS, tokens // 4) or tokens == plan.chunks[0]


@given(PLANS)
def test_neighbouring_context_buckets_at_most_quadruple_or_the_plan_was_asked_to_be_small(
    plan: ServingPlan,
) -> None:
    ratios = [upper / lower for lower, upper in pairwise(plan.context_blocks)]
    assert max(ratios, default=1) <= 4 or len(plan.shapes()) <= 40


def test_the_default_plan_for_eight_thousand_tokens_has_under_a_hundred_shapes() -> None:
    plan = plan_serving(max_context=8192, blocks=1000, concurrency=16)
    assert len(plan.shapes()) <= 96
    assert plan.context_blocks[-1] * plan.block_size == 8192


def test_fewer_shapes_are_had_by_coarser_buckets() -> None:
    few = plan_serving(max_context=8192, blocks=1000, concurrency=16, most_shapes=20)
    assert len(few.shapes()) <= 20
    many = plan_serving(max_context=8192, blocks=1000, concurrency=16)
    assert few.worst_padding()["context_blocks"] > many.worst_padding()["context_blocks"]


def test_the_largest_shape_comes_first_for_the_warm_up() -> None:
    shapes = plan_of().shapes()
    assert shapes[0] == max(shapes, key=lambda shape: shape[0] * shape[1] * shape[2])


@given(PLANS)
def test_no_shape_is_larger_in_any_way_than_one_of_the_largest(plan: ServingPlan) -> None:
    """text-generation-inference#2744: a warm-up went well, and a request then ran out of memory."""
    largest = plan.largest_shapes()
    assert set(largest) <= set(plan.shapes())
    for rows, tokens, context in plan.shapes():
        assert any(tokens == new and rows <= most and context <= widest for most, new, widest in largest)


def test_the_largest_shapes_are_a_few_of_many() -> None:
    plan = plan_serving(max_context=4096, blocks=2049, concurrency=8)
    assert len(plan.largest_shapes()) <= 1 + len(plan.chunks) < len(plan.shapes()) / 10


def test_the_told_padding_bound_of_decoding_is_that_of_the_worst_number_of_rows() -> None:
    plan = plan_of(rows=13)
    worst = max(1 - rows / plan.shape_for(rows, 1, 1)[0] for rows in range(1, 14))
    assert plan.worst_padding()["decode_rows"] == pytest.approx(worst)


def test_more_shapes_than_allowed_are_refused_with_their_number() -> None:
    with pytest.raises(InputError, match=r"\d+ shapes at the least .*most_shapes is 1"):
        plan_serving(max_context=8192, blocks=1000, concurrency=16, most_shapes=1)


@pytest.mark.parametrize("wrong", [{"blocks": 1}, {"block_size": 0}, {"concurrency": 0}, {"max_context": 1}])
def test_a_plan_without_room_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="serving plan"):
        plan_serving(**{"max_context": 64, "blocks": 10, "concurrency": 2, **wrong})


def test_a_plan_whose_shapes_do_not_reach_its_limits_is_refused() -> None:
    with pytest.raises(InputError, match="do not cover 4 rows"):
        ServingPlan(
            block_size=4,
            blocks=9,
            max_context=64,
            max_rows=4,
            prefill_chunk=16,
            decode_rows=(1, 2),
            prefill_shapes=((1, 16),),
            context_blocks=(16,),
        )


def test_a_step_beyond_the_plan_is_refused() -> None:
    with pytest.raises(InputError, match="no shape for 9 rows"):
        plan_of(rows=8).shape_for(9, 1, 1)
