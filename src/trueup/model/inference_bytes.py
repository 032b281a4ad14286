"""int8 weights that are multiplied as bytes, faithful to what is stored.

Activations are rounded to 15 bits with a scale for each row, and go through the product as two rows of bytes;
a product of integers has no other error. No row depends on who shares the batch. At the few rows of a decode
step the second byte costs nothing: the product waits for the weights.

N rows of activations, P = 2 bytes of each, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .inference_stored import StoredMatrix, bytes_of

BYTE = 127.0
PARTS = 254.0  # the second byte counts in parts of the first: from -127 to 127 for half of it either way
TINIEST = 1e-30  # of a row's largest magnitude: a row of zeros is divided by something


@dataclass(frozen=True)
class ByteLinear:
    """int8 weights with a scale for each output, multiplied as bytes by oneDNN."""

    packed: torch.Tensor
    scales_O: torch.Tensor
    bias_O: torch.Tensor | None

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        bytes_PNI, unit_N1 = two_bytes(x_NI)
        return self.finished(self.product(bytes_PNI), unit_N1, x_NI.dtype)

    def product(self, bytes_PNI: torch.Tensor) -> torch.Tensor:
        """(2, N, O): what each byte contributes, in units of the row."""
        rows_MI = bytes_PNI.flatten(0, 1)
        zeros_O = _zeros(len(self.scales_O))
        out_MO: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            *(rows_MI, 1.0, 0, self.packed, self.scales_O, zeros_O, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return out_MO.view(*bytes_PNI.shape[:2], -1)

    def finished(self, parts_PNO: torch.Tensor, unit_N1: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out_NO = torch.add(parts_PNO[0], parts_PNO[1], alpha=1 / PARTS).mul_(unit_N1)
        if self.bias_O is not None:
            out_NO += self.bias_O
        return out_NO.to(dtype)

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        bytes_PNI, unit_N1 = two_bytes(x_NI)
        parts_PNO = self.product(bytes_PNI)
        if self.bias_O is not None:
            return stream_NO.add_(self.finished(parts_PNO, unit_N1, stream_NO.dtype))
        whole_NO = torch.add(parts_PNO[0], parts_PNO[1], alpha=1 / PARTS)
        return stream_NO.addcmul_(whole_NO, unit_N1)

    @property
    def bytes(self) -> int:
        return int(torch.ops.mkldnn._nbytes(self.packed)) + bytes_of(self.scales_O, self.bias_O)


@dataclass(frozen=True)
class SharedByteHead:
    """The embedding's own values as the head. They stay row by row, since tokens are looked up in them."""

    stored: StoredMatrix

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        bytes_PNI, unit_N1 = two_bytes(x_NI)
        first_NO, second_NO = torch._int_mm(bytes_PNI.flatten(0, 1), self.stored.values.t()).chunk(2)
        whole_NO = torch.add(first_NO.float(), second_NO, alpha=1 / PARTS)
        return whole_NO.mul_(unit_N1).mul_(self.stored.scales_OG.flatten()).to(x_NI.dtype)

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        return stream_NO.add_(self(x_NI))

    @property
    def bytes(self) -> int:
        return self.stored.bytes


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


def pack_bytes(values_OI: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(values_OI.contiguous(), None)
    return packed


def multiplies_bytes(device: torch.device) -> bool:
    """Whether oneDNN multiplies bytes here, and exactly. Processors without instructions for it may saturate
    halfway; one product with the largest sums tells."""
    return device.type == "cpu" and torch._C._has_mkldnn and _exact_bytes()


@lru_cache(maxsize=1)
def _exact_bytes() -> bool:
    values_OI = torch.full((32, 64), 127, dtype=torch.int8)
    values_OI[1::2] = -128
    rows_NI = torch.full((4, 64), -127, dtype=torch.int8)
    rows_NI[::2] = 127
    try:
        linear = ByteLinear(pack_bytes(values_OI), torch.ones(32), None)
        found_NO = linear.product(rows_NI.view(2, 2, 64)).flatten(0, 1)
    except RuntimeError:  # no such product in this build of torch
        return False
    return bool(torch.equal(found_NO, rows_NI.float() @ values_OI.float().t()))


@lru_cache(maxsize=16)
def _zeros(outputs: int) -> torch.Tensor:
    """Zero points, the same few for all layers."""
    return torch.zeros(outputs, dtype=torch.int32)
