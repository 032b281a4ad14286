"""Matrix products of serving: one resident copy of each weight, in the form in which the device's products
read it.

N rows of activations, I inputs, O outputs, G scales of an output.

What is stored and what computes:
- fp32 and bf16 weights compute as they are, in products of that precision.
- int8 weights with a scale for each output stay int8 where the CPU multiplies bytes exactly: a decode step
  widens them as they are read, and its activations stay fp32 (`decode`); elsewhere activations are rounded to
  15 bits (`inference_bytes`).
- All other quantised weights (groups, int4 as two values to the byte, fp8, int8 elsewhere) are widened in
  each call, one matrix at a time, and the activations stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from trueup.device.host import mkl_is_slower

from .inference_bytes import ByteLinear, multiplies_bytes
from .inference_stored import StoredMatrix, WidenedLinear, bytes_of
from .quantized import QuantizedWeight

Matrix = torch.Tensor | QuantizedWeight

FEW_ROWS = 2
DECODE_ROWS = 16  # the batch that oneDNN's layout of a weight is chosen for; good for larger ones too


class Linear(Protocol):
    """x W' + b, in the precision of x."""

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor: ...
    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        """The stream plus the product. May be the stream itself, changed."""
        ...

    @property
    def bytes(self) -> int:
        """Of weight, scales and bias, as they lie in memory."""
        ...


@dataclass(frozen=True)
class PlainLinear:
    """Row by row as torch keeps it, on any device."""

    weight_OI: torch.Tensor
    bias_O: torch.Tensor | None

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x_NI, self.weight_OI, self.bias_O)

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        return stream_NO.add_(self(x_NI))

    @property
    def bytes(self) -> int:
        return bytes_of(self.weight_OI, self.bias_O)


@dataclass(frozen=True)
class OneDnnLinear:
    """On a CPU, by oneDNN: bf16 in its own layout (`blocked`), fp32 row by row. Up to two rows of fp32 take
    torch's product, which reads a plain weight faster."""

    weight_OI: torch.Tensor
    bias_O: torch.Tensor | None
    blocked: bool

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        if len(x_NI) <= FEW_ROWS and not self.blocked:
            return nn.functional.linear(x_NI, self.weight_OI, self.bias_O)
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x_NI, self.weight_OI, self.bias_O, "none", [], ""
        )
        return out

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        return stream_NO.add_(self(x_NI))

    @property
    def bytes(self) -> int:
        if self.blocked:
            return int(torch.ops.mkldnn._nbytes(self.weight_OI)) + bytes_of(self.bias_O)
        return bytes_of(self.weight_OI, self.bias_O)


@dataclass(frozen=True)
class SideBySide:
    """Linear layers of one input whose weights are stored differently, their outputs side by side."""

    parts: tuple[Linear, ...]

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x_NI) for part in self.parts], dim=-1)

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        return stream_NO.add_(self(x_NI))

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


def linear_of(
    matrices: tuple[Matrix, ...],
    biases: tuple[torch.Tensor | None, ...],
    dtype: torch.dtype,
    device: torch.device,
    *,
    fused: bool = True,
) -> Linear:
    """One linear layer of several whose input is the same. `fused`: let a CPU take oneDNN's products, which a
    compiler would not see through."""
    if all(isinstance(matrix, torch.Tensor) for matrix in matrices):
        weight_OI = _joined([matrix.to(dtype) for matrix in matrices if isinstance(matrix, torch.Tensor)])
        bias_O = _joined_biases(matrices, biases, dtype, device)
        return dense_linear(weight_OI, bias_O, device, fused=fused)
    stored = [matrix for matrix in matrices if isinstance(matrix, QuantizedWeight)]
    alike = len({(weight.scheme, weight.group) for weight in stored}) == 1
    if len(stored) != len(matrices) or not alike:
        pairs = zip(matrices, biases, strict=True)
        return SideBySide(
            tuple(linear_of((matrix,), (bias,), dtype, device, fused=fused) for matrix, bias in pairs)
        )
    whole = QuantizedWeight(
        stored[0].scheme,
        _joined([weight.values_OI for weight in stored]),
        _joined([weight.scales_OG for weight in stored]),
        stored[0].group,
    )
    if fused and goes_as_bytes(whole, device):
        bias_O = _joined_biases(matrices, biases, torch.float32, device)
        return ByteLinear(whole.values_OI.contiguous(), whole.scales_OG.flatten().float(), bias_O)
    return WidenedLinear(StoredMatrix.of(whole, device), _joined_biases(matrices, biases, dtype, device))


def goes_as_bytes(weight: QuantizedWeight, device: torch.device) -> bool:
    """Whether a product takes the weight as the bytes that are stored. Of one input torch's is wrong."""
    alone = weight.scheme == "int8" and weight.scales_OG.shape[1] == 1
    return alone and weight.values_OI.shape[1] > 1 and multiplies_bytes(device)


def dense_linear(
    weight_OI: torch.Tensor,
    bias_O: torch.Tensor | None,
    device: torch.device,
    *,
    fused: bool = True,
    shared: bool = False,
) -> Linear:
    """`fused` as for `linear_of`. `shared`: somebody else reads the weight too, so it stays as it is."""
    own_OI = weight_OI if shared else weight_OI.to(device, copy=True).contiguous()
    if not (fused and device.type == "cpu" and torch._C._has_mkldnn):
        return PlainLinear(own_OI, bias_O)
    if weight_OI.dtype == torch.float32:
        by_onednn = shared or mkl_is_slower()
        return OneDnnLinear(own_OI, bias_O, blocked=False) if by_onednn else PlainLinear(own_OI, bias_O)
    if shared or not bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return PlainLinear(own_OI, bias_O)
    reorder = torch.ops.mkldnn._reorder_linear_weight
    return OneDnnLinear(reorder(weight_OI.contiguous(), DECODE_ROWS), bias_O, blocked=True)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _joined_biases(
    matrices: tuple[Matrix, ...],
    biases: tuple[torch.Tensor | None, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor | None:
    if all(bias is None for bias in biases):
        return None
    outputs = [len(m) if isinstance(m, torch.Tensor) else len(m.values_OI) for m in matrices]
    given = [
        torch.zeros(count) if bias is None else bias for count, bias in zip(outputs, biases, strict=True)
    ]
    return torch.cat([bias.to(device, dtype) for bias in given])
