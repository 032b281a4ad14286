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
import errno
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trueup.files.whole import needs_another_place, new_beside, put_in_place, sha256_of
from trueup.schema import InputError, StorageError

EXAMPLES_FILE = "examples.arrow"
INDEX_FILE = "index.arrow"
MANIFEST_FILE = "manifest.json"
FORMAT = 1  # raised whenever the same inputs would be written otherwise, so that old folders are not reused
ROWS_PER_BATCH = 1024
CHECKED_WHOLE_BYTES = 64 * 2**20  # larger files are checked by size only when opened again

_EXAMPLES = pa.schema(
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


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """A full disk is a StorageError, a place that may not be written to an InputError; both name the
    place."""
    try:
        yield
    except OSError as error:
        if needs_another_place(error):
            raise InputError(
                f"{path} cannot be written to: {error.strerror or error}. "
                "Point TRUEUP_HOME at a folder that can"
            ) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Free some space there, or point TRUEUP_HOME at another disk" if full else "Nothing was kept"
        raise StorageError(f"could not write the prepared data under {path}: {error}. {advice}") from error


class FolderWriter:
    """Writes into a temporary folder beside the target; `commit` moves it into place. Leaving the `with`
    block without a commit removes everything that was written."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = new_beside(target)
        with storage_errors(target.parent):
            self.folder.mkdir(parents=True)
        self._pending: list[tuple[NDArray[np.int32], list[int], bytes]] = []
        self._sink: Any = None
        self._writer: Any = None
        self.lengths: list[int] = []
        self.supervised: list[int] = []
        self.hashes: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):  # closing flushes, which fails again on a full disk
            self._close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, tokens_T: NDArray[np.int32], loss_T: NDArray[np.bool_], content_hash: bytes) -> None:
        self._pending.append((tokens_T, run_lengths(loss_T), content_hash))
        self.lengths.append(len(tokens_T))
        self.supervised.append(int(loss_T.sum()))
        self.hashes.append(content_hash)
        if len(self._pending) == ROWS_PER_BATCH:
            self._flush()

    def finish(self, codes_N: NDArray[np.int8]) -> dict[str, dict[str, Any]]:
        """Write what is pending and the index; returns size and SHA-256 of both files for the manifest."""
        self._flush()
        with storage_errors(self.target.parent):
            self._close()
            index = pa.record_batch(
                [codes_N, pa.array(self.lengths, pa.int32()), pa.array(self.supervised, pa.int32())],
                schema=_INDEX,
            )
            with (self.folder / INDEX_FILE).open("wb") as sink, pa.ipc.new_file(sink, _INDEX) as writer:
                writer.write_batch(index)
            return {name: file_facts(self.folder / name) for name in (EXAMPLES_FILE, INDEX_FILE)}

    def commit(self, manifest: dict[str, Any]) -> None:
        """Make it durable and visible under its name. A valid folder that another process put there meanwhile
        holds the same content; it is replaced."""
        with storage_errors(self.target.parent):
            text = json.dumps(manifest, indent=1, ensure_ascii=False)
            (self.folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")
            try:
                put_in_place(self.folder, self.target, replace=True)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                # another process put its own there in between: the same inputs, so the same content

    def _flush(self) -> None:
        if not self._pending:
            return
        with storage_errors(self.target.parent):
            if self._writer is None:
                self._sink = (self.folder / EXAMPLES_FILE).open("wb")
                self._writer = pa.ipc.new_file(self._sink, _EXAMPLES)
            tokens, runs, hashes = zip(*self._pending, strict=True)
            columns = [_lists(tokens), _lists(runs), pa.array(hashes, pa.binary(16))]
            self._writer.write_batch(pa.record_batch(columns, schema=_EXAMPLES))
        self._pending = []

    def _close(self) -> None:
        writer, sink = self._writer, self._sink
        self._writer = self._sink = None
        try:
            if writer is not None:
                writer.close()
        finally:
            if sink is not None:
                sink.close()


def _lists(rows: Sequence[Any]) -> pa.ListArray:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    values = np.concatenate([np.asarray(row, dtype=np.int32) for row in rows])
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
