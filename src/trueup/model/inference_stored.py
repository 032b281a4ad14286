"""Quantised matrices at rest in serving, and products that widen them call by call.

N rows of activations, I inputs, O outputs, G scales of an output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from .quantized import QuantizedWeight


@dataclass(frozen=True)
class StoredMatrix:
    """A quantised matrix at rest: `values` as QuantizedWeight has them, but int4 as two to the byte, the
    first in the lower half."""

    values: torch.Tensor
    scales_OG: torch.Tensor
    halves: bool

    @classmethod
    def of(cls, weight: QuantizedWeight, device: torch.device) -> StoredMatrix:
        values, halves = weight.values_OI, weight.scheme == "int4" and weight.values_OI.shape[1] % 2 == 0
        if halves:
            first, second = (values[:, place::2].to(torch.uint8) & 15 for place in (0, 1))
            values = first | (second << 4)
        return cls(values.to(device), weight.scales_OG.float().to(device), halves)

    def widened(self, dtype: torch.dtype) -> torch.Tensor:
        """(O, I): values times scales."""
        return self._times_scales(self.values, self.scales_OG, dtype)

    def rows(self, which_N: torch.Tensor) -> torch.Tensor:
        """(N, I) fp32: these rows alone."""
        bare = self.values.view(torch.uint8) if self.values.dtype.is_floating_point else self.values
        values = bare.index_select(0, which_N).view(self.values.dtype)
        return self._times_scales(values, self.scales_OG.index_select(0, which_N), torch.float32)

    def _times_scales(
        self, values: torch.Tensor, scales_OG: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        if self.halves:
            # shifted up and down again as signed bytes, a half keeps its sign
            lower, upper = ((values << 4).view(torch.int8) >> 4, values.view(torch.int8) >> 4)
            values = torch.stack((lower, upper), dim=-1).flatten(1)
        grouped = values.to(torch.float32).view(len(values), scales_OG.shape[1], -1)
        return (grouped * scales_OG.unsqueeze(-1)).flatten(1).to(dtype)

    @property
    def bytes(self) -> int:
        return bytes_of(self.values, self.scales_OG)


@dataclass(frozen=True)
class WidenedLinear:
    """Quantised weights that are widened to the activations' precision in each call."""

    stored: StoredMatrix
    bias_O: torch.Tensor | None

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x_NI, self.stored.widened(x_NI.dtype), self.bias_O)

    def added(self, x_NI: torch.Tensor, stream_NO: torch.Tensor) -> torch.Tensor:
        return stream_NO.add_(self(x_NI))

    @property
    def bytes(self) -> int:
        return self.stored.bytes + bytes_of(self.bias_O)


def bytes_of(*tensors: torch.Tensor | None) -> int:
    """As they lie in memory, in oneDNN's layout too."""
    return sum(_bytes_of(tensor) for tensor in tensors if tensor is not None)


def _bytes_of(tensor: torch.Tensor) -> int:
    if tensor.layout == torch.strided:
        return tensor.untyped_storage().nbytes()
    return int(torch.ops.mkldnn._nbytes(tensor))
