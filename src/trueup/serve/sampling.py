"""The next token of each row of a mixed batch: exact argmax where temperature is 0, drawn otherwise.

A draw is a pure function of the row's logits, its settings, its seed and the index of the token in the
answer. No row sees another, and a request that is computed again draws the same tokens again.
B rows, V vocabulary, K candidates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .request import Sampling, Token

CANDIDATES = 1024  # likeliest tokens that cuts look at before all of the vocabulary is sorted


@dataclass(frozen=True)
class Draw:
    """What one row asks for: its settings, and which draw of which seed this is."""

    sampling: Sampling
    seed: int
    index: int


def uniform(seed: int, index: int) -> float:
    """In [0, 1), 53 bits, for the token `index` of an answer with `seed`."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def finite_rows(logits_BV: torch.Tensor) -> list[bool]:
    """Whether each row has a likeliest token: a NaN or an infinity anywhere shows in its maximum. Logits of
    minus infinity are tokens that cannot come."""
    return [bool(one) for one in torch.isfinite(logits_BV.amax(dim=-1))]


def choose(logits_BV: torch.Tensor, draws: Sequence[Draw]) -> list[Token]:
    """One token a row, in order. `logits_BV` is fp32 on the CPU, every row finite (`finite_rows`)."""
    chosen_B = logits_BV.argmax(dim=-1)
    for way, rows in ((_draw_any, _drawn(draws, cut=False)), (_draw_cut, _drawn(draws, cut=True))):
        if rows:
            chosen_B[rows] = way(logits_BV[rows], [draws[row] for row in rows])
    return [
        _token(logits_BV[row], int(chosen_B[row]), draw.sampling.logprobs) for row, draw in enumerate(draws)
    ]


def _drawn(draws: Sequence[Draw], *, cut: bool) -> list[int]:
    """Rows that draw, with cuts or without; `top_k` 1 leaves nothing to draw."""
    return [
        row
        for row, draw in enumerate(draws)
        if draw.sampling.temperature > 0
        and draw.sampling.top_k != 1
        and cut == (draw.sampling.top_k > 0 or draw.sampling.top_p < 1)
    ]


def _draw_any(logits_BV: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    return _at(_sums(logits_BV, logits_BV.amax(dim=-1), draws), draws)


def _draw_cut(logits_BV: torch.Tensor, draws: Sequence[Draw], width: int = CANDIDATES) -> torch.Tensor:
    """Among the `width` likeliest; rows that need more sort all. The width is the same in any company, since
    how equal logits are ordered depends on it."""
    vocabulary = logits_BV.shape[-1]
    if width < vocabulary:
        values_BK, ids_BK = logits_BV.topk(width)
    else:
        values_BK, ids_BK = logits_BV.sort(descending=True, stable=True)
    # Cut before it is a tensor: a client's number may be larger than one holds.
    top_k_B = torch.tensor([min(draw.sampling.top_k or vocabulary, vocabulary) for draw in draws])
    top_p_B = torch.tensor([draw.sampling.top_p for draw in draws], dtype=torch.float64)
    sums_BK = _sums(values_BK, values_BK[:, 0], draws)
    ends_B = top_k_B.clamp(max=values_BK.shape[-1]) - 1
    among_B = sums_BK.gather(1, ends_B[:, None])[:, 0]
    if width < vocabulary and bool((top_k_B == vocabulary).any()):  # top_p is a share of all there is
        all_B = _sums(logits_BV, values_BK[:, 0], draws)[:, -1].clone()  # a view keeps all (B, V) sums
    else:
        all_B = among_B
    mass_B = top_p_B * torch.where(top_k_B == vocabulary, all_B, among_B)
    short_B = (top_k_B > width) & ((top_k_B < vocabulary) | (among_B < mass_B))
    # As few of the likeliest as have that mass; the sum up to the last of them cuts off the others.
    reaching_B = torch.searchsorted(sums_BK, mass_B[:, None])[:, 0]
    last_B = torch.minimum(reaching_B, ends_B)
    kept_BK = torch.minimum(sums_BK, sums_BK.gather(1, last_B[:, None]))
    chosen_B = ids_BK.gather(1, _at(kept_BK, draws)[:, None])[:, 0]
    rows = short_B.nonzero()[:, 0].tolist()
    if rows:
        chosen_B[rows] = _draw_cut(logits_BV[rows], [draws[row] for row in rows], vocabulary)
    return chosen_B


def _sums(values_BK: torch.Tensor, best_B: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Running sums of unnormalised probabilities; the likeliest's is 1 at any temperature. Sums are taken in
    order, so that they are the same to the bit in any company."""
    heat_B1 = torch.tensor([[draw.sampling.temperature] for draw in draws], dtype=torch.float64)
    return ((values_BK - best_B[:, None]).double() / heat_B1).exp().cumsum(dim=-1)


def _at(sums_BK: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Where each row's number falls among its running sums; never on a weight of 0."""
    total_B1 = sums_BK[:, -1:]
    numbers_B1 = torch.tensor([[uniform(draw.seed, draw.index)] for draw in draws], dtype=torch.float64)
    found_B1 = torch.searchsorted(sums_BK, numbers_B1 * total_B1, right=True)
    last_B1 = (sums_BK < total_B1).sum(dim=-1, keepdim=True)
    return torch.minimum(found_B1, last_B1)[:, 0]


def _token(logits_V: torch.Tensor, chosen: int, wanted: int | None) -> Token:
    if wanted is None:
        return Token(chosen)
    logprobs_V = logits_V.log_softmax(dim=-1)
    top, ids = logprobs_V.topk(min(wanted, len(logits_V)))
    pairs = zip(ids.tolist(), top.tolist(), strict=True)
    return Token(chosen, float(logprobs_V[chosen]), tuple((int(one), float(value)) for one, value in pairs))
