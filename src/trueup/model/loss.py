"""Cross-entropy of the supervised rows only, in chunks, so that the full logits never exist.

B rows, T positions, H hidden size, V vocabulary, N supervised positions, C rows of one chunk (C <=
chunk_rows). The logits of a batch would take B*T*V numbers, and their gradient as many again; here at most
C*V exist at a time. Each chunk's gradient is computed right after its loss, in the forward pass: that does
the three matrix products of the head once each. Checkpointing every chunk would do the first one twice
(measured on two cores with bf16, N = 400, V = 49152: 0.09 s against 0.19 s; plain cross-entropy 0.40 s).
"""

from __future__ import annotations

from typing import Any

import torch

NO_TARGET = -1
CHUNK_ROWS = 128  # large enough for the matrix products, small enough for the caches; 64 and 512 were slower


def chunked_loss(
    hidden_BTH: torch.Tensor,
    head_weight_VH: torch.Tensor,
    rows_N: torch.Tensor,
    targets_N: torch.Tensor,
    *,
    chunk_rows: int = CHUNK_ROWS,
) -> torch.Tensor:
    """The sum, not the mean, of the cross-entropy in nats over the supervised rows: a scalar.

    `rows_N` are positions in the flattened (B*T), each at most once; `targets_N` the token each should
    predict, or NO_TARGET for a row that only fills a chunk and adds nothing. The matrix products are in
    autocast's dtype where autocast is on; log-sum-exp and the sum are in fp32, or in fp64 when the hidden
    states are. With N = 0 the result is a zero that still has a gradient path, so that backward() works on a
    micro-batch without supervised tokens. Not twice differentiable.
    """
    hidden_NH = hidden_BTH.flatten(0, -2).index_select(0, rows_N)
    # Inside a Function's forward, gradients are always off: whether the caller wants them is asked here.
    wanted = torch.is_grad_enabled()
    apply: Any = _ChunkedCrossEntropy.apply
    loss: torch.Tensor = apply(hidden_NH, head_weight_VH, targets_N, chunk_rows, wanted)
    return loss


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
        grad_hidden = torch.empty_like(hidden_NH) if wants_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=exact) if wants_weight else None
        total = torch.zeros((), dtype=exact, device=hidden_NH.device)
        with torch.autocast(device_type, enabled=False):
            weight = weight_VH.to(compute)
            for start in range(0, len(targets_N), chunk_rows):
                rows = slice(start, start + chunk_rows)
                counts_C1 = (targets_N[rows] != NO_TARGET)[:, None].to(compute)
                hidden_CH = hidden_NH[rows].to(compute) * counts_C1
                loss, slope_CV = _loss_and_slope(hidden_CH @ weight.T, targets_N[rows], exact)
                total += loss
                if grad_hidden is None and grad_weight is None:
                    continue
                slope = slope_CV.to(compute)
                if grad_hidden is not None:
                    grad_hidden[rows] = (slope @ weight).mul_(counts_C1)
                if grad_weight is not None:
                    grad_weight += slope.T @ hidden_CH
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = weight_VH.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return (
            None if grad_hidden is None else grad_hidden * grad.to(grad_hidden.dtype),
            None if grad_weight is None else (grad_weight * grad).to(ctx.weight_dtype),
            None,
            None,
            None,
        )


def _loss_and_slope(
    logits_CV: torch.Tensor, targets_C: torch.Tensor, exact: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """A chunk's summed loss, and the loss's derivative by each logit (softmax minus one at the target).

    Works in place on one (C, V) tensor. The one is subtracted before any rounding to a lower precision:
    where the model is nearly sure, softmax minus one is tiny, and rounding first would lose it.
    """
    counts_C1 = targets_C[:, None] != NO_TARGET
    targets_C1 = targets_C[:, None].clamp_min(0)
    largest_C1 = logits_CV.amax(1, keepdim=True).to(exact)
    shifted_CV = logits_CV.sub_(largest_C1) if logits_CV.dtype == exact else logits_CV - largest_C1
    at_target_C1 = shifted_CV.gather(1, targets_C1)
    shares_CV = shifted_CV.exp_()
    sums_C1 = shares_CV.sum(1, keepdim=True)
    loss = (sums_C1.log() - at_target_C1).mul_(counts_C1).sum()
    slope_CV = shares_CV.div_(sums_C1)
    slope_CV.scatter_add_(1, targets_C1, slope_CV.new_full((1, 1), -1.0).expand_as(targets_C1))
    return loss, slope_CV
