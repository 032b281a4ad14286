"""The parts of a Llama layer beside attention, each a forward and a backward pass of as few sweeps over
memory as torch allows. In eager mode a layer's time beside the matrix products is such sweeps: casts,
squares, products, copies, each a few dozen microseconds, hundreds of times a step.

N tokens, H hidden size, F size of the feed-forward part, I and O inputs and outputs of a projection, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


def add_and_norm(
    stream_NH: torch.Tensor,
    change_NH: torch.Tensor | None,
    weight_H: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(stream + change, its RMSNorm times `weight_H` in `dtype`). Statistics are in the stream's precision,
    which is fp32 or wider."""
    apply: Any = _AddAndNorm.apply
    stream, normed = apply(stream_NH, change_NH, weight_H, eps, dtype)
    return stream, normed


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stream_NH: torch.Tensor,
        change_NH: torch.Tensor | None,
        weight_H: torch.Tensor,
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total_NH = stream_NH.view_as(stream_NH) if change_NH is None else stream_NH + change_NH
        length_N1 = torch.linalg.vector_norm(total_NH, dim=-1, keepdim=True)
        scale_N1 = torch.rsqrt(length_N1.square() / total_NH.shape[-1] + eps)
        normed_NH = torch.empty_like(total_NH, dtype=dtype)
        torch.mul(total_NH * scale_N1, weight_H, out=normed_NH)
        ctx.save_for_backward(total_NH, scale_N1, weight_H)
        ctx.change_dtype = None if change_NH is None else change_NH.dtype
        ctx.set_materialize_grads(False)
        return total_NH, normed_NH

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, grad_total_NH: torch.Tensor | None, grad_normed_NH: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        total_NH, scale_N1, weight_H = ctx.saved_tensors
        into_NH, into_weight_H = grad_total_NH, None
        if grad_normed_NH is not None:
            if ctx.needs_input_grad[2]:
                into_weight_H = (grad_normed_NH * (total_NH * scale_N1)).sum(0)
            scaled_NH = grad_normed_NH * weight_H
            along_N1 = torch.linalg.vecdot(scaled_NH, total_NH).unsqueeze(-1)
            along_N1 *= scale_N1.pow(3) / -total_NH.shape[-1]
            into_NH = scaled_NH.mul_(scale_N1).addcmul_(total_NH, along_N1)
            if grad_total_NH is not None:
                into_NH += grad_total_NH
        if into_NH is None or ctx.change_dtype is None:
            return into_NH, None, into_weight_H, None, None
        return into_NH, into_NH.to(ctx.change_dtype), into_weight_H, None, None


def gated(gate_up_NF: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, (N, F/2), of the two halves of `gate_up_NF`."""
    apply: Any = _Gated.apply
    out: torch.Tensor = apply(gate_up_NF)
    return out


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up_NF: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up_NF.chunk(2, dim=-1)
        ctx.save_for_backward(gate_up_NF)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (gate_up_NF,) = ctx.saved_tensors
        gate, up = gate_up_NF.chunk(2, dim=-1)
        slope_NF = torch.empty_like(gate_up_NF)
        into_gate, into_up = slope_NF.chunk(2, dim=-1)
        torch.mul(torch.nn.functional.silu(gate), grad, out=into_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=into_gate)
        return slope_NF


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter on the outputs `first` to `last` of a projection: down (R, I), up (last - first, R)."""

    down_RI: torch.Tensor
    up_OR: torch.Tensor
    scale: float
    first: int
    last: int


def project(
    x_NI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None, adapters: Sequence[Adapter]
) -> torch.Tensor:
    """x W' + b plus every adapter's part, (N, O) in the dtype of `x_NI` and `weight_OI`, which are the same.

    The weight and bias are frozen: there is no gradient for them. Adapters are cast to that dtype; their
    gradients come in their own.
    """
    apply: Any = _Projection.apply
    pairs = [matrix for adapter in adapters for matrix in (adapter.down_RI, adapter.up_OR)]
    out_NO: torch.Tensor = apply(x_NI, weight_OI, bias_O, tuple(adapters), *pairs)
    return out_NO


class _Projection(torch.autograd.Function):
    """The adapters' down matrices stand one below the other, and the scaled up matrices on the diagonal of
    one wide matrix: two products whatever their number."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NI: torch.Tensor,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        adapters: tuple[Adapter, ...],
        *pairs: torch.Tensor,
    ) -> torch.Tensor:
        out_NO = torch.mm(x_NI, weight_OI.t()) if bias_O is None else torch.addmm(bias_O, x_NI, weight_OI.t())
        ctx.adapters = adapters
        if not adapters:
            ctx.save_for_backward(weight_OI)
            return out_NO
        down_RI = torch.cat([pair.to(x_NI.dtype) for pair in pairs[::2]])
        up_RO = _diagonal(adapters, pairs[1::2], len(weight_OI), x_NI.dtype)
        inner_NR = torch.mm(x_NI, down_RI.t())
        ctx.save_for_backward(weight_OI, x_NI, inner_NR, down_RI, up_RO)
        return out_NO.addmm_(inner_NR, up_RO)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_NO: torch.Tensor) -> tuple[Any, ...]:
        weight_OI, *rest = ctx.saved_tensors
        into_x_NI = torch.mm(grad_NO, weight_OI) if ctx.needs_input_grad[0] else None
        if not ctx.adapters:
            return into_x_NI, None, None, None
        x_NI, inner_NR, down_RI, up_RO = rest
        grad_NR = torch.mm(grad_NO, up_RO.t())
        if into_x_NI is not None:
            into_x_NI.addmm_(grad_NR, down_RI)
        into_down_RI = torch.mm(grad_NR.t(), x_NI)
        slopes: list[torch.Tensor] = []
        place = 0
        for adapter in ctx.adapters:
            rank, dtype = len(adapter.down_RI), adapter.down_RI.dtype
            part = slice(place, place + rank)
            place += rank
            into_up_OR = torch.mm(grad_NO[:, adapter.first : adapter.last].t(), inner_NR[:, part])
            slopes += [into_down_RI[part].to(dtype), into_up_OR.to(dtype) * adapter.scale]
        return into_x_NI, None, None, None, *slopes


def _diagonal(
    adapters: tuple[Adapter, ...], ups: Sequence[torch.Tensor], outputs: int, dtype: torch.dtype
) -> torch.Tensor:
    """(R, O): each adapter's scaled up matrix, transposed, in its own rows and its own outputs."""
    ranks = [up.shape[1] for up in ups]
    wide_RO = ups[0].new_zeros((sum(ranks), outputs), dtype=dtype)
    place = 0
    for adapter, up_OR, rank in zip(adapters, ups, ranks, strict=True):
        wide_RO[place : place + rank, adapter.first : adapter.last] = (up_OR * adapter.scale).t()
        place += rank
    return wide_RO
