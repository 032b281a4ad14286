"""A model in fp64 throughout, to tell rounding from error: the yardstick that batch shapes are compared with.

Llama's norm rounds to fp32 whatever the weights are, and so does eager attention's softmax. In fp32 that is
right; in a model widened to fp64 it would leave fp32 rounding in the middle, which depends on the batch's
shape.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .decoder import build_decoder
from .load import LoadedModel

WIDE_EAGER = "trueup_wide_eager"


def widen(loaded: LoadedModel) -> LoadedModel:
    """The model in fp64 with no narrower step left in norms and attention; its module is changed in place."""
    loaded.module.double()
    for module in loaded.module.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = _norm_of(module)
    if loaded.attention == "eager":
        from transformers import AttentionInterface

        AttentionInterface.register(WIDE_EAGER, _wide_eager)
        loaded.base.config._attn_implementation = WIDE_EAGER
    if loaded.decoder is None:
        return loaded
    return replace(loaded, decoder=build_decoder(loaded.base, torch.float64))


def _norm_of(norm: Any) -> Any:
    def forward(hidden_BTH: torch.Tensor) -> torch.Tensor:
        mean_square = hidden_BTH.square().mean(-1, keepdim=True)
        normed: torch.Tensor = norm.weight * (hidden_BTH * torch.rsqrt(mean_square + norm.variance_epsilon))
        return normed

    return forward


def _wide_eager(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(q k^T * scaling + mask) v with grouped keys repeated, in the inputs' own precision."""
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    weights = torch.softmax(query @ key.transpose(2, 3) * scaling + attention_mask, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights
