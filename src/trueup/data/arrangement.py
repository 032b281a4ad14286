"""Examples in the shapes of a strategy, epoch after epoch: a pure function of (seed, epoch).

What does not change from epoch to epoch is worked out once: which bucket an example is in, which lengths
share a packed row. So every epoch has the same number of micro-batches of each shape, the number of steps of
any number of epochs is known without making them, and step n of epoch e is found from (e, n) alone. Ranks are
not known here: they share out the micro-batches of a step.

Shapes: N examples, R rows, B micro-batches, K buckets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trueup.schema import InputError, Shape, Strategy

from .epoch import Epoch
from .packing import packed


class Arrangement(ABC):
    """With `static` every micro-batch is full, the last ones with rows of pure padding."""

    def __init__(self, lengths: ArrayLike, *, static: bool) -> None:
        self.lengths_N = np.asarray(lengths, dtype=np.int32)
        self.static = static

    def epoch(self, seed: int, epoch: int, micro_batches_per_step: int = 1) -> Epoch:
        """All examples, shuffled by (seed, epoch)."""
        made = self._arranged(np.random.default_rng([seed, epoch]))
        order_N, starts_R1, sequence_R, first_B, rows_B, width_B, full_B = made
        height_B = full_B if self.static else rows_B
        return Epoch(
            *(self.lengths_N, order_N, starts_R1, sequence_R, first_B, rows_B, width_B, height_B),
            micro_batches_per_step,
        )

    @property
    @abstractmethod
    def batches(self) -> int:
        """Micro-batches of an epoch, the same number in each."""

    @property
    @abstractmethod
    def shapes(self) -> tuple[Shape, ...]:
        """Every (rows, width) of every epoch, the most tokens first; of `longest` only the largest."""

    @abstractmethod
    def _arranged(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
        """order_N, starts_R1, sequence_R, first_B, rows_B, width_B, and the full height of each batch."""


class Bucketed(Arrangement):
    """One example a row, in the narrowest of a few widths; micro-batches of all widths mixed at random."""

    def __init__(self, lengths: ArrayLike, full: Sequence[Shape], *, static: bool) -> None:
        super().__init__(lengths, static=static)
        self._heights_K, self._widths_K = (
            np.asarray(side, dtype=np.int64) for side in zip(*full, strict=True)
        )
        self._bucket_N = np.searchsorted(self._widths_K, self.lengths_N).astype(np.int16)
        self._members_K = np.bincount(self._bucket_N, minlength=len(full))

    @property
    def batches(self) -> int:
        return int((-(-self._members_K // self._heights_K)).sum())

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        found: set[Shape] = set()
        for count, height, width in zip(
            *(a.tolist() for a in (self._members_K, self._heights_K, self._widths_K)), strict=True
        ):
            found |= _heights(count, height, width, self.static)
        return _by_tokens(found)

    def _arranged(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
        order_N = rng.permutation(len(self.lengths_N))
        order_N = order_N[np.argsort(self._bucket_N[order_N], kind="stable")]
        batches_K = -(-self._members_K // self._heights_K)
        bucket_B = np.repeat(np.arange(len(batches_K)), batches_K)
        within_B = np.arange(len(bucket_B)) - (np.cumsum(batches_K) - batches_K)[bucket_B]
        full_B = self._heights_K[bucket_B]
        first_B = (np.cumsum(self._members_K) - self._members_K)[bucket_B] + within_B * full_B
        rows_B = np.minimum(full_B, self._members_K[bucket_B] - within_B * full_B)
        mixed_B = rng.permutation(len(bucket_B))
        each_N = np.arange(len(order_N) + 1)
        per_batch = (first_B, rows_B, self._widths_K[bucket_B], full_B)
        return order_N, each_N, each_N[:-1], *(values_B[mixed_B] for values_B in per_batch)


class Packed(Arrangement):
    """Several examples a row, rows of one width."""

    def __init__(self, lengths: ArrayLike, full: Shape, *, static: bool) -> None:
        super().__init__(lengths, static=static)
        self._height, self._width = full
        self._by_row_N, self._starts_R1 = packed(self.lengths_N.astype(np.int64), self._width)

    @property
    def rows(self) -> int:
        return len(self._starts_R1) - 1

    @property
    def batches(self) -> int:
        return -(-self.rows // self._height)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return _by_tokens(_heights(self.rows, self._height, self._width, self.static))

    def _arranged(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
        order_N = rng.permutation(len(self.lengths_N))
        order_N = order_N[np.argsort(-self.lengths_N[order_N], kind="stable")][self._by_row_N]
        per_batch = _consecutive(self.rows, self._height, self._width)
        return order_N, self._starts_R1, rng.permutation(self.rows), *per_batch


class Longest(Arrangement):
    """One example a row, rows in random order, each micro-batch as wide as its own longest, rounded up to
    `multiple` where that is no wider than `full`."""

    def __init__(self, lengths: ArrayLike, full: Shape, *, multiple: int) -> None:
        super().__init__(lengths, static=False)
        self._height, self._limit = full
        self._multiple = multiple

    @property
    def batches(self) -> int:
        return -(-len(self.lengths_N) // self._height)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return ((min(self._height, len(self.lengths_N)), self._limit),) if len(self.lengths_N) else ()

    def _arranged(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
        order_N = rng.permutation(len(self.lengths_N))
        each_N = np.arange(len(order_N) + 1)
        first_B, rows_B, _, full_B = _consecutive(len(order_N), self._height, self._limit)
        longest_B = np.maximum.reduceat(self.lengths_N[order_N], first_B) if len(first_B) else first_B
        aligned_B = -(-longest_B.astype(np.int64) // self._multiple) * self._multiple
        return order_N, each_N, each_N[:-1], first_B, rows_B, np.minimum(aligned_B, self._limit), full_B


def arrange(
    lengths: ArrayLike, strategy: Strategy, full: Sequence[Shape], *, static: bool = False, multiple: int = 8
) -> Arrangement:
    """The examples in full micro-batches of these shapes. Raises InputError for an example that fits none,
    and for one without tokens."""
    lengths_N = np.asarray(lengths, dtype=np.int64)
    check_lengths(lengths_N)
    widest = max((width for _, width in full), default=0)
    if len(lengths_N) and lengths_N.max() > widest:
        raise InputError(
            f"an example of {lengths_N.max()} tokens does not fit the plan's rows of at most {widest}; "
            "the plan was made for other data: plan again"
        )
    if strategy in ("bucket", "max") and full:
        return Bucketed(lengths_N, full, static=static)
    shape = full[0] if full else (1, 1)
    if strategy == "longest":
        return Longest(lengths_N, shape, multiple=multiple)
    return Packed(lengths_N, shape, static=static)


def check_lengths(lengths_N: NDArray[np.integer[Any]]) -> None:
    """Raises InputError for an example without tokens: it could be in no row, and would teach nothing."""
    if len(lengths_N) and lengths_N.min() < 1:
        first = int(np.argmin(lengths_N))
        raise InputError(
            f"example {first} has {lengths_N[first]} tokens; an example has at least one: drop empty records"
        )


def _consecutive(rows: int, height: int, width: int) -> tuple[NDArray[np.int64], ...]:
    first_B = np.arange(0, rows, height)
    rows_B = np.minimum(height, rows - first_B)
    return first_B, rows_B, np.full(len(first_B), width), np.full(len(first_B), height)


def _heights(rows: int, height: int, width: int, static: bool) -> set[Shape]:
    """Shapes of the micro-batches of so many rows."""
    whole, rest = divmod(rows, height)
    full = {(height, width)} if whole or (rest and static) else set()
    return full | ({(rest, width)} if rest and not static else set())


def _by_tokens(shapes: set[Shape]) -> tuple[Shape, ...]:
    return tuple(sorted(shapes, key=lambda shape: (-shape[0] * shape[1], -shape[1])))
