"""Warming up changes nothing; evaluation is exact whatever the batch shape (transformers#12878)."""

from __future__ import annotations

import copy
import itertools
import math
import random
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trueup.train import warm_up as warm_up_module
from trueup.train.evaluate import held_out
from trueup.train.stepper import accumulate, gather, train_step
from trueup.train.warm_up import dummy_limits, is_steady, warm_up


def bits(value: torch.Tensor) -> bytes:
    return value.detach().view(torch.uint8).numpy().tobytes() if value.dim() else repr(value.item()).encode()


@pytest.mark.parametrize(
    ("strategy", "method", "stepped", "policy"),
    [
        *itertools.product(("pack", "bucket"), ("lora", "full"), (False, True), ("fp32",)),
        *itertools.product(("pack",), ("lora", "full"), (True,), ("bf16-master", "bf16", "stochastic")),
    ],
)
def test_warm_up_sees_every_shape_and_changes_no_bit(
    open_tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    method: str,
    stepped: bool,
    policy: str,
) -> None:
    precision = [f"precision.policy={policy}"]
    if policy == "stochastic":
        precision = ["precision.policy=bf16", "precision.stochastic_rounding=true"]
    session = open_tiny(
        "tune.dropout=0.1", f"shapes.strategy={strategy}", f"tune.method={method}", *precision
    )
    planned = session.epoch(0)[0]
    if stepped:  # so that there is optimizer state to disturb, and a weight of minus zero
        train_step(session, gather(session, planned), lr=1e-3)
    weight = session.model.trainable[0][1]
    weight.data.view(-1)[0] = -0.0
    accumulate(session, gather(session, planned))
    before = copy.deepcopy((session.model.module.state_dict(), session.optimizer.state_dict()))
    gradients = {name: bits(p.grad) for name, p in session.model.trainable if p.grad is not None}
    random_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    python_state = random.getstate()
    seen = []
    real = warm_up_module.micro_batch_loss

    def watched(session: Any, batch: Any, phase: str) -> torch.Tensor:
        seen.append((phase, batch.shape))
        return real(session, batch, phase)  # type: ignore[arg-type]

    monkeypatch.setattr(warm_up_module, "micro_batch_loss", watched)
    warm_up(session)

    assert {shape for phase, shape in seen if phase == "training"} == {
        batch.shape for step in session.epoch(0) for batch in step
    }
    assert seen[0][1] == session.plan.largest
    weights, optimizer = session.model.module.state_dict(), session.optimizer.state_dict()
    assert all(bits(value) == bits(weights[name]) for name, value in before[0].items())
    assert bool(before[1]["state"]) == stepped
    assert optimizer["state"].keys() == before[1]["state"].keys()
    for index, state in before[1]["state"].items():
        assert all(bits(value) == bits(optimizer["state"][index][key]) for key, value in state.items())
    assert optimizer["param_groups"] == before[1]["param_groups"]
    assert torch.equal(random_state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state()[1]).all()
    assert python_state == random.getstate()
    assert gradients == {name: bits(p.grad) for name, p in session.model.trainable if p.grad is not None}
    assert session.model.module.training


def test_dummy_steps_end_at_the_recipes_limit_or_when_alike(open_tiny: Any) -> None:
    session = open_tiny("warm_up.steps=1")
    warm_up(session)
    (event,) = (event for event in session.timeline._sink.events if event.kind == "warm_up")
    assert event.data["steps"] == 1
    assert event.message == "1 dummy steps, until the limit of 1 steps"


@pytest.mark.parametrize(
    ("times_s", "most", "steady"),
    [
        ([1.0], 3, False),
        ([1.4, 1.0], 3, False),
        ([1.4, 1.0, 1.01], 3, True),
        ([1.0] * 19, math.inf, False),
        ([1.0, 1.01] * 20, math.inf, True),
        ([2.0 - n / 40 for n in range(40)], math.inf, False),
    ],
)
def test_steady_is_two_alike_or_what_the_statistics_say(
    times_s: list[float], most: float, steady: bool
) -> None:
    assert is_steady(times_s, most) == steady


def test_limits_of_dummy_steps_go_by_the_device(open_tiny: Any) -> None:
    def limits(kind: str, *overrides: str) -> tuple[float, float]:
        session = open_tiny(*overrides)
        return dummy_limits(session.recipe.warm_up, kind)

    assert limits("cpu") == (1, math.inf)
    assert limits("cuda") == (math.inf, 60.0)
    assert limits("cuda", "warm_up.minutes=5") == (math.inf, 300.0)
    assert limits("cuda", "warm_up.steps=0") == (0, math.inf)
    assert limits("cpu", "warm_up.steps=2", "warm_up.minutes=1") == (2, 60.0)


def test_held_out_loss_does_not_depend_on_the_batch_shape(open_tiny: Any) -> None:
    results = [
        held_out(
            open_tiny(f"shapes.strategy={strategy}", f"shapes.tokens_per_microbatch={tokens}", wide=True)
        )
        for strategy, tokens in [("pack", 96), ("bucket", 96), ("bucket", 192), ("pack", 160)]
    ]
    assert len({result.tokens for result in results}) == 1
    for result in results[1:]:
        assert result.loss_sum == pytest.approx(results[0].loss_sum, rel=1e-9)


def test_evaluation_keeps_no_logits(open_tiny: Any) -> None:
    """transformers#12878: evaluation kept the logits of every batch until the memory was gone."""
    session = open_tiny("evaluate.max_tokens=100000")
    vocab = session.model.dims.vocab
    assert len(session.evaluation.batches) > 3
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal most
            made = func(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor) and made.dim() == 2 and made.shape[1] == vocab:
                alive.append(weakref.ref(made))
                most = max(most, sum(tensor.shape[0] for ref in alive if (tensor := ref()) is not None))
            return made

    with Watch():
        result = held_out(session)
    assert alive
    assert 0 < most < result.tokens
    assert all(ref() is None for ref in alive)


def test_evaluation_leaves_the_model_in_training_mode_and_without_gradients(open_tiny: Any) -> None:
    session = open_tiny("tune.dropout=0.5")
    assert held_out(session).loss_sum == held_out(session).loss_sum  # dropout is off
    assert session.model.module.training
    assert all(p.grad is None for _, p in session.model.trainable)
