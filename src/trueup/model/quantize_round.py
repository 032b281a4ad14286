"""Rounding to the nearest: scales from the largest weight of a group, values from the scales.

O outputs, I inputs, G scales of an output.
"""

from __future__ import annotations

import torch

from trueup.schema.quantization import Scheme

from .quantized import FP8, QuantizedWeight

LARGEST: dict[Scheme, float] = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
LOWEST: dict[Scheme, float] = {"int8": -128.0, "int4": -8.0, "fp8": -448.0}
GGUF_GROUP = 32  # of GGUF's Q8_0 and Q4_0, whose scales are half precision


def scales_of(
    weight_OI: torch.Tensor, scheme: Scheme, group: int | None, *, per_tensor: bool = False
) -> torch.Tensor:
    """(O, G) fp32: the largest magnitude of each group over the scheme's largest value; 1 where all are zero.

    Scales of groups of 32 are rounded to half precision, in which GGUF keeps them, where it can hold them.
    """
    outputs = weight_OI.shape[0]
    largest_OG = weight_OI.float().abs().view(outputs, _groups(weight_OI, group), -1).amax(-1)
    if per_tensor:
        largest_OG = largest_OG.max().expand_as(largest_OG)
    scales_OG = largest_OG / LARGEST[scheme]
    scales_OG = torch.where(scales_OG > 0, scales_OG, torch.ones_like(scales_OG))
    if group == GGUF_GROUP and scheme != "fp8":
        halved_OG = scales_OG.half().float()
        scales_OG = torch.where((halved_OG > 0) & torch.isfinite(halved_OG), halved_OG, scales_OG)
    return scales_OG.contiguous()


def on_grid(weight: torch.Tensor, scales: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """The values, still in fp32, whose products with `scales` are nearest to the weights. Broadcasts."""
    scaled = (weight.float() / scales).clamp(LOWEST[scheme], LARGEST[scheme])
    if scheme == "fp8":
        return scaled.to(FP8).float()
    return scaled.round()


def round_to_nearest(
    weight_OI: torch.Tensor, scheme: Scheme, group: int | None, *, per_tensor: bool = False
) -> QuantizedWeight:
    """The matrix with each weight rounded on its own."""
    scales_OG = scales_of(weight_OI, scheme, group, per_tensor=per_tensor)
    grouped = weight_OI.view(weight_OI.shape[0], scales_OG.shape[1], -1)
    values_OI = on_grid(grouped, scales_OG.unsqueeze(-1), scheme).view_as(weight_OI)
    return stored(values_OI, scales_OG, scheme, group)


def stored(
    values_OI: torch.Tensor, scales_OG: torch.Tensor, scheme: Scheme, group: int | None
) -> QuantizedWeight:
    """From values on the grid in fp32 to the type they are kept in."""
    return QuantizedWeight(scheme, values_OI.to(FP8 if scheme == "fp8" else torch.int8), scales_OG, group)


def _groups(weight_OI: torch.Tensor, group: int | None) -> int:
    return 1 if group is None else weight_OI.shape[1] // group
