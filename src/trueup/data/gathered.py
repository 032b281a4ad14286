"""What the shards of a data set hold about its records, gathered for what needs all of them at once.

For every record there are its hash and a few numbers in memory, some 60 bytes; word pairs and signatures lie
in files of the work folder and are mapped. Shapes: N records, P permutations."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trueup.schema import StorageError

from .duplicates import PERMUTATIONS
from .records import Tally
from .scripts import SCRIPTS
from .shards import Shard, ShardTally, read_shard, shard_path
from .work_folder import storage_errors

_PAIRS_FILE, _SIGNATURES_FILE = "pairs.u32", "signatures.u32"


class Gathered:
    """The records of `count` shards in `work`. `tally` is what was dropped and changed before and in them."""

    def __init__(self, work: Path, count: int, before: Tally) -> None:
        self._work, self._count = work, count
        self.tally = ShardTally()
        self.tally.include(ShardTally(before.dropped, before.changed, before.first).as_dict())
        hashes, examples, self._scripts = bytearray(), array("i"), bytearray()
        sizes, firsts = array("q"), [0]
        with storage_errors(work.parent):
            with (
                (work / _PAIRS_FILE).open("wb") as pairs,
                (work / _SIGNATURES_FILE).open("wb") as signatures,
            ):
                for shard in self.shards():
                    self.tally.include(shard.tally)
                    self._add(shard, hashes, examples, sizes, pairs, signatures)
                    firsts.append(len(examples))
            self._pairs = _mapped(work / _PAIRS_FILE)
            self.signatures_NP = _mapped(work / _SIGNATURES_FILE).reshape(-1, PERMUTATIONS)
        self._firsts = np.asarray(firsts)
        self.hashes_N16 = np.frombuffer(hashes, dtype=np.uint8).reshape(-1, 16)
        self.examples_N = np.asarray(examples, dtype=np.int32)
        self.sizes_N = np.asarray(sizes, dtype=np.int64)
        self._starts_N = np.concatenate([[0], np.cumsum(self.sizes_N)])
        self._open: tuple[int, pa.RecordBatch] | None = None

    def __len__(self) -> int:
        return len(self.examples_N)

    def shards(self) -> Iterator[Shard]:
        """One after the other. Raises StorageError where one is not as it was written."""
        for index in range(self._count):
            yield self._shard(index)

    def pairs_of(self, n: int) -> NDArray[np.uint32]:
        """The word pairs of record n; none where near-copies are not looked for."""
        return self._pairs[self._starts_N[n] : self._starts_N[n + 1]]

    def scripts(self, kept_N: NDArray[np.bool_]) -> dict[str, int]:
        """Records of each script among those kept, the most frequent first."""
        found = Counter(np.frombuffer(self._scripts, dtype=np.uint8)[kept_N].tolist())
        return {SCRIPTS[code]: count for code, count in found.most_common()}

    def origin(self, n: int) -> str:
        return str(self._record(n, "origin"))

    def shown(self, n: int) -> str:
        """The beginning of record n, for a person."""
        return str(self._record(n, "shown"))

    def _add(
        self,
        shard: Shard,
        hashes: bytearray,
        examples: array[int],
        sizes: array[int],
        pairs: BinaryIO,
        signatures: BinaryIO,
    ) -> None:
        columns = {name: shard.records.column(name) for name in shard.records.schema.names}
        hashes += b"".join(columns["hash"].to_pylist())
        examples.extend(columns["examples"].to_pylist())
        sizes.extend(columns["pairs"].value_lengths().to_pylist())
        self._scripts += bytes(SCRIPTS.index(script) for script in columns["script"].to_pylist())
        pairs.write(columns["pairs"].values.to_numpy().tobytes())
        signatures.write(columns["signature"].values.to_numpy().tobytes())

    def _record(self, n: int, column: str) -> object:
        index = int(np.searchsorted(self._firsts, n, side="right")) - 1
        if self._open is None or self._open[0] != index:
            self._open = index, self._shard(index).records
        return self._open[1].column(column)[n - int(self._firsts[index])].as_py()

    def _shard(self, index: int) -> Shard:
        path = shard_path(self._work, index)
        shard = read_shard(path)
        if shard is None:
            raise StorageError(f"{path} is gone or was changed while it was used; prepare the data again")
        return shard


def _mapped(path: Path) -> NDArray[np.uint32]:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=np.uint32)
    return np.memmap(path, dtype=np.uint32, mode="r")
