"""Rotary positions and causal attention of packed rows, one example at a time, forward and backward.

N tokens of a micro-batch, rows one after another; J query heads, K key and value heads (J a multiple of K),
D numbers a head; S tokens of one block of queries, M the keys they may see.

An example attends to itself alone, so its scores are all there is: packing four examples of T/4 tokens into a
row of T costs a quarter of the row's full matrix, and nothing has to be masked out. A dense mask pays for
the whole of it (measured on two cores with AMX, rows of 512 with five examples: a masked kernel took 38% of a
training step; its bf16 backward is 20 times this one's). Scores are computed again in the backward pass, in
blocks of queries, so memory grows with the tokens and not with their square.

For arithmetic in bf16 all tensors stay fp32 and the matrix products alone round their inputs to bf16 (oneDNN
does it inside): scores, softmax and sums are never rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

BLOCK = 256  # queries at a time: the scores of a block stay in the caches, and half of the square is skipped

Span = tuple[int, int]


def spans_of(segments_BT: torch.Tensor) -> tuple[Span, ...]:
    """(start, end) of every run of equal numbers in a row, as places in the flattened B*T tokens. Waits for
    the device: for tensors in host memory."""
    rows, length = segments_BT.shape
    starts_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    starts_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    starts = [*starts_BT.flatten().nonzero().flatten().tolist(), rows * length]
    return tuple(pairwise(starts))


def attend(
    qkv_NO: torch.Tensor,
    cos_ND: torch.Tensor,
    sin_ND: torch.Tensor,
    spans: tuple[Span, ...],
    *,
    heads: tuple[int, int],
    scaling: float,
    bf16: bool,
) -> torch.Tensor:
    """Attention's output before the output projection, (N, J*D) in the dtype of `qkv_NO`.

    `qkv_NO`: queries, keys and values of each token, (J + 2K) * D numbers; `heads`: (J, K). `cos_ND`,
    `sin_ND`: the rotary embedding, whose halves are equal; differentiable by `qkv_NO` only.
    """
    apply: Any = _SegmentAttention.apply
    out_NP: torch.Tensor = apply(qkv_NO, cos_ND, sin_ND, spans, heads, scaling, bf16)
    return out_NP


class _SegmentAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv_NO: torch.Tensor,
        cos_ND: torch.Tensor,
        sin_ND: torch.Tensor,
        spans: tuple[Span, ...],
        heads: tuple[int, int],
        scaling: float,
        bf16: bool,
    ) -> torch.Tensor:
        queries, keys = heads
        count, head_dim = len(qkv_NO), cos_ND.shape[-1]
        exact = torch.promote_types(qkv_NO.dtype, torch.float32)
        qkv_XND = qkv_NO.view(count, queries + 2 * keys, head_dim).transpose(0, 1)
        qkv_XND = qkv_XND.to(exact, memory_format=torch.contiguous_format, copy=True)
        rotate_(qkv_XND[: queries + keys], cos_ND, sin_ND)
        qkv_XND[:queries] *= scaling
        out_NJD = torch.empty((count, queries, head_dim), dtype=qkv_NO.dtype)
        out_KGND = out_NJD.view(count, keys, queries // keys, head_dim).permute(1, 2, 0, 3)
        with _products_in_bf16(bf16):
            for block in _blocks(qkv_XND, spans, heads):
                weights_KSM = block.weights()
                part = torch.bmm(weights_KSM, block.v_KMD)
                out_KGND[:, :, block.first : block.last] = part.view(keys, -1, block.rows, head_dim)
        ctx.save_for_backward(qkv_XND, cos_ND, sin_ND)
        ctx.facts = spans, heads, scaling, bf16, qkv_NO.dtype
        return out_NJD.view(count, queries * head_dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_NP: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        qkv_XND, cos_ND, sin_ND = ctx.saved_tensors
        spans, heads, scaling, bf16, dtype = ctx.facts
        queries, keys = heads
        _, count, head_dim = qkv_XND.shape
        grad_KGND = grad_NP.view(count, keys, queries // keys, head_dim).permute(1, 2, 0, 3)
        slope_XND = torch.empty_like(qkv_XND)
        slope_KGND = slope_XND[:queries].view(keys, -1, count, head_dim)
        key_slope_KND, value_slope_KND = slope_XND[queries : queries + keys], slope_XND[queries + keys :]
        with _products_in_bf16(bf16):
            for block in _blocks(qkv_XND, spans, heads):
                part = slice(block.first, block.last)
                grad_KSD = grad_KGND[:, :, part].to(qkv_XND.dtype).reshape(keys, -1, head_dim)
                weights_KSM = block.weights()
                into_values = torch.bmm(weights_KSM.transpose(1, 2), grad_KSD)
                by_weight_KSM = torch.bmm(grad_KSD, block.v_KMD.transpose(1, 2))
                by_score_KSM = torch.ops.aten._softmax_backward_data(
                    by_weight_KSM, weights_KSM, -1, weights_KSM.dtype
                )
                slope_KGND[:, :, part] = torch.bmm(by_score_KSM, block.k_KMD).view(
                    keys, -1, block.rows, head_dim
                )
                into_keys = torch.bmm(by_score_KSM.transpose(1, 2), block.q_KSD)
                _gather(value_slope_KND, into_values, block)
                _gather(key_slope_KND, into_keys, block)
        slope_XND[:queries] *= scaling
        rotate_(slope_XND[: queries + keys], cos_ND, -sin_ND)
        slope_NO = slope_XND.transpose(0, 1).to(dtype, memory_format=torch.contiguous_format)
        return slope_NO.reshape(count, -1), None, None, None, None, None, None


def rotate_(x_XND: torch.Tensor, cos_ND: torch.Tensor, sin_ND: torch.Tensor) -> None:
    """Turn each pair (d, d + D/2) of every head by its token's angle, in place; the turn back is the same
    with the sine negated."""
    half = x_XND.shape[-1] // 2
    cos, sin = cos_ND[:, :half], sin_ND[:, :half]
    first, second = x_XND[..., :half], x_XND[..., half:]
    crossed = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(crossed)


class _Block:
    """The queries `first` to `last` of one example, and the keys from the example's start on."""

    def __init__(self, qkv_XND: torch.Tensor, span: Span, first: int, heads: tuple[int, int]) -> None:
        queries, keys = heads
        self.start, self.first = span[0], first
        self.last = min(first + BLOCK, span[1])
        self.rows = self.last - self.first
        self.closes = self.last == span[1]
        q_KGND = qkv_XND[:queries].view(keys, queries // keys, *qkv_XND.shape[1:])
        self.q_KSD = q_KGND[:, :, self.first : self.last].reshape(keys, -1, qkv_XND.shape[-1])
        self.k_KMD = qkv_XND[queries : queries + keys, self.start : self.last]
        self.v_KMD = qkv_XND[queries + keys :, self.start : self.last]

    def weights(self) -> torch.Tensor:
        """Softmax of the scores, (K, S of every query head of the group, M); exactly 0 for later tokens."""
        scores_KSM = torch.bmm(self.q_KSD, self.k_KMD.transpose(1, 2))
        of_queries = scores_KSM.view(len(self.k_KMD), -1, self.rows, self.last - self.start)
        of_queries[..., -self.rows :] += _later(scores_KSM.dtype)[: self.rows, : self.rows]
        return torch.softmax(scores_KSM, -1)


def _blocks(qkv_XND: torch.Tensor, spans: tuple[Span, ...], heads: tuple[int, int]) -> Iterator[_Block]:
    """Every block of queries, the last of an example first."""
    for span in spans:
        for first in reversed(range(*span, BLOCK)):
            yield _Block(qkv_XND, span, first, heads)


def _gather(slope_KND: torch.Tensor, part_KMD: torch.Tensor, block: _Block) -> None:
    """A block's part of the gradient of its keys or values: the example's last block, which comes first and
    sees them all, sets it, the others add to it."""
    into = slope_KND[:, block.start : block.last]
    if block.closes:
        into.copy_(part_KMD)
    else:
        into.add_(part_KMD)


@lru_cache(maxsize=4)
def _later(dtype: torch.dtype) -> torch.Tensor:
    """(BLOCK, BLOCK): minus infinity where the key is later than the query, else 0."""
    return torch.full((BLOCK, BLOCK), -torch.inf, dtype=dtype).triu(1)


@contextmanager
def _products_in_bf16(wanted: bool) -> Iterator[None]:
    """Within, where `wanted`, products of fp32 matrices round their inputs to bf16 and sum in fp32."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made at import, unannotated
    before = matmul.fp32_precision
    if wanted:
        matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
