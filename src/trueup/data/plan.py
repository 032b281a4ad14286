"""Which examples share a row, and which rows a micro-batch: plans by packing or by length buckets.

A plan is a pure function of the lengths, the strategy, (seed, epoch) and the limits, and every example is in
it exactly once. It knows its own padding, so that a grouping that does not group cannot go unnoticed.

Packing: examples of a shuffled window are placed best-fit decreasing into rows of one fixed width (D. S.
Johnson, Near-optimal bin packing algorithms, MIT thesis, 1973); a mask keeps them apart. One shape, little
padding. Buckets: one example a row, rows of similar length together. The few widths (multiples of 8) are
those with the least padding for these lengths, found by dynamic programming; they are the same in every
epoch."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trueup.recipe.models import ShapesSection
from trueup.schema import InputError

Strategy = Literal["pack", "bucket"]

ALIGN = 8  # widths are multiples of this where the limits allow
MAX_BUCKETS = 6
PACK_WINDOW = 4096  # examples packed together; bounds the time, and mixes which ones meet
_MAX_CANDIDATES = 128


@dataclass(frozen=True)
class PlannedBatch:
    """One micro-batch: for each row the examples in it, and the width that rows are padded to."""

    rows: tuple[tuple[int, ...], ...]
    width: int
    useful_tokens: int

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, width)"""
        return len(self.rows), self.width

    @property
    def processed_tokens(self) -> int:
        return len(self.rows) * self.width

    @property
    def examples(self) -> tuple[int, ...]:
        return tuple(example for row in self.rows for example in row)


