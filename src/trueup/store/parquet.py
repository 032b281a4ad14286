"""A run's series as Parquet, and back. One explicit schema per series, made from the record's own fields.

Pages are plain and uncompressed: the bundle around them compresses, and a reader can bound what it unpacks by
the sizes it sees. Samples have one column per sensor, `values.NAME`; a sensor that gave nothing is null.
"""

from __future__ import annotations

import io
import json
import types
import typing
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from trueup.schema import InputError, Sample
from trueup.schema.measurement import Frozen

from .run_folder import first_problem

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS = 5_000_000
MAX_COLUMNS = 256
BATCH_ROWS = 4096
_SENSOR = "values."
_PLAIN_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED"}  # RLE: only of levels, as no page is a dictionary

Record = TypeVar("Record", bound=Frozen)


def to_parquet(model: type[Frozen], records: Sequence[Frozen]) -> bytes:
    """The records as one Parquet file; the same records give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_to_row(record) for record in records]
    sensors = {name for row in rows for name in row if name.startswith(_SENSOR)}
    schema = _schema(model, sorted(sensors))
    columns = [pa.array([row.get(field.name) for row in rows], type=field.type) for field in schema]
    out = io.BytesIO()
    table = pa.Table.from_arrays(columns, schema=schema)
    pq.write_table(table, out, compression="none", use_dictionary=False, write_statistics=False)
    return out.getvalue()


def from_parquet(model: type[Record], raw: bytes, name: str) -> tuple[Record, ...]:
    """The records of a Parquet file from elsewhere. InputError, naming `name`, for anything unexpected."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(raw))
        _check_layout(file, model, name)
        rows = (row for batch in file.iter_batches(batch_size=BATCH_ROWS) for row in batch.to_pylist())
        return tuple(model.model_validate(_from_row(row)) for row in _at_most(MAX_ROWS, rows, name))
    except ValidationError as error:
        raise InputError(f"{name} holds a record that is not one: {first_problem(error)}") from None
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is not readable Parquet: {error}") from None


def _check_layout(file: Any, model: type[Frozen], name: str) -> None:
    names = list(file.schema_arrow.names)
    if file.metadata.num_rows > MAX_ROWS or len(names) > MAX_COLUMNS:
        raise InputError(f"{name} is larger than any run's: at most {MAX_ROWS} rows of {MAX_COLUMNS} columns")
    sensors = [column for column in names if column.startswith(_SENSOR)] if model is Sample else []
    if not file.schema_arrow.equals(_schema(model, sensors)):
        raise InputError(f"{name} has other columns or types than a run's: {', '.join(names)[:300]}")
    for group in range(file.metadata.num_row_groups):
        for column in range(file.metadata.num_columns):
            chunk = file.metadata.row_group(group).column(column)
            plain = set(chunk.encodings) <= _PLAIN_ENCODINGS
            if chunk.compression != "UNCOMPRESSED" or not plain:
                raise InputError(f"{name} is compressed inside; a bundle's Parquet is plain")


def _at_most(limit: int, rows: Iterator[Any], name: str) -> Iterator[Any]:
    for count, row in enumerate(rows, 1):
        if count > limit:
            raise InputError(f"{name} has more than {limit} rows")
        yield row


def _schema(model: type[Frozen], sensors: Sequence[str]) -> pa.Schema:
    """Arrow columns of a record's fields: scalars as they are, tuples as lists, a dict as JSON text."""
    import pyarrow as pa

    scalar = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    fields = []
    for name, info in model.model_fields.items():
        annotation: Any = info.annotation
        if typing.get_origin(annotation) in (types.UnionType, typing.Union):  # X | None
            annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
        if model is Sample and name == "values":
            continue
        if typing.get_origin(annotation) is tuple:
            fields.append((name, pa.list_(scalar[typing.get_args(annotation)[0]])))
        else:
            fields.append((name, scalar.get(annotation, pa.string())))
    return pa.schema([*fields, *((sensor, pa.float64()) for sensor in sensors)])


def _to_row(record: Frozen) -> dict[str, Any]:
    if isinstance(record, Sample):
        return {"at_s": record.at_s, **{_SENSOR + name: value for name, value in record.values.items()}}
    return {
        name: json.dumps(value) if isinstance(value, dict) else value
        for name, value in record.model_dump().items()
    }


def _from_row(row: dict[str, Any]) -> dict[str, Any]:
    """A record's fields. Columns of a record are never both text and a dict, save an event's `data`."""
    values = {name.removeprefix(_SENSOR): value for name, value in row.items() if name.startswith(_SENSOR)}
    fields = {name: value for name, value in row.items() if not name.startswith(_SENSOR)}
    if isinstance(fields.get("data"), str):
        fields["data"] = json.loads(fields["data"])
    if set(fields) == {"at_s"}:
        fields["values"] = {name: value for name, value in values.items() if value is not None}
    return fields
