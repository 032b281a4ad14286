"""Who is named for a gradient that is no number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_batches import FP32, examples_of, loaded_model, packed

from trueup.model.batch import batch_loss
from trueup.model.builtin import ResolvedModel
from trueup.model.non_finite import Watch, watched
from trueup.recipe.models import TuneSection

ATTENTION = "model.layers.1.self_attn"


class _NanBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * math.nan


@pytest.mark.parametrize("culprit", ["q_proj", "v_proj"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_of_several_that_took_a_tensor_in_none_is_named_for_another(
    tiny: ResolvedModel, culprit: str, method: Any
) -> None:
    """Queries, keys and values are of one input: its gradient is the sum of theirs."""
    loaded = loaded_model(tiny, TuneSection(method=method, rank=4))
    linear = getattr(loaded.base.model.layers[1].self_attn, culprit)
    plain, apply = linear.forward, _NanBackward.apply
    linear.forward = lambda x: plain(apply(x))  # type: ignore[no-untyped-call]
    (batch,) = packed(examples_of(3, [9, 14, 5]))
    watch = Watch(batch.tokens_BT.numel())
    with watched(loaded, watch) as model:
        watch.backward(batch_loss(model, batch, FP32))
    assert watch.fault is not None
    assert (watch.fault.module, watch.fault.direction) == (ATTENTION, "backward")
    assert watch.fault.places
