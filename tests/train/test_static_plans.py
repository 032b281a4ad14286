"""A plan for a device that takes static shapes only: padded rows and filled chunks change no answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_accumulation import assert_same, gradient, one_by_one, perturb_adapters

from trueup.schema import DeviceRules
from trueup.train.evaluate import held_out
from trueup.train.session import Session
from trueup.train.stepper import gather

CHUNK = 16


def static(session: Session) -> Session:
    """The same model and data, planned as for a device that compiles every shape."""
    assert session.planner.profile is not None
    rules = DeviceRules(static=True, multiple=32)
    profile = session.planner.profile.model_copy(update={"rules": rules})
    planner = replace(session.planner, profile=profile, chunk_rows=CHUNK)
    return replace(session, planner=planner).with_plan(planner.plan())


@pytest.mark.parametrize("strategy", ["pack", "bucket", "max"])
def test_the_gradient_is_that_of_one_by_one_and_no_other_shape_is_shown(
    open_tiny: Any, strategy: str
) -> None:
    eager = open_tiny(
        f"shapes.strategy={strategy}", "shapes.tokens_per_microbatch=192", "compile.mode=none", wide=True
    )
    perturb_adapters(eager, 0)
    fixed = static(eager)
    steps = fixed.epoch(0)
    assert len(steps) == fixed.plan.steps_per_epoch
    for step in (steps[0], steps[-1]):
        assert {batch.shape for batch in step} <= set(fixed.plan.training)
        examples = [n for batch in step for n in batch.examples]
        assert_same(gradient(fixed, list(step)), gradient(eager, one_by_one(eager, examples)), 1e-9)
        counts = gather(fixed, step).counts
        assert counts.head_rows % CHUNK == 0
        assert counts.head_rows >= counts.supervised
    assert held_out(fixed).loss_sum == pytest.approx(held_out(eager).loss_sum, rel=1e-9)
    assert {batch.shape for batch in fixed.evaluation.batches} <= set(fixed.plan.evaluation)


def test_the_planner_is_told_how_attention_will_be_computed(open_tiny: Any) -> None:
    for dropout, attention, layers in ((0.0, "example", "own"), (0.1, "row", "transformers")):
        session = open_tiny(f"tune.dropout={dropout}", "compile.mode=none")
        assert session.planner.profile.attention == attention
        assert session.choices["layers"].value == layers


def test_another_plan_for_less_memory_gives_the_same_step(open_tiny: Any) -> None:
    session = open_tiny(
        *("shapes.strategy=max", "shapes.tokens_per_microbatch=384", "train.tokens_per_step=384"),
        "compile.mode=none",
    )
    smaller = session.with_plan(session.planner.smaller(session.plan, session.plan.largest))
    (rows, width), (fewer, same) = session.plan.largest, smaller.plan.largest
    assert (fewer, same) == (rows // 2, width)
    assert smaller.plan.micro_batches_per_step == 2 * session.plan.micro_batches_per_step
    assert smaller.choices["shapes"].reason.startswith("micro-batches of at most")
    assert sorted(n for step in smaller.epoch(0) for batch in step for n in batch.examples) == list(
        range(len(session.training))
    )
