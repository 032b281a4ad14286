"""Price rows from CSV: the SkyPilot catalog's columns, the same under shorter names, or those of `PriceRow`.

SkyPilot's file has a line for each zone, with the on-demand price of the region and the spot price of the
zone, in dollars, and does not say when it was made: that is for the reader to say.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from io import StringIO
from typing import Any, NamedTuple

from pydantic import ValidationError

from trueup.schema import InputError, PriceRow
from trueup.schema.counting import counted
from trueup.schema.price_row import RowModel

from .price_book import row_model

OWN_REQUIRED = ("instance", "region", "model", "amount_per_hour", "currency")
OWN_COLUMNS = tuple(PriceRow.model_fields)
MINIMUM_BILLED_S = 60.0  # AWS, Linux, on-demand and spot (announcement of 2017-10-02)
_PROBLEMS_SHOWN = 5


class _ZoneColumns(NamedTuple):
    """Names of one line's columns where a line is a zone."""

    title: str
    instance: str
    region: str
    zone: str
    on_demand: str
    spot: str


_ZONE_FORMATS = (
    _ZoneColumns("SkyPilot catalog", "InstanceType", "Region", "AvailabilityZone", "Price", "SpotPrice"),
    _ZoneColumns("prices by zone", "instance_type", "region", "az_id", "on_demand_usd_h", "spot_usd_h"),
)


class CsvPrices(NamedTuple):
    """`columns` says in words whose columns they are. `left_out` counts rows by instances not known."""

    columns: str
    rows: tuple[PriceRow, ...]
    left_out: Mapping[str, int]


def read_price_csv(
    text: str,
    *,
    name: str,
    as_of: str | None = None,
    source: str | None = None,
    known: Collection[str] | None = None,
    skip_unknown: bool = False,
) -> CsvPrices:
    """The rows of a CSV file called `name`. `known`: names of instances; None: any name will do.

    InputError, with the line, for the first rows that are wrong, of which those of instances not known are,
    with the names near theirs, unless `skip_unknown` leaves them out; for columns of no known kind; and where
    neither the file nor `as_of` says when its prices were seen.
    """
    names = Names(known, skip_unknown)
    reader = csv.DictReader(StringIO(text, newline=None), strict=True)
    header = _header(reader, name)
    reader.fieldnames = header
    zones = next(
        (one for one in _ZONE_FORMATS if {one.instance, one.region, one.on_demand} <= {*header}), None
    )
    if zones is not None:
        if as_of is None:
            raise InputError(
                f"{name} has the {zones.title}'s columns, which do not say when: give --as-of DATE"
            )
        by_zone = _by_zone(zones, as_of, source or f"{zones.title}, file {name}")
        rows, left_out = _read(reader, name, by_zone, zones.instance, names)
        return CsvPrices(zones.title, _each_once(rows, name), left_out)
    if "instance" in header and "amount_per_hour" in header:
        _must_be_own(header, name)
        rows, left_out = _read(reader, name, _own(as_of, source or f"file {name}"), "instance", names)
        return CsvPrices("trueup's own", tuple(row for _, row in rows), left_out)
    known = "; ".join(
        ", ".join(columns)
        for columns in (
            OWN_REQUIRED,
            *((z.instance, z.region, z.zone, z.on_demand, z.spot) for z in _ZONE_FORMATS),
        )
    )
    raise InputError(f"{name} has the columns {', '.join(header)}; known are files with: {known}")


def _header(reader: csv.DictReader[str], name: str) -> list[str]:
    try:
        header = reader.fieldnames
    except csv.Error as error:
        raise InputError(f"{name}:1: not CSV: {error}") from None
    if not header:
        raise InputError(f"{name} is empty: a line of column names is expected first")
    columns = [column.strip() for column in header]
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise InputError(f"{name}:1: two columns are named '{twice[0]}'; which one counts is not known")
    return columns


def _must_be_own(header: list[str], name: str) -> None:
    for column in OWN_REQUIRED:
        if column not in header:
            raise InputError(f"{name} has no column '{column}'; needed are {', '.join(OWN_REQUIRED)}")
    for column in header:
        if column not in OWN_COLUMNS:
            near = difflib.get_close_matches(column, OWN_COLUMNS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(OWN_COLUMNS)}"
            raise InputError(f"{name}: unknown column '{column}'; {hint}")


