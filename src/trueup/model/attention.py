"""Rotary positions and causal attention of packed rows, example by example, forward and backward.

N tokens of a micro-batch, rows one after another; J query heads, K key and value heads (J a multiple of K),
D numbers a head. Examples of like length are taken together as a group: E examples, R places each, the last
ones of shorter examples empty. S queries of one block, M keys they may see.

An example attends to itself alone, so its scores are all there is: packing four examples of T/4 tokens into a
row of T costs a quarter of the row's full matrix, and no mask has to be made. A kernel with a dense mask pays
for the whole of it.

For arithmetic in bf16 all tensors stay fp32 and the matrix products alone round their inputs to bf16 (oneDNN
does it inside): scores, softmax and sums are never rounded. What the backward pass needs of queries, keys and
values is kept in bf16, to which its products would round it anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

BLOCK = 256  # queries at a time: a block's scores stay in the caches, and half of the square is skipped
KEEP = 128  # up to so many places a group's weights are kept for the backward pass, else computed again
LEAST_PLACES = 16
READY_TOKENS = 1024  # groups larger than this are not made ready beforehand
GROUP_SCORES = 4096  # a further group costs as much time as so many scores of every head (measured)

Span = tuple[int, int]


def spans_of(segments_BT: torch.Tensor) -> tuple[Span, ...]:
    """(start, end) of every run of one number in a row, as places in the flattened B*T tokens; 0 is padding
    and has none. Waits for the device: for tensors in host memory."""
    rows, length = segments_BT.shape
    starts_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    starts_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    starts = starts_BT.flatten().nonzero().flatten()
    numbers = segments_BT.flatten()[starts].tolist()
    spans = pairwise([*starts.tolist(), rows * length])
    return tuple(span for span, number in zip(spans, numbers, strict=True) if number)


@dataclass(frozen=True)
class ExampleGroup:
    """Examples that are computed together. `source` and `target` are where its E*R places are read from and
    written to among the N tokens; an empty place reads token 0 and writes to N, which is thrown away.
    `turn`: cosine and sine, (E, 1, R, D/2); `scaled_turn` the same times the scores' scaling, for queries."""

    examples: int
    places: int
    source: torch.Tensor
    target: torch.Tensor
    empty: torch.Tensor
    turn: tuple[torch.Tensor, torch.Tensor]
    scaled_turn: tuple[torch.Tensor, torch.Tensor]


def groups_of(
    spans: Sequence[Span], cos_ND: torch.Tensor, sin_ND: torch.Tensor, *, scaling: float
) -> tuple[ExampleGroup, ...]:
    """The groups of a micro-batch, the same for every layer. `cos_ND`, `sin_ND`: the rotary embedding of its
    tokens, whose halves are equal; `scaling`: of the scores."""
    half = cos_ND.shape[-1] // 2
    made = []
    for places, members in _grouped(spans):
        members += [(0, 0)] * (examples_for(len(members)) - len(members))
        start_E1 = torch.tensor([start for start, _ in members])[:, None]
        length_E1 = torch.tensor([end - start for start, end in members])[:, None]
        place_R = torch.arange(places)
        empty = (place_R >= length_E1).flatten()
        token = (start_E1 + place_R).flatten()
        source = token.masked_fill(empty, 0)
        cos, sin = (part[source, :half].view(len(members), 1, places, half) for part in (cos_ND, sin_ND))
        made.append(
            ExampleGroup(
                examples=len(members),
                places=places,
                source=source,
                target=token.masked_fill(empty, len(cos_ND)),
                empty=empty.nonzero().flatten(),
                turn=(cos, sin),
                scaled_turn=(cos * scaling, sin * scaling),
            )
        )
    return tuple(made)