@dataclass(frozen=True)
class Plan:
    """The micro-batches of one epoch, or of one evaluation, in order."""

    strategy: Strategy
    batches: tuple[PlannedBatch, ...]

    @cached_property
    def useful_tokens(self) -> int:
        return sum(batch.useful_tokens for batch in self.batches)

    @cached_property
    def processed_tokens(self) -> int:
        return sum(batch.processed_tokens for batch in self.batches)

    @property
    def padding_share(self) -> float:
        """Padding over processed tokens, exact for this plan; 0 for an empty one."""
        return 1 - self.useful_tokens / self.processed_tokens if self.batches else 0.0

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Every (rows, width) the device will see, the most tokens first."""
        return tuple(sorted({batch.shape for batch in self.batches}, key=lambda s: (-s[0] * s[1], -s[1])))


def epoch_plan(
    lengths: ArrayLike,
    *,
    strategy: Strategy,
    tokens_per_microbatch: int,
    max_length: int,
    seed: int,
    epoch: int,
) -> Plan:
    """Every example of `lengths` once, shuffled by (seed, epoch), in micro-batches of at most
    `tokens_per_microbatch` processed tokens. Raises InputError when an example is longer than that."""
    lengths_N = _checked(lengths, tokens_per_microbatch)
    rng = np.random.default_rng([seed, epoch])
    if strategy == "pack":
        width, height = _pack_shape(lengths_N, tokens_per_microbatch, max_length)
        rows = _packed_rows(lengths_N, width, rng)
        rows = [rows[n] for n in rng.permutation(len(rows))]
        batches = [_batch(rows[n : n + height], width, lengths_N) for n in range(0, len(rows), height)]
    else:
        batches = _bucketed(lengths_N, tokens_per_microbatch, rng)
        batches = [batches[n] for n in rng.permutation(len(batches))]
    return Plan(strategy, tuple(batches))


def evaluation_plan(
    lengths: ArrayLike,
    *,
    strategy: Strategy,
    tokens_per_microbatch: int,
    max_length: int,
    max_tokens: int | None = None,
    order: ArrayLike | None = None,
) -> Plan:
    """The same examples every time: the first ones in `order` (TokenTable.content_order; by default as they
    come) whose lengths sum to at most `max_tokens` useful tokens, at least one where there is any."""
    lengths_N = _checked(lengths, tokens_per_microbatch)
    order_N = np.arange(len(lengths_N)) if order is None else np.asarray(order, dtype=np.int64)
    if max_tokens is not None and len(order_N):
        taken = int(np.searchsorted(np.cumsum(lengths_N[order_N]), max_tokens, side="right"))
        order_N = order_N[: max(1, taken)]
    part = epoch_plan(
        lengths_N[order_N],
        strategy=strategy,
        tokens_per_microbatch=tokens_per_microbatch,
        max_length=max_length,
        seed=0,
        epoch=0,
    )
    batches = (
        PlannedBatch(
            tuple(tuple(int(order_N[n]) for n in row) for row in batch.rows), batch.width, batch.useful_tokens
        )
        for batch in part.batches
    )
    return Plan(strategy, tuple(batches))


def choose_strategy(
    shapes: ShapesSection, lengths: ArrayLike, *, max_length: int, seed: int = 0
) -> tuple[Strategy, str]:
    """The recipe's strategy, or for 'auto' the one that processes fewer tokens on these lengths, and why.

    In eager mode a forward pass over 256 rows and more runs at the matmul ceiling whatever its shape, so the
    processed tokens decide; compile seconds per shape are not weighed here. A tie goes to packing: one shape.
    """
    if shapes.strategy != "auto":
        return shapes.strategy, "set by the recipe"

    def plan(strategy: Strategy) -> Plan:
        return epoch_plan(
            lengths,
            strategy=strategy,
            tokens_per_microbatch=shapes.tokens_per_microbatch,
            max_length=max_length,
            seed=seed,
            epoch=0,
        )

    pack, bucket = plan("pack"), plan("bucket")
    chosen: Strategy = "pack" if pack.processed_tokens <= bucket.processed_tokens else "bucket"
    return chosen, (
        "fewer processed tokens an epoch: "
        f"packing {pack.processed_tokens} ({pack.padding_share:.1%} padding, {len(pack.shapes)} shapes), "
        f"buckets {bucket.processed_tokens} ({bucket.padding_share:.1%} padding, {len(bucket.shapes)} shapes)"
    )


def steps(plan: Plan, tokens_per_step: int) -> Iterator[tuple[PlannedBatch, ...]]:
    """Consecutive micro-batches of one optimizer step: as many as stay within `tokens_per_step` processed
    tokens, at least one. The last step of an epoch may be short."""
    group: list[PlannedBatch] = []
    tokens = 0
    for batch in plan.batches:
        if group and tokens + batch.processed_tokens > tokens_per_step:
            yield tuple(group)
            group, tokens = [], 0
        group.append(batch)
        tokens += batch.processed_tokens
    if group:
        yield tuple(group)


def _checked(lengths: ArrayLike, tokens_per_microbatch: int) -> NDArray[np.int64]:
    lengths_N = np.asarray(lengths, dtype=np.int64)
    if len(lengths_N) and lengths_N.max() > tokens_per_microbatch:
        raise InputError(
            f"an example of {lengths_N.max()} tokens does not fit into a micro-batch of "
            f"{tokens_per_microbatch}; raise shapes.tokens_per_microbatch or lower data.max_length"
        )
    return lengths_N


def _batch(rows: Sequence[Sequence[int]], width: int, lengths_N: NDArray[np.int64]) -> PlannedBatch:
    useful = sum(int(lengths_N[n]) for row in rows for n in row)
    return PlannedBatch(tuple(tuple(int(n) for n in row) for row in rows), width, useful)


def _aligned(length: int, limit: int) -> int:
    return min(-(-length // ALIGN) * ALIGN, limit)


def _pack_shape(lengths_N: NDArray[np.int64], budget: int, max_length: int) -> tuple[int, int]:
    """Width and height of packed micro-batches: rows as wide as the budget allows at the height that
    `max_length` gives, but no wider than all examples together need."""
    height = max(1, budget // max_length)
    width = budget // height
    if width > max_length and width - width % ALIGN >= max_length:
        width -= width % ALIGN
    total, longest = int(lengths_N.sum()), int(lengths_N.max(initial=1))
    return max(min(width, _aligned(total, budget)), longest), height


def _packed_rows(lengths_N: NDArray[np.int64], width: int, rng: np.random.Generator) -> list[list[int]]:
    order_N = rng.permutation(len(lengths_N))
    rows: list[list[int]] = []
    for start in range(0, len(order_N), PACK_WINDOW):
        window = order_N[start : start + PACK_WINDOW]
        rows += _best_fit(window[np.argsort(-lengths_N[window], kind="stable")].tolist(), lengths_N, width)
    return rows


def _best_fit(order: list[int], lengths_N: NDArray[np.int64], width: int) -> list[list[int]]:
    """Each example, longest first, into the fullest row that still has room for it."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for n in order:
        length = int(lengths_N[n])
        at = bisect_left(room, (length, -1))
        if at == len(room):
            rows.append([n])
            left, row = width - length, len(rows) - 1
        else:
            left, row = room.pop(at)
            rows[row].append(n)
            left -= length
        if left:
            insort(room, (left, row))
    return rows


