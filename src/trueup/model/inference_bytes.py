"""int8 weights that torch multiplies as bytes, faithful to what is stored.

Activations are rounded to 15 bits with a scale for each row, and go through the product as two rows of bytes;
a product of integers has no other error. No row depends on who shares the batch.

N rows of activations, P = 2 bytes of each, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .inference_stored import bytes_of

BYTE = 127.0
PARTS = 254.0  # the second byte counts in parts of the first: from -127 to 127 for half of it either way
TINIEST = 1e-30  # of a row's largest magnitude: a row of zeros is divided by something


@dataclass(frozen=True)
class ByteLinear:
    """int8 weights with a scale for each output, row by row."""

    values_OI: torch.Tensor
    scales_O: torch.Tensor
    bias_O: torch.Tensor | None

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        bytes_PNI, unit_N1 = two_bytes(x_NI)
        first_NO, second_NO = torch._int_mm(bytes_PNI.flatten(0, 1), self.values_OI.t()).chunk(2)
        out_NO = first_NO.float().add_(second_NO, alpha=1 / PARTS).mul_(unit_N1).mul_(self.scales_O)
        if self.bias_O is not None:
            out_NO += self.bias_O
        return out_NO.to(x_NI.dtype)

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        return stream_NO.add_(self(x_NI))

    @property
    def bytes(self) -> int:
        return bytes_of(self.values_OI, self.scales_O, self.bias_O)


def two_bytes(x_NI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(2, N, I) int8 and (N, 1): x is about (first + second / 254) * unit, to 1/32,000 of the row's largest
    magnitude. A row with a number that is none has a unit that is none."""
    unit_N1 = x_NI.abs().amax(-1, keepdim=True).float().clamp_(min=TINIEST).mul_(1 / BYTE)
    scaled_NI = x_NI / unit_N1
    first_NI = torch.round(scaled_NI)
    bytes_PNI = torch.empty((2, *x_NI.shape), dtype=torch.int8, device=x_NI.device)
    bytes_PNI[0].copy_(first_NI)
    bytes_PNI[1].copy_(scaled_NI.sub_(first_NI).mul_(PARTS))
    return bytes_PNI, unit_N1


def multiplies_bytes(device: torch.device) -> bool:
    """Whether torch multiplies bytes here, and exactly. Processors without instructions for it may saturate
    halfway; one product with the largest sums tells."""
    return device.type == "cpu" and torch._C._has_mkldnn and _exact_bytes()


@lru_cache(maxsize=1)
def _exact_bytes() -> bool:
    values_OI = torch.full((32, 64), 127, dtype=torch.int8)
    values_OI[1::2] = -128
    rows_NI = torch.full((4, 64), -127, dtype=torch.int8)
    rows_NI[::2] = 127
    wanted_NO = rows_NI.float() @ values_OI.float().t()
    try:
        return torch.equal(torch._int_mm(rows_NI, values_OI.t()).float(), wanted_NO)
    except RuntimeError:  # no such product in this build of torch
        return False
