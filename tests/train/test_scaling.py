"""Loss scaling: off unless asked for, and a power of two that changes no bit of an fp32 result."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.recipe.models import PrecisionSection
from trueup.schema import InputError
from trueup.train.scaling import LEAST, MOST, LossScaler
from trueup.train.stepper import gather, train_step

POLICIES = ("fp32", "bf16", "bf16-master", "autocast")


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_scales_without_being_asked(policy: Any) -> None:
    scaler = LossScaler(PrecisionSection(policy=policy))
    assert scaler.scale == 1.0
    assert not scaler.bad_step()
    for _ in range(1000):
        scaler.good_step()
    assert scaler.scale == 1.0


def test_a_static_scale_never_moves_and_takes_no_blame() -> None:
    scaler = LossScaler(PrecisionSection(loss_scale="static", scale=1024, scale_window=1))
    scaler.good_step()
    assert not scaler.bad_step()
    assert scaler.scale == 1024


def test_a_dynamic_scale_doubles_after_its_window_and_halves_after_a_bad_step() -> None:
    scaler = LossScaler(PrecisionSection(loss_scale="dynamic", scale=4, scale_window=3))
    seen = []
    for good in (1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0):
        blamed = None
        if good:
            scaler.good_step()
        else:
            blamed = scaler.bad_step()
        seen.append((scaler.scale, blamed))
    assert seen == [
        (4, None), (4, None), (8, None), (8, None), (8, None), (4, True), (4, None), (4, None), (8, None),
        (4, True), (2, True), (1, True), (1, False), (1, False),
    ]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), max_size=200), st.integers(0, 40), st.integers(1, 4), st.integers(0, 199))
def test_a_dynamic_scale_stays_a_power_of_two_in_bounds_and_goes_on_from_its_state(
    steps: list[bool], exponent: int, window: int, cut: int
) -> None:
    section = PrecisionSection(loss_scale="dynamic", scale=2.0**exponent, scale_window=window)
    whole, resumed = LossScaler(section), LossScaler(section)
    for number, good in enumerate(steps):
        if number == cut:
            state = json.loads(json.dumps(resumed.state()))
            resumed = LossScaler(section)
            resumed.restore(state)
        before = whole.scale
        for scaler in (whole, resumed):
            if good:
                scaler.good_step()
            elif scaler.bad_step():
                assert scaler.scale == before / 2
            else:
                assert before == LEAST
        assert whole.scale == resumed.scale
        assert LEAST <= whole.scale <= MOST
        assert math.frexp(whole.scale)[0] == 0.5


def test_a_scale_from_the_recipe_may_be_above_what_growing_reaches() -> None:
    scaler = LossScaler(PrecisionSection(loss_scale="dynamic", scale=2.0**70, scale_window=1))
    scaler.good_step()
    assert scaler.scale == 2.0**70


@pytest.mark.parametrize("mode", ["off", "static"])
def test_another_kind_of_scaling_has_its_own_way_after_a_resume(mode: Any) -> None:
    dynamic = LossScaler(PrecisionSection(loss_scale="dynamic", scale=8))
    scaler = LossScaler(PrecisionSection(loss_scale=mode, scale=2))
    own = scaler.scale
    scaler.restore(dynamic.state())
    assert scaler.scale == own


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"mode": "dynamic", "scale": "much", "good_steps": 0},
        {"mode": "dynamic", "scale": math.inf, "good_steps": 0},
        {"mode": "dynamic", "scale": 0.0, "good_steps": 0},
        {"mode": "dynamic", "scale": 2.0, "good_steps": -1},
    ],
)
def test_a_damaged_state_is_refused(state: dict[str, Any]) -> None:
    scaler = LossScaler(PrecisionSection(loss_scale="dynamic"))
    with pytest.raises(InputError, match="another checkpoint"):
        scaler.restore(state)


@pytest.mark.parametrize("keys", [{"loss_scale": "dynamic", "scale": 0.5}, {"scale": math.inf}, {"scale": 0}])
def test_scales_that_cannot_be_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="scale"):
        PrecisionSection(**keys)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_power_of_two_changes_no_bit_of_an_fp32_training(open_tiny: Any, method: str) -> None:
    found = []
    for scale in (1.0, 2.0**16):
        session = open_tiny(f"tune.method={method}", "train.tokens_per_step=192")
        section = PrecisionSection(loss_scale="static", scale=scale)
        scaler = LossScaler(section)
        steps = [train_step(session, gather(session, planned), 1e-3, scaler) for planned in session.epoch(0)]
        assert {step.loss_scale for step in steps} == {scale}
        losses = [(step.loss, step.grad_norm) for step in steps]
        weights = {name: p.detach().clone() for name, p in session.model.trainable}
        found.append((losses, weights, copy.deepcopy(session.optimizer.state_dict()["state"])))
    assert len(found[0][0]) >= 3
    assert found[0][0] == found[1][0]
    assert all(torch.equal(weight, found[1][1][name]) for name, weight in found[0][1].items())
    for number, state in found[0][2].items():
        assert all(torch.equal(value, found[1][2][number][key]) for key, value in state.items())
