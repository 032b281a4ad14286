"""A quantised model beside its original on held-out tokens: perplexity, distributions, greedy answers.

R rows of T tokens, P = T - 1 positions that predict one, V vocabulary, K likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from trueup.schema import InputError
from trueup.schema.quality import Context, ContextFacts

from .empty_cache import empty_cache

LOGITS_AT_ONCE = 1 << 25  # numbers of one model: 128 MB
POSITIONS_AT_ONCE = 256


@dataclass
class _Sums:
    """Of one context length, a number for each row."""

    nll_original: list[float] = field(default_factory=list)
    nll_quantised: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    same: list[float] = field(default_factory=list)
    not_finite: int = 0


@torch.no_grad()
def compare_at(
    context: Context,
    original: Any,
    quantised: Any,
    rows_RT: torch.Tensor,
    *,
    top_k: int,
    answers: int,
    answer_tokens: int,
) -> ContextFacts:
    """Both models on the same rows; the first `answers` rows are prompts of greedy answers too. Raises
    InputError where the original's own logits are no numbers."""
    vocab = len(original.get_output_embeddings().weight)
    sums = _Sums()
    choices = torch.zeros(2, vocab, dtype=torch.int64)
    for part_BT in _parts(rows_RT, vocab):
        was_BPV, now_BPV = _logits(original, part_BT), _logits(quantised, part_BT)
        if not bool(torch.isfinite(was_BPV).all()):
            raise InputError(
                "the original's own logits are not finite on the held-out data; nothing to compare"
            )
        for row, (was_PV, now_PV) in enumerate(zip(was_BPV, now_BPV, strict=True)):
            _add_row(sums, choices, was_PV, now_PV, part_BT[row, 1:], top_k)
    matches = _greedy_matches(original, quantised, rows_RT[:answers], answer_tokens)
    token = int(choices[1].argmax())
    tokens = int(choices[1].sum())
    return ContextFacts(
        context=context,
        length=rows_RT.shape[1],
        tokens=tokens,
        nll_original=tuple(sums.nll_original),
        nll_quantised=tuple(sums.nll_quantised),
        kl=tuple(sums.kl),
        top_k=top_k,
        top_k_overlap=tuple(sums.overlap),
        same_choice=tuple(sums.same),
        greedy_match=tuple(matches),
        greedy_tokens=answer_tokens,
        not_finite=sums.not_finite,
        same_token=token,
        same_token_share=int(choices[1, token]) / tokens,
        same_token_share_original=int(choices[0, token]) / tokens,
    )


def _parts(rows_RT: torch.Tensor, vocab: int) -> Iterator[torch.Tensor]:
    yield from torch.split(rows_RT, max(1, LOGITS_AT_ONCE // (rows_RT.shape[1] * vocab)))


def _logits(base: Any, tokens_BT: torch.Tensor) -> torch.Tensor:
    """(B, P, V): what follows each token but the last."""
    logits_BPV: torch.Tensor = base(input_ids=tokens_BT, use_cache=False).logits[:, :-1].float()
    return logits_BPV


def _add_row(
    sums: _Sums,
    choices: torch.Tensor,
    was_PV: torch.Tensor,
    now_PV: torch.Tensor,
    targets_P: torch.Tensor,
    top_k: int,
) -> None:
    totals = torch.zeros(5, dtype=torch.float64)
    top_k = min(top_k, was_PV.shape[1])
    for first in range(0, len(targets_P), POSITIONS_AT_ONCE):
        part = slice(first, first + POSITIONS_AT_ONCE)
        was, now = was_PV[part].log_softmax(-1), now_PV[part].log_softmax(-1)
        targets = targets_P[part].unsqueeze(-1)
        kl_P = (was.exp() * (was - now)).sum(-1)
        top_was, top_now = was.topk(top_k, dim=-1).indices, now.topk(top_k, dim=-1).indices
        shared_P = (top_was.unsqueeze(-1) == top_now.unsqueeze(-2)).any(-1).double().mean(-1)
        best_was, best_now = was_PV[part].argmax(-1), now_PV[part].argmax(-1)
        totals += torch.stack(
            [
                -was.gather(-1, targets).double().sum(),
                -now.gather(-1, targets).double().sum(),
                kl_P.double().sum(),
                shared_P.sum(),
                (best_was == best_now).double().sum(),
            ]
        )
        choices[0] += torch.bincount(best_was, minlength=choices.shape[1])
        choices[1] += torch.bincount(best_now, minlength=choices.shape[1])
        sums.not_finite += int((~torch.isfinite(now_PV[part]).all(-1)).sum())
    columns = (sums.nll_original, sums.nll_quantised, sums.kl, sums.overlap, sums.same)
    for column, total in zip(columns, (totals / len(targets_P)).tolist(), strict=True):
        column.append(total)


def _greedy_matches(original: Any, quantised: Any, prompts_RT: torch.Tensor, answer_tokens: int) -> list[int]:
    """Tokens of each greedy answer before the first that differs. The quantised model is shown the original's
    answer: up to the first difference that is its own."""
    answers_RN = greedy(original, prompts_RT, answer_tokens)
    whole_RT = torch.cat([prompts_RT, answers_RN], dim=1)
    logits = quantised(input_ids=whole_RT, use_cache=False, logits_to_keep=answer_tokens + 1).logits
    same_RN = (logits[:, :-1].argmax(-1) == answers_RN) & torch.isfinite(logits[:, :-1]).all(-1)
    return [int(matched) for matched in same_RN.long().cumprod(dim=1).sum(1)]


@torch.no_grad()
def greedy(base: Any, prompts_RT: torch.Tensor, tokens: int) -> torch.Tensor:
    """(R, tokens): the likeliest token each time, whatever it is; no answer ends early."""
    _, kept = empty_cache(base)
    chosen: list[torch.Tensor] = []
    shown_RT = prompts_RT
    for _ in range(tokens):
        logits_R1V = base(input_ids=shown_RT, **kept, logits_to_keep=1).logits
        shown_RT = logits_R1V[:, -1].argmax(-1, keepdim=True)
        chosen.append(shown_RT)
    return torch.cat(chosen, dim=1)
