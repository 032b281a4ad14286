"""The dynamic range of a matrix beside that of fp8 e4m3: largest 448, steps of 2^-9 next to zero."""

from __future__ import annotations

import torch

from trueup.schema.quantization import RangeCheck

# Beyond these a value would be rounded past the largest, or to zero: half a step above 448, half of 2^-9.
SATURATES = 464.0
UNDERFLOWS = 2.0**-10


def check_range(name: str, weight_OI: torch.Tensor, scales_OG: torch.Tensor) -> RangeCheck:
    """Counts the values that `scales_OG` would push out of fp8's range, and those that no scale would."""
    plain = weight_OI.float().abs()
    scaled = (plain.view(*scales_OG.shape, -1) / scales_OG.unsqueeze(-1)).view_as(plain)
    of_something = plain[plain > 0]
    return RangeCheck(
        name=name,
        values=plain.numel(),
        largest=float(plain.max()),
        smallest=float(of_something.min()) if of_something.numel() else 0.0,
        saturated=_saturated(scaled),
        underflowed=_underflowed(scaled),
        plain_saturated=_saturated(plain),
        plain_underflowed=_underflowed(plain),
    )


def _saturated(magnitudes: torch.Tensor) -> int:
    return int((magnitudes > SATURATES).sum())


def _underflowed(magnitudes: torch.Tensor) -> int:
    return int(((magnitudes > 0) & (magnitudes <= UNDERFLOWS)).sum())
