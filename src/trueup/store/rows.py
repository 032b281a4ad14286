"""Between the frozen records and the database's rows, both ways, nothing lost.

A figure that is NaN (a run that diverged) is NULL in the database; `record_of` gives it back as NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Float, Select, Table, select

from trueup.schema import Evaluation, Event, Measurement, RunHeader, RunRecord, SpanTotal, Step
from trueup.schema.measurement import Frozen

from . import tables

Row = dict[str, Any]
Record = TypeVar("Record", bound=Frozen)

# The record's series and where each is kept.
SERIES: dict[str, tuple[Table, type[Frozen]]] = {
    "spans": (tables.spans, SpanTotal),
    "events": (tables.events, Event),
    "steps": (tables.steps, Step),
    "evaluations": (tables.evaluations, Evaluation),
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


def rows_of(record: RunRecord) -> Iterable[tuple[Table, list[Row]]]:
    """The rows of every table but `runs`."""
    run_id = record.header.id
    header = record.header.model_dump()
    yield tables.recipes, [{"run_id": run_id, "recipe": header.pop("recipe")}]
    yield tables.headers, [{"run_id": run_id, "header": header}]
    yield (
        tables.measurements,
        [
            {"run_id": run_id, "name": name, "seq": seq, **measurement_columns(measurement)}
            for seq, (name, measurement) in enumerate(record.measurements.items())
        ],
    )
    for series, (table, _) in SERIES.items():
        items: tuple[Frozen, ...] = getattr(record, series)
        yield table, [{"run_id": run_id, "seq": seq, **item.model_dump()} for seq, item in enumerate(items)]


def headers_of(ids: Sequence[str]) -> Select[tuple[str, Any, Any]]:
    """(run, header but for the recipe, recipe), for `header_of`."""
    h, r = tables.headers.c, tables.recipes.c
    return (
        select(h.run_id, h.header, r.recipe)
        .join_from(tables.headers, tables.recipes, h.run_id == r.run_id)
        .where(h.run_id.in_(ids))
    )


def header_of(rest: Mapping[str, Any], recipe: Mapping[str, Any]) -> RunHeader:
    return RunHeader.model_validate({**rest, "recipe": recipe})


def record_of(model: type[Record], table: Table, row: Mapping[Any, Any]) -> Record:
    """The record a row of `table` was made from."""
    fields = {
        column.name: math.nan if value is None and isinstance(column.type, Float) else value
        for column in table.columns
        if column.name not in ("run_id", "seq")
        for value in (row[column.name],)
    }
    return model.model_validate(fields)


def measurement_columns(measurement: Measurement) -> Row:
    columns = measurement.model_dump(exclude={"ci"})
    columns["ci_low"], columns["ci_high"] = measurement.ci or (None, None)
    return columns


def measurement_of(row: Mapping[Any, Any]) -> Measurement:
    fields = {name: row[name] for name in _OF_MEASUREMENT}
    ci = None if row["ci_low"] is None else (row["ci_low"], row["ci_high"])
    return Measurement(**fields, ci=ci)


def _text(fields: Mapping[str, Any], section: str, key: str) -> str | None:
    inner = fields.get(section)
    value = inner.get(key) if isinstance(inner, Mapping) else None
    return value if isinstance(value, str) else None
