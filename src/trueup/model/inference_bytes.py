"""int8 weights that are multiplied as bytes, faithful to what is stored.

Activations are rounded to 15 bits with a scale for each row, and go through the product as two rows of bytes;
a product of integers has no other error. No row depends on who shares the batch. At the few rows of a decode
step the second byte costs nothing: the product waits for the weights.

At fewer rows still, what surrounds a product takes longer than the product. There activations and results
are rounded to bf16: next to what int8 weights move, a fiftieth of the divergence of the next token (measured
on SmolLM2-135M).

N rows of activations, P = 2 bytes of each, I inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .inference_stored import bytes_of

BYTE = 127.0
PARTS = 254.0  # the second byte counts in parts of the first: from -127 to 127 for half of it either way
FEW_ROWS = 2  # up to which torch's product of bf16 and bytes is the faster; measured on AMX cores
TINIEST = 1e-30  # of a row's largest magnitude: a row of zeros is divided by something


@dataclass(frozen=True)
class ByteLinear:
    """int8 weights with a scale for each output, row by row. Few rows of activations go through a product
    that reads them in bf16 and is bound by reading the weights alone; more go through as bytes."""

    values_OI: torch.Tensor
    scales_O: torch.Tensor
    bias_O: torch.Tensor | None

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        out_NO = self._few(x_NI) if takes_bf16(len(x_NI), self.values_OI) else self._many(x_NI)
        if self.bias_O is not None:
            out_NO += self.bias_O
        return out_NO.to(x_NI.dtype)

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        return stream_NO.add_(self(x_NI))

    def _few(self, x_NI: torch.Tensor) -> torch.Tensor:
        out_NO = torch._weight_int8pack_mm(x_NI.bfloat16(), self.values_OI, _ones(len(self.scales_O)))
        return out_NO * self.scales_O  # fp32; the product's own scales would be rounded to bf16

    def _many(self, x_NI: torch.Tensor) -> torch.Tensor:
        bytes_PNI, unit_N1 = two_bytes(x_NI)
        first_NO, second_NO = torch._int_mm(bytes_PNI.flatten(0, 1), self.values_OI.t()).chunk(2)
        return first_NO.float().add_(second_NO, alpha=1 / PARTS).mul_(unit_N1).mul_(self.scales_O)

    @property
    def bytes(self) -> int:
        return bytes_of(self.values_OI, self.scales_O, self.bias_O)


@dataclass(frozen=True)
class PackedByteLinear:
    """Of a head, in oneDNN's layout, and always as bytes: logits in bf16 would tie. A tied embedding has a
    copy of its own, row by row, since tokens are looked up in it."""

    packed: torch.Tensor
    scales_O: torch.Tensor

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        bytes_PNI, unit_N1 = two_bytes(x_NI)
        first_NO, second_NO = self.product(bytes_PNI.flatten(0, 1)).chunk(2)
        return first_NO.add_(second_NO, alpha=1 / PARTS).mul_(unit_N1).to(x_NI.dtype)

    def product(self, rows_MI: torch.Tensor) -> torch.Tensor:
        """(M, O): of rows of bytes."""
        zeros_O = _zeros(len(self.scales_O))
        out_MO: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            *(rows_MI, 1.0, 0, self.packed, self.scales_O, zeros_O, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return out_MO

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        return stream_NO.add_(self(x_NI))

    @property
    def bytes(self) -> int:
        return bytes_of(self.packed, self.scales_O)


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


def takes_bf16(rows: int, values_OI: torch.Tensor) -> bool:
    """Whether so many rows go through torch's product of bf16 activations and bytes. It is a vectorised one
    on these processors alone, and reads beyond a matrix that does not fill its blocks."""
    outputs, inputs = values_OI.shape
    return rows <= FEW_ROWS and outputs % 16 == 0 and inputs % 64 == 0 and _capability() in ("AVX2", "AVX512")


@lru_cache(maxsize=1)
def _capability() -> str:
    return torch.backends.cpu.get_cpu_capability()


@lru_cache(maxsize=1)
def _exact_bytes() -> bool:
    values_OI = torch.full((32, 64), 127, dtype=torch.int8)
    values_OI[1::2] = -128
    rows_NI = torch.full((4, 64), -127, dtype=torch.int8)
    rows_NI[::2] = 127
    wanted_NO = rows_NI.float() @ values_OI.float().t()
    try:
        packed = PackedByteLinear(pack_bytes(values_OI), torch.ones(32))
        found = (packed.product(rows_NI), torch._int_mm(rows_NI, values_OI.t()).float())
    except RuntimeError:  # no such product in this build of torch
        return False
    return all(torch.equal(found_NO, wanted_NO) for found_NO in found)


@lru_cache(maxsize=16)
def _zeros(outputs: int) -> torch.Tensor:
    """Zero points, the same few for all layers."""
    return torch.zeros(outputs, dtype=torch.int32)


@lru_cache(maxsize=16)
def _ones(outputs: int) -> torch.Tensor:
    return torch.ones(outputs, dtype=torch.bfloat16)
