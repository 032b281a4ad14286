"""Micro-batches of an epoch as flat arrays: a million examples are a few of these, not a million objects.

Shapes: N examples, R rows, B micro-batches; N1 is N + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trueup.schema import Shape

Item = TypeVar("Item", covariant=True)


@dataclass(frozen=True)
class PlannedBatch:
    """One micro-batch: for each row the examples in it, and the width that rows are padded to. A row without
    examples is all padding: it keeps the shape of a short last micro-batch where only whole ones may be."""

    rows: tuple[tuple[int, ...], ...]
    width: int
    useful_tokens: int

    @property
    def shape(self) -> Shape:
        """(rows, width)"""
        return len(self.rows), self.width

    @property
    def processed_tokens(self) -> int:
        return len(self.rows) * self.width

    @property
    def examples(self) -> tuple[int, ...]:
        return tuple(example for row in self.rows for example in row)


class Lazy(Sequence[Item]):
    """A sequence whose items are made when asked for, again each time; a slice is a tuple of them."""

    def __init__(self, length: int, make: Callable[[int], Item]) -> None:
        self._length = length
        self._make = make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, at: int | slice) -> Item | tuple[Item, ...]:
        numbers = range(self._length)[at]
        return self._make(numbers) if isinstance(numbers, int) else tuple(map(self._make, numbers))


@dataclass(frozen=True, eq=False)
class Epoch:
    """Every example once, in micro-batches and optimizer steps. Micro-batch b has the real rows
    sequence_R[first_B[b] : first_B[b] + rows_B[b]], of height_B[b] on the device; row r the examples
    order_N[starts_R1[r] : starts_R1[r + 1]]."""

    lengths_N: NDArray[np.int32]  # by example number
    order_N: NDArray[np.int64]
    starts_R1: NDArray[np.int64]
    sequence_R: NDArray[np.int64]
    first_B: NDArray[np.int64]
    rows_B: NDArray[np.int64]
    width_B: NDArray[np.int64]
    height_B: NDArray[np.int64]
    micro_batches_per_step: int

    @property
    def batches(self) -> Sequence[PlannedBatch]:
        return Lazy(len(self.first_B), self._batch)

    @property
    def steps(self) -> Sequence[tuple[PlannedBatch, ...]]:
        """The micro-batches of each optimizer step, any of them in constant time. The last may have fewer."""
        size, batches = self.micro_batches_per_step, self.batches
        return Lazy(-(-len(batches) // size), lambda n: tuple(batches[n * size : (n + 1) * size]))

    @cached_property
    def useful_tokens(self) -> int:
        return int(self.lengths_N[self.order_N].sum(dtype=np.int64))

    @cached_property
    def processed_tokens(self) -> int:
        return int((self.height_B * self.width_B).sum())

    @property
    def padding_share(self) -> float:
        """Padding over processed tokens, exact for this epoch; 0 for an empty one."""
        return 1 - self.useful_tokens / self.processed_tokens if self.processed_tokens else 0.0

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Every (rows, width) the device will see, the most tokens first."""
        found = np.unique(np.stack([self.height_B, self.width_B]), axis=1).T.tolist()
        return tuple(sorted(((h, w) for h, w in found), key=lambda s: (-s[0] * s[1], -s[1])))

    def of_table(self, lengths_N: NDArray[np.int32], numbers_N: NDArray[np.int64]) -> Epoch:
        """The same batches of a table with these `lengths_N`, where example n has the number numbers_N[n]."""
        return replace(self, lengths_N=lengths_N, order_N=numbers_N[self.order_N])

    def per_batch(self, values: ArrayLike) -> NDArray[np.int64]:
        """Sums over the examples of each micro-batch of something known for each example."""
        upto_N1 = _upto(np.asarray(values)[self.order_N])
        row_R = upto_N1[self.starts_R1[1:]] - upto_N1[self.starts_R1[:-1]]
        upto_R1 = _upto(row_R[self.sequence_R])
        sums_B: NDArray[np.int64] = upto_R1[self.first_B + self.rows_B] - upto_R1[self.first_B]
        return sums_B

    def _batch(self, n: int) -> PlannedBatch:
        first, rows = int(self.first_B[n]), int(self.rows_B[n])
        starts = self.starts_R1
        examples = [
            self.order_N[starts[row] : starts[row + 1]] for row in self.sequence_R[first : first + rows]
        ]
        useful = sum(int(self.lengths_N[row].sum(dtype=np.int64)) for row in examples)
        empty = int(self.height_B[n]) - rows
        return PlannedBatch(
            (*(tuple(row.tolist()) for row in examples), *[()] * empty), int(self.width_B[n]), useful
        )


def _upto(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