def places_for(length: int) -> int:
    """The least number of places in use that holds `length` tokens: a multiple of LEAST_PLACES, and above
    eight of them at most a quarter too large."""
    step = max(LEAST_PLACES, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // step) * step


def examples_for(members: int) -> int:
    """The least number of examples in use that holds `members`: 1, 2, 3, 4, 6, 8, 12, 16 and so on. Those too
    many are empty."""
    step = 1 << max(0, (members - 1).bit_length() - 2)
    return -(-members // step) * step


def scores_of(lengths: Sequence[int]) -> tuple[int, int, int]:
    """Of examples of these lengths: scores that one head computes, those among them that are computed again
    in the backward pass, and groups that the examples are taken in."""
    groups = _grouped([(0, length) for length in lengths])
    scores = again = 0
    for places, members in groups:
        blocks = ((first, min(first + BLOCK, places)) for first in range(0, places, BLOCK))
        own = examples_for(len(members)) * sum((last - first) * last for first, last in blocks)
        scores += own
        again += own if places > KEEP else 0
    return scores, again, len(groups)


_PRODUCTS_OF_BLOCK = 6


def get_ready(tokens: int, *, heads: tuple[int, int], head_dim: int, dtype: torch.dtype) -> None:
    """Run groups of every shape that micro-batches of so many tokens commonly have, forward and backward.

    oneDNN compiles a program for each shape of each product. Those made between a step's activations lie
    scattered among them for good, and what is freed around them no longer joins: the memory of a run over
    rows of 840 tokens grew from 1.4 to 2.7 GB in 20 steps, and stays below 1.9 when they are made first.
    """
    numbers = sum(heads) + heads[1]
    for examples, places in _common_groups(min(tokens, READY_TOKENS)):
        count = examples * places
        spans = [(first, first + places) for first in range(0, count, places)]
        turn = torch.zeros(count, head_dim)
        with torch.enable_grad():
            qkv_NO = torch.zeros(count, numbers * head_dim, dtype=dtype, requires_grad=True)
            groups = groups_of(spans, turn, turn, scaling=1.0)
            out_NP = attend(qkv_NO, groups, heads=heads, bf16=dtype == torch.bfloat16)
            out_NP.backward(torch.zeros_like(out_NP))  # type: ignore[no-untyped-call]


def ready_products(tokens: int) -> int:
    """How many products of a size of their own `get_ready` has compiled: of each block of queries, scores and
    values forward, and twice as many backward."""
    groups = _common_groups(min(tokens, READY_TOKENS))
    return sum(_PRODUCTS_OF_BLOCK * -(-places // BLOCK) for _, places in groups)


def ready_places(tokens: int) -> int:
    """Of the largest group that `get_ready` runs."""
    return max(
        (examples * places for examples, places in _common_groups(min(tokens, READY_TOKENS))), default=0
    )


def _common_groups(tokens: int) -> Iterator[tuple[int, int]]:
    """(examples, places) of groups whose examples, all of about one length, come to at most `tokens`."""
    shortest = 1
    while shortest <= tokens:
        places, members = places_for(shortest), 1
        while members * shortest <= tokens:
            examples = examples_for(members)
            yield examples, places
            members = examples + 1
        shortest = places + 1


def _grouped(spans: Sequence[Span]) -> list[tuple[int, list[Span]]]:
    """(places, spans) of groups with the least cost in sum: a group's scores and GROUP_SCORES once. Exact, by
    dynamic programming over the lengths in use; examples of one length in use stay together."""
    by_places: dict[int, list[Span]] = {}
    for start, end in spans:
        by_places.setdefault(places_for(end - start), []).append((start, end))
    sizes = sorted(by_places)
    best = [0.0]  # least cost of the first n sizes
    cut = [0]
    for last in range(1, len(sizes) + 1):
        costs = []
        members = 0
        for first in reversed(range(last)):
            members += len(by_places[sizes[first]])
            scores = examples_for(members) * sizes[last - 1] ** 2
            costs.append((best[first] + GROUP_SCORES + scores, first))
        cost, first = min(costs)
        best.append(cost)
        cut.append(first)
    groups: list[tuple[int, list[Span]]] = []
    last = len(sizes)
    while last:
        first = cut[last]
        groups.append((sizes[last - 1], [span for size in sizes[first:last] for span in by_places[size]]))
        last = first
    return groups


def attend(
    qkv_NO: torch.Tensor, groups: tuple[ExampleGroup, ...], *, heads: tuple[int, int], bf16: bool
) -> torch.Tensor:
    """Attention's output before the output projection, (N, J*D) in the dtype of `qkv_NO`; 0 for tokens of no
    group, which are padding.

    `qkv_NO`: queries, keys and values of each token, (J + 2K) * D numbers; `heads`: (J, K).
    """
    apply: Any = _GroupedAttention.apply
    out_NP: torch.Tensor = apply(qkv_NO, groups, heads, bf16)
    return out_NP


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv_NO: torch.Tensor, groups: tuple[ExampleGroup, ...], heads: tuple[int, int], bf16: bool
    ) -> torch.Tensor:
        queries, keys = heads
        count, head_dim = len(qkv_NO), qkv_NO.shape[-1] // (queries + 2 * keys)
        out_NJD = qkv_NO.new_zeros((count + 1, queries, head_dim))
        saved: list[torch.Tensor] = []
        with _products_in_bf16(bf16):
            for group in groups:
                own = _read(qkv_NO, group, heads)
                out_EJRD, weights = own.attend()
                _write(out_NJD, group, [out_EJRD])
                saved += [part.to(qkv_NO.dtype) for part in (own.q_EJRD, own.k_EKRD, own.v_EKRD)]
                if group.places <= KEEP:
                    saved += weights
        ctx.save_for_backward(*saved)
        ctx.facts = groups, heads, bf16, qkv_NO.dtype
        return out_NJD[:count].view(count, -1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_NP: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        groups, (queries, keys), bf16, dtype = ctx.facts
        saved = iter(ctx.saved_tensors)
        exact = torch.promote_types(dtype, torch.float32)
        count, head_dim = len(grad_NP), grad_NP.shape[-1] // queries
        slope_NXD = grad_NP.new_zeros((count + 1, queries + 2 * keys, head_dim), dtype=dtype)
        with _products_in_bf16(bf16):
            for group in groups:
                own = _Heads(*(next(saved).to(exact) for _ in range(3)))
                kept = next(saved) if group.places <= KEEP else None
                rows = grad_NP.index_select(0, group.source).index_fill_(0, group.empty, 0)
                grad_ERJD = rows.view(group.examples, group.places, queries, head_dim)
                grad_EJRD = grad_ERJD.transpose(1, 2).to(own.q_EJRD.dtype).contiguous()
                q_slope, k_slope, v_slope = own.differentiate(grad_EJRD, kept)
                _turn_back(q_slope, group.scaled_turn)
                _turn_back(k_slope, group.turn)
                _write(slope_NXD, group, [q_slope, k_slope, v_slope])
        return slope_NXD[:count].view(count, -1), None, None, None


def _read(qkv_NO: torch.Tensor, group: ExampleGroup, heads: tuple[int, int]) -> _Heads:
    """The group's queries and keys, turned, and values, in fp32 or wider."""
    queries, keys = heads
    exact = torch.promote_types(qkv_NO.dtype, torch.float32)
    rows = qkv_NO.index_select(0, group.source)
    qkv_ERXD = rows.view(group.examples, group.places, queries + 2 * keys, -1)
    q, k, v = (
        part.transpose(1, 2).to(exact, memory_format=torch.contiguous_format, copy=True)
        for part in torch.split(qkv_ERXD, [queries, keys, keys], dim=2)
    )
    _turn(q, group.scaled_turn)
    _turn(k, group.turn)
    return _Heads(q, k, v)


def _write(into_NXD: torch.Tensor, group: ExampleGroup, parts: Sequence[torch.Tensor]) -> None:
    """Put the group's places (E, heads, R, D), the parts' heads side by side, where their tokens are."""
    rows_ERXD = into_NXD.new_empty((group.examples, group.places, *into_NXD.shape[1:]))
    first = 0
    for part in parts:
        rows_ERXD[:, :, first : first + part.shape[1]] = part.transpose(1, 2)
        first += part.shape[1]
    into_NXD.index_copy_(0, group.target, rows_ERXD.flatten(0, 1))


@dataclass(frozen=True)
class _Heads:
    """Queries, keys and values of a group, with attention over them in blocks of queries."""

    q_EJRD: torch.Tensor
    k_EKRD: torch.Tensor
    v_EKRD: torch.Tensor

    def attend(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The output (E, J, R, D), and each block's weights."""
        parts, kept = [], []
        for first, last in self._blocks():
            weights = self._weights(first, last)
            parts.append(torch.bmm(weights, _upto(self.v_EKRD, last)))
            kept.append(weights)
        return self._joined(parts), kept

    def differentiate(
        self, grad_EJRD: torch.Tensor, kept: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of queries, keys and values, from that of the output. `kept`: the weights, where there is
        one block and they were kept."""
        q_parts: list[torch.Tensor] = []
        k_slope = v_slope = None
        for first, last in reversed(self._blocks()):  # the last block first: it sees every key
            weights = self._weights(first, last) if kept is None else kept
            grad = self._block(grad_EJRD, first, last)
            by_weight = torch.bmm(grad, _upto(self.v_EKRD, last).transpose(1, 2))
            by_score = torch.ops.aten._softmax_backward_data(by_weight, weights, -1, weights.dtype)
            q_parts.insert(0, torch.bmm(by_score, _upto(self.k_EKRD, last)))
            into_k = torch.bmm(by_score.transpose(1, 2), self._block(self.q_EJRD, first, last))
            into_v = torch.bmm(weights.transpose(1, 2), grad)
            if k_slope is None or v_slope is None:
                k_slope, v_slope = into_k, into_v
            else:
                k_slope[:, :last] += into_k
                v_slope[:, :last] += into_v
        assert k_slope is not None
        assert v_slope is not None
        return self._joined(q_parts), k_slope.view_as(self.k_EKRD), v_slope.view_as(self.v_EKRD)

    def _blocks(self) -> list[tuple[int, int]]:
        places = self.q_EJRD.shape[2]
        return [(first, min(first + BLOCK, places)) for first in range(0, places, BLOCK)]

    def _weights(self, first: int, last: int) -> torch.Tensor:
        """Softmax of the scores of queries `first` to `last`, (E*K, G*S, M); 0 for later tokens."""
        scores = torch.bmm(self._block(self.q_EJRD, first, last), _upto(self.k_EKRD, last).transpose(1, 2))
        rows = last - first
        scores.view(-1, rows, last)[..., first:] += _later(BLOCK, scores.dtype)[:rows, :rows]
        return torch.softmax(scores, -1)

    def _block(self, x_EJRD: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """(E*K, G*S, D): the query heads of one key head below each other."""
        examples, keys, places, head_dim = self.k_EKRD.shape
        grouped = x_EJRD.view(examples * keys, -1, places, head_dim)
        return grouped[:, :, first:last].reshape(examples * keys, -1, head_dim)

    def _joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """(E, J, R, D) of the blocks' (E*K, G*S, D)."""
        groups = self.q_EJRD.shape[1] // self.k_EKRD.shape[1]
        blocks = [part.view(len(part), groups, -1, part.shape[-1]) for part in parts]
        joined = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)
        return joined.view_as(self.q_EJRD)


def _upto(x_EKRD: torch.Tensor, last: int) -> torch.Tensor:
    """(E*K, M, D): the keys or values of the first `last` places."""
    return x_EKRD.flatten(0, 1)[:, :last]


def _turn(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Turn each pair (d, d + D/2) by its token's angle, and scale it as `turn` is scaled, in place."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    crossed = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(crossed)


def _turn_back(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The transpose of `_turn`."""
    _turn(x, (turn[0], -turn[1]))


@lru_cache(maxsize=4)
def _later(size: int, dtype: torch.dtype) -> torch.Tensor:
    """(size, size): minus infinity where the key is later than the query, else 0."""
    return torch.full((size, size), -torch.inf, dtype=dtype).triu(1)


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


@torch.no_grad()
def weights_of(
    qkv_NO: torch.Tensor, groups: tuple[ExampleGroup, ...], *, heads: tuple[int, int], bf16: bool
) -> Iterator[tuple[int, torch.Tensor]]:
    """Of each example its first token and its attention's softmax (J, L, L), by the code `attend` runs."""
    with _products_in_bf16(bf16):
        for group in groups:
            own = _read(qkv_NO, group, heads)
            examples, keys, places, _ = own.k_EKRD.shape
            all_EJRR = own.k_EKRD.new_zeros((examples, heads[0], places, places))
            for first, last in own._blocks():
                block = own._weights(first, last).view(examples, keys, -1, last - first, last)
                all_EJRR[:, :, first:last, :last] = block.flatten(1, 2)
            for target_R, weights_JRR in zip(group.target.view(examples, places), all_EJRR, strict=True):
                length = int((target_R < len(qkv_NO)).sum())
                if length:
                    yield int(target_R[0]), weights_JRR[:, :length, :length]
