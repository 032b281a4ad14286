"""The precision that a model's weights are kept in, apart from that of its products.

With masters (policy bf16-master) the trained parameters themselves are the fp32 masters, and each forward
pass rounds them for its products. A second, working copy in bf16 would save that rounding, once a weight and
micro-batch, and cost 2 bytes a weight all the time, plus a gradient in bf16 beside the one in fp32 that
micro-batches are summed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .precision import Precision


def keep_weights_as(module: nn.Module, embedding: nn.Module, precision: Precision) -> None:
    """Round weights to bf16, in place, where `precision` keeps them so: before there is an optimizer.

    `embedding` is the module's own for tokens. What comes out of it is the stream of hidden states, which
    stays fp32 even when the embedding is not. Norms' weights stay fp32: they are few, and near 1 bf16 has
    steps of 1/128.
    """
    of_norms = {id(p) for part in module.modules() if is_norm(part) for p in part.parameters(recurse=False)}
    for parameter in module.parameters():
        dtype = precision.trained_dtype if parameter.requires_grad else precision.frozen_dtype
        if dtype == "bfloat16" and id(parameter) not in of_norms:
            parameter.data = parameter.data.to(torch.bfloat16)
    if next(embedding.parameters()).dtype == torch.bfloat16:
        embedding.register_forward_hook(_to_fp32)


def is_norm(module: nn.Module) -> bool:
    """RMSNorm, LayerNorm and what models name after them."""
    return type(module).__name__.endswith("Norm")


def _to_fp32(module: nn.Module, inputs: Any, hidden_BTH: torch.Tensor) -> torch.Tensor:
    return hidden_BTH.float()


@contextmanager
def widened(parts: Iterable[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """Within, each of these modules has weights of `dtype` while it runs, and only then: weights kept in
    fewer bits take part in an exact computation without a second model in memory."""
    kept: dict[nn.Parameter, torch.Tensor] = {}

    def widen(module: nn.Module, *_: Any) -> None:
        for parameter in module.parameters():
            if parameter.dtype != dtype:
                kept[parameter] = parameter.data
                parameter.data = parameter.data.to(dtype)

    def narrow(module: nn.Module, *_: Any) -> None:
        for parameter in module.parameters():
            if parameter in kept:
                parameter.data = kept.pop(parameter)

    hooks = []
    for part in parts:
        hooks.append(part.register_forward_pre_hook(widen))
        hooks.append(part.register_forward_hook(narrow, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
