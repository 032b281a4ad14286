"""Runs as one table for other programs: CSV, Parquet or JSON; a row for each run, measurement or step.

Tables are in long form: a row of measurements is one figure of one run, with its unit, how it came to be and,
where there is none, why. They leave the machine, so absolute paths are taken out of every text.
"""

from __future__ import annotations

import csv
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trueup.files.whole import replacing_file
from trueup.schema import Frozen, InputError, RunRecord, Step, StorageError

from .repository import RunSummary
from .scrub import Scrubber

if TYPE_CHECKING:
    import pyarrow as pa

TableFormat = Literal["csv", "parquet", "json"]
What = Literal["runs", "measurements", "steps"]
Row = dict[str, Any]


class MeasurementRow(Frozen):
    """One measurement of one run; `run` is the run's id."""

    run: str
    name: str
    measurement: str
    value: float | None
    unit: str
    kind: str
    method: str
    scope: str
    n: int | None
    ci_low: float | None
    ci_high: float | None
    ci_method: str | None
    reason: str | None


class StepRow(Frozen):
    """One optimizer step of one run. Seconds from the start of the process; `labels` parted by spaces."""

    run: str
    name: str
    step: int
    start_s: float
    step_s: float
    data_wait_s: float
    communication_s: float
    loss: float
    grad_norm: float
    lr: float
    useful_tokens: int
    supervised_tokens: int
    processed_tokens: int
    head_rows: int
    attention_sum_sq: int
    micro_batches: int
    shape_rows: int
    shape_length: int
    loss_scale: float
    skipped: bool
    labels: str


ROWS: dict[What, type[Frozen]] = {"runs": RunSummary, "measurements": MeasurementRow, "steps": StepRow}


def export_table(rows: Iterable[Frozen], what: What, form: TableFormat, out: Path, *, home: Path) -> int:
    """Writes these rows, of the kind that `what` names, to `out`, whole or not at all; returns their number.

    `home` is the trueup home, whose path is written as its name. Raises InputError where `out` cannot be a
    file there, StorageError where the disk refuses.
    """
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError(f"{out} cannot be written: give the name of a file in a folder that exists")
    scrubber = Scrubber(home)
    scrubbed: list[Row] = [scrubber.value(row.model_dump()) for row in rows]
    columns = list(ROWS[what].model_fields)
    try:
        with replacing_file(out) as part:
            if form == "csv":
                _write_csv(part, columns, scrubbed)
            elif form == "json":
                _write_json(part, ROWS[what], scrubbed)
            else:
                _write_parquet(part, ROWS[what], scrubbed)
    except OSError as error:
        raise StorageError(
            f"{out} could not be written: {error.strerror or error}; nothing was kept. Free some space, "
            "or name another file with -o"
        ) from None
    return len(scrubbed)


def measurement_rows(record: RunRecord) -> Iterable[MeasurementRow]:
    """A row for each measurement, unavailable ones too."""
    for name, one in record.measurements.items():
        low, high = one.ci or (None, None)
        fields = one.model_dump(exclude={"ci"})
        identity = {"run": record.header.id, "name": record.header.name, "measurement": name}
        yield MeasurementRow(**identity, **fields, ci_low=low, ci_high=high)


def step_rows(record: RunRecord) -> Iterable[StepRow]:
    """A row for each step."""
    for step in record.steps:
        yield _step_row(record, step)


def _step_row(record: RunRecord, step: Step) -> StepRow:
    fields = step.model_dump(exclude={"shape", "labels"})
    rows, length = step.shape
    identity = {"run": record.header.id, "name": record.header.name}
    return StepRow(**identity, **fields, shape_rows=rows, shape_length=length, labels=" ".join(step.labels))


# --- formats ----------------------------------------------------------------------------------------------


def _write_csv(path: Path, columns: list[str], rows: list[Row]) -> None:
    """RFC 4180, UTF-8, a header line; an empty field where there is no value. Numbers keep every digit."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _write_json(path: Path, model: type[Frozen], rows: list[Row]) -> None:
    """A list of objects. A number that JSON has no word for is a string, "NaN" or "Infinity"."""
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        for index, row in enumerate(rows):
            file.write(f"{',' if index else ''}\n{model.model_construct(**row).model_dump_json()}")
        file.write("\n]\n")


def _write_parquet(path: Path, model: type[Frozen], rows: list[Row]) -> None:
    """Columns with their types even where every value is missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, _arrow_type(field.annotation)) for name, field in model.model_fields.items()])
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path)


def _arrow_type(annotation: Any) -> pa.DataType:
    import pyarrow as pa

    if isinstance(annotation, types.UnionType):
        annotation = next(one for one in typing.get_args(annotation) if one is not type(None))
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[annotation]