def _bucketed(lengths_N: NDArray[np.int64], budget: int, rng: np.random.Generator) -> list[PlannedBatch]:
    widths = bucket_widths(lengths_N, budget)
    bucket_of_N = np.searchsorted(widths, lengths_N)
    batches: list[PlannedBatch] = []
    for bucket, width in enumerate(widths):
        members = np.flatnonzero(bucket_of_N == bucket)
        members = members[rng.permutation(len(members))].tolist()
        height = max(1, budget // width)
        batches += [
            _batch([[n] for n in members[start : start + height]], width, lengths_N)
            for start in range(0, len(members), height)
        ]
    return batches


def bucket_widths(lengths: ArrayLike, budget: int, most: int = MAX_BUCKETS) -> list[int]:
    """At most `most` widths, ascending, the last one at least the longest length, with the least padded
    tokens in sum. Multiples of ALIGN, none above `budget`. Among many lengths, quantiles of them are
    candidates."""
    lengths_N = np.asarray(lengths, dtype=np.int64)
    if not len(lengths_N):
        return []
    widths_N = np.minimum(-(-lengths_N // ALIGN) * ALIGN, budget)
    candidates_C, counts_C = np.unique(widths_N, return_counts=True)
    if len(candidates_C) > _MAX_CANDIDATES:
        quantiles = np.linspace(0, 1, _MAX_CANDIDATES)
        candidates_C = np.unique(np.quantile(candidates_C, quantiles, method="higher"))
        counts_C = np.bincount(np.searchsorted(candidates_C, widths_N), minlength=len(candidates_C))
    upto_C = np.concatenate([[0], np.cumsum(counts_C)])
    best_C = upto_C[1:] * candidates_C  # tokens processed by one bucket for candidates 0..c
    choice: list[NDArray[np.int64]] = []
    for _ in range(1, min(most, len(candidates_C))):
        # cost[c, b]: candidates 0..b in the buckets so far, b+1..c in one more of width c
        cost_CC = best_C[None, :] + (upto_C[1:, None] - upto_C[None, 1:]) * candidates_C[:, None]
        cost_CC[np.triu_indices(len(candidates_C))] = np.iinfo(np.int64).max
        below_C = np.argmin(cost_CC, axis=1)
        better_C = cost_CC[np.arange(len(candidates_C)), below_C]
        choice.append(np.where(better_C < best_C, below_C, -1))
        best_C = np.minimum(best_C, better_C)
    return _widths_from(candidates_C, choice)


def _widths_from(candidates_C: NDArray[np.int64], choice: list[NDArray[np.int64]]) -> list[int]:
    at = len(candidates_C) - 1
    widths = [int(candidates_C[at])]
    for below_C in reversed(choice):
        if below_C[at] >= 0:
            at = int(below_C[at])
            widths.append(int(candidates_C[at]))
    return widths[::-1]
