"""Prepared examples, read from memory-mapped Arrow files. Shapes: N examples, T tokens of one example."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrow_folder import EXAMPLES_FILE, INDEX_FILE, from_run_lengths


@dataclass(frozen=True, eq=False)
class _Lists:
    """One batch's list column, without copying: row n is values[offsets[n]:offsets[n + 1]]."""

    offsets: NDArray[np.int32]
    values: NDArray[np.int32]

    @classmethod
    def of(cls, column: pa.ListArray) -> _Lists:
        values = column.values.to_numpy(zero_copy_only=True)
        return cls(column.offsets.to_numpy(zero_copy_only=True), values)

    def row(self, n: int) -> NDArray[np.int32]:
        return self.values[self.offsets[n] : self.offsets[n + 1]]


class ExampleFile:
    """Every example of a prepared folder; tokens stay on disk until asked for."""

    def __init__(self, folder: Path) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(folder / EXAMPLES_FILE)))
        batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
        self._tokens = [_Lists.of(batch.column("tokens")) for batch in batches]
        self._runs = [_Lists.of(batch.column("loss_runs")) for batch in batches]
        self._hashes = [
            np.frombuffer(batch.column("hash").buffers()[1], dtype=np.uint8).reshape(-1, 16)[: batch.num_rows]
            for batch in batches
        ]
        self._first = np.cumsum([0, *(batch.num_rows for batch in batches)])
        index = pa.ipc.open_file(pa.memory_map(str(folder / INDEX_FILE))).read_all()
        self.codes_N = index.column("split").to_numpy()
        self.lengths_N = index.column("length").to_numpy()
        self.supervised_N = index.column("supervised").to_numpy()

    def example(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        batch, row = self._locate(n)
        return self._tokens[batch].row(row), from_run_lengths(self._runs[batch].row(row))

    def content_hash(self, n: int) -> bytes:
        batch, row = self._locate(n)
        return bytes(self._hashes[batch][row])

    def _locate(self, n: int) -> tuple[int, int]:
        batch = int(np.searchsorted(self._first, n, side="right")) - 1
        return batch, n - int(self._first[batch])


class TokenTable:
    """The examples of one split. `lengths` and `supervised` are token counts per example, int32, in the order
    of `example`."""

    def __init__(self, file: ExampleFile, code: int) -> None:
        self._file = file
        self._rows = np.flatnonzero(file.codes_N == code)
        self.lengths: NDArray[np.int32] = file.lengths_N[self._rows]
        self.supervised: NDArray[np.int32] = file.supervised_N[self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def example(self, i: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(tokens_T, loss_T): loss_T[t] says that token t itself is a supervised target."""
        return self._file.example(int(self._rows[i]))

    def content_order(self) -> NDArray[np.int64]:
        """Example numbers ordered by content hash: an order that appending data does not shuffle."""
        hashes = [self._file.content_hash(int(row)) for row in self._rows]
        return np.asarray(sorted(range(len(hashes)), key=hashes.__getitem__), dtype=np.int64)
