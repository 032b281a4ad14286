"""Parquet and Arrow files as numbered rows, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

BATCH_ROWS = 256  # made into Python values together
_ARROW_MAGIC = b"ARROW1"


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a Parquet file, read a row group at a time. Raises pyarrow's errors."""
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
        yield from _numbered(file.iter_batches(batch_size=BATCH_ROWS, use_threads=False))


def arrow_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of an Arrow IPC file (as Feather 2 is) or of an IPC stream (as `save_to_disk` writes)."""
    with pa.OSFile(str(path)) as source:
        is_file = source.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        source.seek(0)
        if is_file:
            reader = pyarrow.ipc.open_file(source)
            yield from _numbered(reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            yield from _numbered(pyarrow.ipc.open_stream(source))


def _numbered(batches: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            for row in batch.slice(start, BATCH_ROWS).to_pylist():
                number += 1
                yield number, row
