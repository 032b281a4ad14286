"""Cross-entropy of the supervised rows only, in pieces, so that the full logits never exist.

B rows, T positions, H hidden size, V vocabulary, N supervised positions, C rows of one chunk (C <=
chunk_rows), W words of one stretch of the vocabulary. The logits of a batch would take B*T*V numbers, and
their gradient as many again; here at most C*V exist at a time, in the precision of the products. Each chunk's
gradient is computed right after its loss, in the forward pass: that does the three matrix products of the
head once each. A chunk goes through the vocabulary in stretches that fit the caches, so that exponentials
and sums need not fetch the logits from memory again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import pad

NO_TARGET = -1
CHUNK_ROWS = 128  # where shapes are static, the head's rows are filled up to a multiple of this
ROWS_AT_ONCE = 512  # more rows share one reading of the head's weight, but take more memory
WORDS = 4096
ROW_STEP = 32  # more rows than this are filled up to a multiple: see get_ready


def chunked_loss(
    hidden_BTH: torch.Tensor,
    head_weight_VH: torch.Tensor,
    rows_N: torch.Tensor,
    targets_N: torch.Tensor,
    *,
    chunk_rows: int = ROWS_AT_ONCE,
) -> torch.Tensor:
    """The sum, not the mean, of the cross-entropy in nats over the supervised rows: a scalar.

    `rows_N` are positions in the flattened (B*T), each at most once; `targets_N` the token each should
    predict, or NO_TARGET for a row that only fills a chunk and adds nothing. The matrix products are in
    autocast's dtype where autocast is on; log-sum-exp and the sum are in fp32, or in fp64 when the hidden
    states are. With N = 0 the result is a zero that still has a gradient path, so that backward() works on a
    micro-batch without supervised tokens. Not twice differentiable.
    """
    if len(rows_N) > ROW_STEP:
        more = -len(rows_N) % ROW_STEP
        rows_N, targets_N = pad(rows_N, (0, more)), pad(targets_N, (0, more), value=NO_TARGET)
    hidden_NH = hidden_BTH.flatten(0, -2).index_select(0, rows_N)
    # Inside a Function's forward, gradients are always off: whether the caller wants them is asked here.
    wanted = torch.is_grad_enabled()
    apply: Any = _ChunkedCrossEntropy.apply
    loss: torch.Tensor = apply(hidden_NH, head_weight_VH, targets_N, chunk_rows, wanted)
    return loss


def get_ready(rows: int, head_weight_VH: torch.Tensor) -> None:
    """Multiply every number of rows in use by a stretch of the vocabulary, forward and backward, before the
    first micro-batch of at most `rows` positions. oneDNN compiles a program for each number, and one made
    between a step's activations holds their memory apart for good (attention.get_ready)."""
    stretch_WH = head_weight_VH.detach()[:WORDS]
    for count in range(ROW_STEP, min(rows, ROWS_AT_ONCE) + ROW_STEP, ROW_STEP):
        torch.mm(torch.mm(stretch_WH.new_zeros(count, stretch_WH.shape[1]), stretch_WH.T), stretch_WH)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        targets_N: torch.Tensor,
        chunk_rows: int,
        wanted: bool,
    ) -> torch.Tensor:
        wants_hidden = wanted and ctx.needs_input_grad[0]
        wants_weight = wanted and ctx.needs_input_grad[1]
        device_type = hidden_NH.device.type
        autocast = torch.is_autocast_enabled(device_type)
        compute = torch.get_autocast_dtype(device_type) if autocast else weight_VH.dtype
        exact = torch.promote_types(hidden_NH.dtype, torch.float32)
        grad_hidden = torch.zeros_like(hidden_NH, dtype=exact) if wants_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=exact) if wants_weight else None
        total = torch.zeros((), dtype=exact, device=hidden_NH.device)
        with torch.autocast(device_type, enabled=False):
            weight = weight_VH.to(compute)
            for start in range(0, len(targets_N), chunk_rows):
                rows = slice(start, start + chunk_rows)
                chunk = _Chunk(hidden_NH[rows].to(compute), weight, targets_N[rows], exact)
                counted_CH = chunk.hidden_CH * chunk.counts_C1.to(compute)
                total += chunk.loss()
                for words, slope_CW in chunk.slopes() if wants_hidden or wants_weight else ():
                    slope = slope_CW.to(compute)
                    if grad_hidden is not None:
                        grad_hidden[rows] += slope @ weight[words]
                    if grad_weight is not None:
                        grad_weight[words] += slope.T @ counted_CH
                if grad_hidden is not None:
                    grad_hidden[rows] *= chunk.counts_C1
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtypes = hidden_NH.dtype, weight_VH.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        slopes = (
            None if slope is None else (slope * grad).to(dtype)
            for slope, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *slopes, None, None, None


class _Chunk:
    """The logits of C rows, kept by stretches of the vocabulary until the gradient has been taken."""

    def __init__(
        self, hidden_CH: torch.Tensor, weight_VH: torch.Tensor, targets_C: torch.Tensor, exact: torch.dtype
    ) -> None:
        self.hidden_CH = hidden_CH
        self._exact = exact
        self.counts_C1 = (targets_C != NO_TARGET).to(exact)[:, None]
        self._targets_C1 = targets_C[:, None]
        self._logits = [(words, hidden_CH @ weight_VH[words].T) for words in _stretches(len(weight_VH))]
        self._log_sum_C1 = self._log_sum_of_exponentials()

    def loss(self) -> torch.Tensor:
        at_target_C1 = torch.zeros_like(self._log_sum_C1)
        for words, logits_CW in self._logits:
            place_C1, inside_C1 = self._targets_within(words)
            at_target_C1 += logits_CW.gather(1, place_C1) * inside_C1
        return ((self._log_sum_C1 - at_target_C1) * self.counts_C1).sum()

    def slopes(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """The loss's derivative by each logit of a row with a target: softmax, minus one at the target. Only
        once: the logits are given up on the way.

        The one is subtracted before any rounding to a lower precision: where the model is nearly sure,
        softmax minus one is tiny, and rounding first would lose it.
        """
        while self._logits:
            words, logits_CW = self._logits.pop()
            slope_CW = logits_CW.to(self._exact).sub_(self._log_sum_C1).exp_()
            place_C1, inside_C1 = self._targets_within(words)
            slope_CW.scatter_add_(1, place_C1, -inside_C1)
            yield words, slope_CW

    def _log_sum_of_exponentials(self) -> torch.Tensor:
        """(C, 1), in one pass: sums of earlier stretches are scaled down when a larger logit comes."""
        largest_C1 = self.hidden_CH.new_full((len(self.hidden_CH), 1), -torch.inf, dtype=self._exact)
        sum_C1 = torch.zeros_like(largest_C1)
        for _, logits_CW in self._logits:
            exact_CW = logits_CW.to(self._exact, copy=True)
            raised_C1 = torch.maximum(largest_C1, exact_CW.amax(1, keepdim=True))
            sum_C1 *= (largest_C1 - raised_C1).exp_()
            sum_C1 += exact_CW.sub_(raised_C1).exp_().sum(1, keepdim=True)
            largest_C1 = raised_C1
        return sum_C1.log_().add_(largest_C1)

    def _targets_within(self, words: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """(place in the stretch, 1 where the target is in it and else 0), each (C, 1)."""
        place_C1 = self._targets_C1 - words.start
        width = words.stop - words.start
        inside_C1 = ((place_C1 >= 0) & (place_C1 < width)).to(self._exact)
        return place_C1.clamp(0, width - 1), inside_C1


def _stretches(vocab: int) -> list[slice]:
    return [slice(first, min(first + WORDS, vocab)) for first in range(0, vocab, WORDS)]
