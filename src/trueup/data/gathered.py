"""What the shards of a data set hold about its records, gathered for what needs all of them at once.

For every record a few numbers are in memory, 9 bytes; hashes, word pairs, signatures and the keys of their
bands lie in files of the work folder and are mapped. Shapes: N records, P permutations, B bands."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trueup.schema import StorageError

from .duplicates import PERMUTATIONS, band_keys
from .records import Tally
from .scripts import SCRIPTS
from .shards import Shard, ShardTally, read_shard, shard_path
from .work_folder import storage_errors

_HASHES_FILE, _PAIRS_FILE, _SIGNATURES_FILE = "hashes.u8", "pairs.u32", "signatures.u32"
_BANDS_FILE = "bands.u64"
Number = TypeVar("Number", bound=np.integer[Any])
_BLOCK = 2**14  # records whose keys are made at once


class Gathered:
    """The records of `count` shards in `work`. `tally` is what was dropped and changed before and in them."""

    def __init__(self, work: Path, count: int, before: Tally) -> None:
        self._work, self._count = work, count
        self.tally = ShardTally()
        self.tally.include(ShardTally(before.dropped, before.changed, before.first).as_dict())
        examples, sizes, self._scripts = array("i"), array("i"), bytearray()
        firsts, pair_starts = [0], [0]  # of each shard
        with storage_errors(work.parent):
            with (
                (work / _HASHES_FILE).open("wb") as hashes,
                (work / _PAIRS_FILE).open("wb") as pairs,
                (work / _SIGNATURES_FILE).open("wb") as signatures,
            ):
                for shard in self.shards():
                    self.tally.include(shard.tally)
                    columns = {name: shard.records.column(name) for name in shard.records.schema.names}
                    hashes.write(b"".join(columns["hash"].to_pylist()))
                    pairs.write(columns["pairs"].values.to_numpy().tobytes())
                    signatures.write(columns["signature"].values.to_numpy().tobytes())
                    examples.extend(columns["examples"].to_pylist())
                    sizes.extend(columns["pairs"].value_lengths().to_pylist())
                    self._scripts += bytes(SCRIPTS.index(one) for one in columns["script"].to_pylist())
                    firsts.append(len(examples))
                    pair_starts.append(pair_starts[-1] + len(columns["pairs"].values))
            self._pairs = _mapped(work / _PAIRS_FILE, np.uint32)
            self.signatures_NP = _mapped(work / _SIGNATURES_FILE, np.uint32).reshape(-1, PERMUTATIONS)
            self.hashes_N16 = _mapped(work / _HASHES_FILE, np.uint8).reshape(-1, 16)
        self._firsts, self._pair_starts = np.asarray(firsts), np.asarray(pair_starts)
        self.examples_N = np.asarray(examples, dtype=np.int32)
        self.sizes_N = np.asarray(sizes, dtype=np.int32)
        self._open: tuple[int, pa.RecordBatch] | None = None

    def __len__(self) -> int:
        return len(self.examples_N)

    def shards(self) -> Iterator[Shard]:
        """One after the other. Raises StorageError where one is not as it was written."""
        for index in range(self._count):
            yield self._shard(index)

    def pairs_of(self, n: int) -> NDArray[np.uint32]:
        """The word pairs of record n; none where near-copies are not looked for."""
        index = self._shard_of(n)
        start = self._pair_starts[index] + self.sizes_N[self._firsts[index] : n].sum(dtype=np.int64)
        return self._pairs[start : start + self.sizes_N[n]]

    def bands(self, rows: int) -> NDArray[np.uint64]:
        """(B, N) The keys of all records in each band of `rows` rows of the signatures. They are read once,
        from the beginning to the end: what is read once a band lies together here."""
        count, path = len(self), self._work / _BANDS_FILE
        with storage_errors(self._work.parent):
            with path.open("wb") as file:
                for start in range(0, count, _BLOCK):
                    keys_BD = band_keys(self.signatures_NP[start : start + _BLOCK], rows)
                    for band, keys_D in enumerate(keys_BD):
                        file.seek((band * count + start) * keys_D.itemsize)
                        file.write(keys_D.tobytes())
            return _mapped(path, np.uint64).reshape(-1, count)

    def scripts(self, kept_N: NDArray[np.bool_]) -> dict[str, int]:
        """Records of each script among those kept, the most frequent first."""
        found = Counter(np.frombuffer(self._scripts, dtype=np.uint8)[kept_N].tolist())
        return {SCRIPTS[code]: count for code, count in found.most_common()}

    def origin(self, n: int) -> str:
        return str(self._record(n, "origin"))

    def shown(self, n: int) -> str:
        """The beginning of record n, for a person."""
        return str(self._record(n, "shown"))

    def _record(self, n: int, column: str) -> object:
        index = self._shard_of(n)
        if self._open is None or self._open[0] != index:
            self._open = index, self._shard(index).records
        return self._open[1].column(column)[n - int(self._firsts[index])].as_py()

    def _shard_of(self, n: int) -> int:
        return int(np.searchsorted(self._firsts, n, side="right")) - 1

    def _shard(self, index: int) -> Shard:
        path = shard_path(self._work, index)
        shard = read_shard(path)
        if shard is None:
            raise StorageError(f"{path} is gone or was changed while it was used; prepare the data again")
        return shard


def _mapped(path: Path, dtype: type[Number]) -> NDArray[Number]:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")
