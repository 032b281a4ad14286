"""Between the frozen records and the database's rows, both ways, nothing lost.

The records say what a column holds: what SQLite has no type for is JSON, and a figure that is NaN (a run that
diverged), which it does not have either, is NULL; `record_of` gives both back as they were.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_origin

from trueup.schema import Evaluation, Event, Measurement, RunHeader, RunRecord, SpanTotal, Step
from trueup.schema.measurement import Frozen

Row = dict[str, Any]
Record = TypeVar("Record", bound=Frozen)

# The record's series, each in the table of that name.
SERIES: dict[str, type[Frozen]] = {
    "spans": SpanTotal,
    "events": Event,
    "steps": Step,
    "evaluations": Evaluation,
}

_OF_MEASUREMENT = tuple(name for name in Measurement.model_fields if name != "ci")


def run_row(header: RunHeader, *, signature: str, imported_at: str | None) -> Row:
    """The row of `runs`: what lists need."""
    shown = {"id", "kind", "name", "state", "reason", "started_at", "ended_at", "wall_s", "recipe_digest"}
    return {
        **header.model_dump(include=shown),
        "model": _text(header.recipe, "model", "path"),
        "device": _text(header.choices, "device", "value") or _text(header.recipe, "platform", "device"),
        "imported_at": imported_at,
        "signature": signature,
    }


def rows_of(record: RunRecord) -> Iterable[tuple[str, list[Row]]]:
    """The rows of every table but `runs`."""
    run_id = record.header.id
    header = record.header.model_dump()
    yield "recipes", [{"run_id": run_id, "recipe": json.dumps(header.pop("recipe"))}]
    yield "headers", [{"run_id": run_id, "header": json.dumps(header)}]
    yield (
        "measurements",
        [
            {"run_id": run_id, "name": name, "seq": seq, **measurement_columns(measurement)}
            for seq, (name, measurement) in enumerate(record.measurements.items())
        ],
    )
    for series, model in SERIES.items():
        items: tuple[Frozen, ...] = getattr(record, series)
        rows = []
        for seq, item in enumerate(items):
            fields = item.model_dump()
            fields |= {name: json.dumps(fields[name]) for name in _kept_as_json(model)}
            rows.append({"run_id": run_id, "seq": seq, **fields})
        yield series, rows


def insert(connection: sqlite3.Connection, table: str, rows: Sequence[Row]) -> None:
    """Rows that all have the columns of the first."""
    if rows:
        columns, marks = ", ".join(rows[0]), ", ".join("?" * len(rows[0]))
        statement = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
        connection.executemany(statement, [tuple(row.values()) for row in rows])


def header_of(rest: str, recipe: str) -> RunHeader:
    """From the texts in `headers` and `recipes`."""
    return RunHeader.model_validate({**json.loads(rest), "recipe": json.loads(recipe)})


def record_of(model: type[Record], row: sqlite3.Row) -> Record:
    """The record that a row of a series was made from."""
    fields = dict(zip(row.keys(), row, strict=True))
    del fields["run_id"], fields["seq"]
    for name in _kept_as_json(model):
        fields[name] = json.loads(fields[name])
    for name in _figures(model):
        if fields[name] is None:
            fields[name] = math.nan
    return model.model_validate(fields)


def measurement_columns(measurement: Measurement) -> Row:
    columns = measurement.model_dump(exclude={"ci"})
    columns["ci_low"], columns["ci_high"] = measurement.ci or (None, None)
    return columns


def measurement_of(row: sqlite3.Row) -> Measurement:
    fields = {name: row[name] for name in _OF_MEASUREMENT}
    ci = None if row["ci_low"] is None else (row["ci_low"], row["ci_high"])
    return Measurement(**fields, ci=ci)


@cache
def _kept_as_json(model: type[Frozen]) -> tuple[str, ...]:
    fields = model.model_fields.items()
    return tuple(name for name, field in fields if get_origin(field.annotation) in (dict, list, tuple))


@cache
def _figures(model: type[Frozen]) -> tuple[str, ...]:
    return tuple(name for name, field in model.model_fields.items() if field.annotation is float)


def _text(fields: Mapping[str, Any], section: str, key: str) -> str | None:
    inner = fields.get(section)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return value if isinstance(value, str) else None
