"""The same rows as a file of every container."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

Rows = Sequence[dict[str, Any]]


def json_list(rows: Rows) -> bytes:
    return json.dumps(list(rows), ensure_ascii=False, indent=1).encode()


def json_object(rows: Rows) -> bytes:
    return json.dumps({"version": "1.0", "data": list(rows), "note": None}, ensure_ascii=False).encode()


def json_lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def zst(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


def table_text(rows: Rows, delimiter: str = ",") -> bytes:
    """Lists and objects as JSON text, as exports of tables hold them."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {
                key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                for key, value in row.items()
            }
        )
    return text.getvalue().encode()


def parquet(rows: Rows) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), sink, row_group_size=2)
    return bytes(sink.getvalue())


def arrow_file(rows: Rows) -> bytes:
    return _ipc(rows, pyarrow.ipc.new_file)


def arrow_stream(rows: Rows) -> bytes:
    return _ipc(rows, pyarrow.ipc.new_stream)


def _ipc(rows: Rows, writer: Callable[..., Any]) -> bytes:
    table = pa.Table.from_pylist(list(rows))
    sink = pa.BufferOutputStream()
    with writer(sink, table.schema) as out:
        out.write_table(table, max_chunksize=2)
    return bytes(sink.getvalue())


CONTAINERS: dict[str, Callable[[Rows], bytes]] = {
    "a.json": json_list,
    "b.json": json_object,
    "a.jsonl": json_lines,
    "a.ndjson": json_lines,
    "a.jsonl.gz": lambda rows: gzip.compress(json_lines(rows)),
    "a.json.gz": lambda rows: gzip.compress(json_list(rows)),
    "a.jsonl.zst": lambda rows: zst(json_lines(rows)),
    "a.csv": table_text,
    "a.csv.gz": lambda rows: gzip.compress(table_text(rows)),
    "a.tsv": lambda rows: table_text(rows, "\t"),
    "a.parquet": parquet,
    "a.arrow": arrow_file,
    "b.arrow": arrow_stream,
    "a.feather": arrow_file,
}
