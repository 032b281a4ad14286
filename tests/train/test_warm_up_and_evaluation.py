"""Warming up changes nothing; evaluation is exact whatever the batch shape (transformers#12878)."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trueup.train.evaluate import held_out
from trueup.train.stepper import gather, train_step
from trueup.train.warm_up import warm_up


@pytest.mark.parametrize("strategy", ["pack", "bucket"])
def test_warm_up_sees_every_shape_and_changes_no_state(open_tiny: Any, strategy: str) -> None:
    session = open_tiny("tune.dropout=0.1", f"shapes.strategy={strategy}")
    planned = [batch for step in session.epoch(0) for batch in step]
    train_step(session, gather(session, planned[:2]), lr=1e-3)  # so that there is optimizer state to disturb
    before = copy.deepcopy((session.model.module.state_dict(), session.optimizer.state_dict()))
    random_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()

    assert warm_up(session) == {batch.shape for batch in planned}

    weights, optimizer = session.model.module.state_dict(), session.optimizer.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in before[0].items())
    for index, state in before[1]["state"].items():
        assert all(torch.equal(value, optimizer["state"][index][key]) for key, value in state.items())
    assert torch.equal(random_state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state()[1]).all()
    assert all(p.grad is None for _, p in session.model.trainable)


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
