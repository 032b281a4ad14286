"""A prepared data set on disk: two Arrow IPC files and a manifest, written whole or not at all.

| file           | holds                                                                                 |
|----------------|---------------------------------------------------------------------------------------|
| examples.arrow | one row an example: tokens list<int32>; loss_runs list<int32>, lengths of alternating |
|                | stretches without and with loss, beginning without; hash, 16 bytes of the content     |
| index.arrow    | one row an example, same order: split int8, length int32, supervised int32            |
| manifest.json  | where it came from, what was dropped and changed, size and SHA-256 of both files      |
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trueup.files.whole import put_in_place, sha256_of

from .work_folder import storage_errors

EXAMPLES_FILE = "examples.arrow"
INDEX_FILE = "index.arrow"
MANIFEST_FILE = "manifest.json"
FORMAT = 3  # raised whenever the same inputs would be written otherwise, so that old folders are not reused
CHECKED_WHOLE_BYTES = 64 * 2**20  # larger files are checked by size only when opened again

EXAMPLES = pa.schema(
    [("tokens", pa.list_(pa.int32())), ("loss_runs", pa.list_(pa.int32())), ("hash", pa.binary(16))]
)
_INDEX = pa.schema([("split", pa.int8()), ("length", pa.int32()), ("supervised", pa.int32())])


def run_lengths(loss_T: NDArray[np.bool_]) -> list[int]:
    """Lengths of alternating stretches, the first without loss (possibly of length 0)."""
    edges = np.flatnonzero(np.diff(loss_T.astype(np.int8))) + 1
    runs = np.diff([0, *edges.tolist(), len(loss_T)]).tolist()
    return [0, *runs] if len(loss_T) and loss_T[0] else runs


def from_run_lengths(runs: NDArray[np.int32]) -> NDArray[np.bool_]:
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


def example_batch(rows: Sequence[tuple[NDArray[np.int32], NDArray[np.bool_], bytes]]) -> pa.RecordBatch:
    """Examples as (tokens_T, loss_T, content hash)."""
    columns = [
        _lists([tokens_T for tokens_T, _, _ in rows]),
        _lists([run_lengths(loss_T) for _, loss_T, _ in rows]),
        pa.array([content_hash for _, _, content_hash in rows], pa.binary(16)),
    ]
    return pa.record_batch(columns, schema=EXAMPLES)


class FolderWriter:
    """Writes into `folder`, a new one beside the target; `commit` moves it into place."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder, self.target = folder, target
        self.lengths, self.supervised = array("i"), array("i")
        with storage_errors(target.parent):
            folder.mkdir()
            self._sink = (folder / EXAMPLES_FILE).open("wb")
            self._writer = pa.ipc.new_file(self._sink, EXAMPLES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):  # closing flushes, which fails again on a full disk
            self._close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the examples of a batch, in order."""
        if not batch.num_rows:
            return
        with storage_errors(self.target.parent):
            self._writer.write_batch(batch)
        self.lengths.extend(batch.column("tokens").value_lengths().to_pylist())
        self.supervised.extend(_supervised(batch.column("loss_runs")).tolist())

    def finish(self, codes_N: NDArray[np.int8]) -> dict[str, dict[str, Any]]:
        """Write the index; returns size and SHA-256 of both files for the manifest."""
        with storage_errors(self.target.parent):
            self._close()
            columns = [codes_N, np.asarray(self.lengths), np.asarray(self.supervised)]
            with (self.folder / INDEX_FILE).open("wb") as sink, pa.ipc.new_file(sink, _INDEX) as writer:
                writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=_INDEX))
            return {name: file_facts(self.folder / name) for name in (EXAMPLES_FILE, INDEX_FILE)}

    def commit(self, manifest: dict[str, Any]) -> None:
        """Make it durable and visible under its name, in place of a damaged folder there."""
        with storage_errors(self.target.parent):
            text = json.dumps(manifest, indent=1, ensure_ascii=False)
            (self.folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")
            put_in_place(self.folder, self.target, replace=True)

    def _close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._sink.close()


def _supervised(runs: pa.ListArray) -> NDArray[np.int64]:
    """Tokens with loss of every row: the sum of its second, fourth, ... run."""
    offsets = runs.offsets.to_numpy()
    values = runs.values.to_numpy().astype(np.int64)
    place = np.arange(len(values)) - np.repeat(offsets[:-1], np.diff(offsets))
    upto = np.concatenate([[0], np.cumsum(np.where(place % 2 == 1, values, 0))])
    return np.asarray(upto[offsets[1:]] - upto[offsets[:-1]])


def _lists(rows: Sequence[Any]) -> pa.ListArray:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    values = np.concatenate([np.zeros(0, dtype=np.int32), *(np.asarray(row, dtype=np.int32) for row in rows)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.int32()))


def file_facts(path: Path) -> dict[str, Any]:
    return {"sha256": sha256_of(path), "bytes": path.stat().st_size}


def read_manifest(folder: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The manifest of a sound folder; or None and what is wrong with it; or None twice where there is
    none."""
    if not folder.exists():
        return None, None
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return None, f"its format is {manifest['format']}, this version writes {FORMAT}"
        for name, facts in manifest["files"].items():
            size = (folder / name).stat().st_size
            if size != facts["bytes"]:
                return None, f"{name} has {size} bytes, the manifest says {facts['bytes']}"
            if size <= CHECKED_WHOLE_BYTES and file_facts(folder / name) != facts:
                return None, f"{name} is not what was written: its SHA-256 differs from the manifest's"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"{type(error).__name__}: {error}"
    return manifest, None