class Names(NamedTuple):
    """The instances that a row may be of; None: any. Rows of others are left out, or are mistakes."""

    known: Collection[str] | None
    skip_unknown: bool

    def mistake(self, instance: str, rows: int) -> str:
        """What is wrong with rows of this instance: a slip of the keyboard has a name near it."""
        near = difflib.get_close_matches(instance, self.known or (), n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "no name in it is near"
        more = f" (in {counted(rows, 'row')})" if rows > 1 else ""
        return f"the catalog holds no instance named '{instance}'{more}; {hint}"


_Line = Mapping[str, str]


def _read(
    reader: csv.DictReader[str],
    name: str,
    rows_of: Callable[[_Line], Iterator[PriceRow]],
    instance_column: str,
    names: Names,
) -> tuple[list[tuple[int, PriceRow]], dict[str, int]]:
    """Every row with its line in the file, and how many rows there are of each instance not known."""
    rows: list[tuple[int, PriceRow]] = []
    unknown: dict[str, list[int]] = {}  # lines
    problems: dict[int, str] = {}
    for number, line in _lines(reader, name):
        instance = line.get(instance_column, "").lower()
        if names.known is not None and instance and instance not in names.known:
            unknown.setdefault(instance, []).append(number)
            continue
        try:
            rows += [(number, row) for row in rows_of(line)]
        except (ValidationError, InputError, ValueError) as error:
            problems[number] = told(error)
    mistaken = {} if names.skip_unknown else {lines[0]: instance for instance, lines in unknown.items()}
    if problems or mistaken:
        shown = sorted([*problems, *mistaken])
        said = [
            f"{name}:{at}: {problems.get(at) or names.mistake(mistaken[at], len(unknown[mistaken[at]]))}"
            for at in shown[:_PROBLEMS_SHOWN]
        ]
        if len(shown) > _PROBLEMS_SHOWN:
            said.append(f"and {len(shown) - _PROBLEMS_SHOWN:,} more")
        if mistaken:
            said.append(
                "nothing was imported: --skip-unknown leaves out rows of instances that the catalog does not "
                "know, --all takes them too"
            )
        raise InputError("\n".join(said))
    return rows, {instance: len(lines) for instance, lines in unknown.items()}


def _lines(reader: csv.DictReader[str], name: str) -> Iterator[tuple[int, _Line]]:
    while True:
        try:
            line = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{name}:{reader.reader.line_num}: not CSV: {error}") from None
        if line is None:
            return
        if None in line:
            raise InputError(f"{name}:{reader.line_num}: more fields than the {len(line) - 1} columns")
        yield reader.line_num, {column: (value or "").strip() for column, value in line.items()}


def _by_zone(columns: _ZoneColumns, as_of: str, source: str) -> Callable[[_Line], Iterator[PriceRow]]:
    def rows(line: _Line) -> Iterator[PriceRow]:
        zone = line.get(columns.zone) or None
        yield row(line, "on_demand", columns.on_demand, None)
        if columns.spot in line:
            yield row(line, "spot", columns.spot, zone)

    def row(line: _Line, model: RowModel, column: str, zone: str | None) -> PriceRow:
        amount = line[column]
        return PriceRow(
            instance=line[columns.instance].lower(),
            region=line[columns.region],
            zone=zone,
            model=model,
            amount_per_hour=_number(amount, column) if amount else None,
            currency="USD",
            minimum_billed_s=MINIMUM_BILLED_S,
            as_of=as_of,
            source=source,
            kind="quoted" if amount else "unavailable",
            reason=None if amount else f"the source has no {model.replace('_', '-')} price",
        )

    return rows


def _own(as_of: str | None, source: str) -> Callable[[_Line], Iterator[PriceRow]]:
    def rows(line: _Line) -> Iterator[PriceRow]:
        fields: dict[str, Any] = {column: value for column, value in line.items() if value}
        for column in ("amount_per_hour", "minimum_billed_s", "block_hours"):
            if column in fields:
                fields[column] = _number(fields[column], column)
        if as_of is None and "as_of" not in fields:
            raise InputError("the row does not say when its price was seen: fill as_of, or give --as-of DATE")
        if "model" in fields:
            fields["model"] = row_model(fields["model"])
        amount = fields.setdefault("amount_per_hour", None)
        defaults = {"as_of": as_of, "source": source, "kind": "unavailable" if amount is None else "quoted"}
        if amount is None:
            defaults["reason"] = "the file has no price"
        fields = {**defaults, **fields, "instance": fields.get("instance", "").lower()}
        yield PriceRow.model_validate(fields)

    return rows


def _each_once(rows: list[tuple[int, PriceRow]], name: str) -> tuple[PriceRow, ...]:
    """A region's on-demand price stands on the line of every zone."""
    kept: dict[tuple[str, str, str | None, RowModel], tuple[int, PriceRow]] = {}
    for number, row in rows:
        first, there = kept.setdefault(row.key, (number, row))
        if there != row:
            raise InputError(
                f"{name}:{number}: {row.instance} {row.model.replace('_', '-')} in {row.zone or row.region}: "
                f"{row.amount_per_hour}, and on line {first} {there.amount_per_hour}; one price is expected"
            )
    return tuple(row for _, row in kept.values())


def _number(text: str, column: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{column} '{text}' is no number") from None


def told(error: Exception) -> str:
    """An error of one row in a line: the field, what was expected, and what was given."""
    if not isinstance(error, ValidationError):
        return str(error)
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"{where} is empty; a price row says it"
    if where == "currency":
        return f"currency {problem['input']!r} is none; write its three capital letters, such as USD"
    given = f" (got {problem['input']!r})" if where else ""
    return f"{where + ': ' if where else ''}{problem['msg'].removeprefix('Value error, ')}{given}"
