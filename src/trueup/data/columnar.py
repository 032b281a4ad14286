"""Parquet and Arrow files as numbered rows, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

BATCH_ROWS, BATCH_BYTES = 256, 1 << 23  # made into Python values together, whichever is less
BUFFER_BYTES = 1 << 20  # read of a column at a time
_ARROW_MAGIC = b"ARROW1"


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a Parquet file, read a row group at a time. Raises pyarrow's errors."""
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES) as file:
        groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
        widest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
        size = _rows_together(widest)
        yield from _numbered(file.iter_batches(batch_size=size, use_threads=False))


def arrow_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of an Arrow IPC file (as Feather 2 is) or of an IPC stream (as `save_to_disk` writes)."""
    with _opened(path) as source:
        is_file = source.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        source.seek(0)
        if is_file:
            reader = pyarrow.ipc.open_file(source)
            yield from _numbered(reader.get_batch(n) for n in range(reader.num_record_batches))
        else:
            yield from _numbered(pyarrow.ipc.open_stream(source))


def _opened(path: Path) -> Any:
    """Mapped, so that a batch of any size costs no memory; read where address space is limited."""
    try:
        return pa.memory_map(str(path))
    except OSError:
        return pa.OSFile(str(path))


def _numbered(batches: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    for batch in batches:
        size = _rows_together(batch.nbytes // max(1, batch.num_rows))
        for start in range(0, batch.num_rows, size):
            for row in batch.slice(start, size).to_pylist():
                number += 1
                yield number, row


def _rows_together(row_bytes: int) -> int:
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
