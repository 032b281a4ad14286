"""Every price row known here, and which of them held where and when.

Rows have three origins: `own` were set by hand, `collected` were imported or fetched, `published` came with
trueup. What is one's own comes first: a list price fetched later does not take the place of one's contract.
Within an origin a row holds until the next of its key begins, so a bill made for March keeps March's price.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from trueup.schema import InputError, PriceRow
from trueup.schema.price_row import ROW_MODELS, Origin, RowModel, period

from .lookup import instances, unknown_name

DEFAULT_REGION = "us-east-1"  # where none is asked for and more than one is priced
US_REGIONS = "US regions"  # of a source that gives one price for all of them
_AWS_ZONE = re.compile(r"(?P<region>[a-z]{2}(-[a-z]+)+-\d+)[a-z]")
_BEGINNING = datetime.min.replace(tzinfo=UTC)
_Key = tuple[str, str, str | None, RowModel]


class Held(NamedTuple):
    """A row with its place in the book."""

    row: PriceRow
    origin: Origin


class _History(NamedTuple):
    """The rows of one price in order of time, and when each begins."""

    rows: Sequence[PriceRow]
    starts: Sequence[datetime]


class PriceBook:
    """Raises InputError where rows of one origin give two prices for one time, or a key's two currencies."""

    def __init__(
        self,
        *,
        own: Iterable[PriceRow] = (),
        collected: Iterable[PriceRow] = (),
        published: Iterable[PriceRow] = (),
    ) -> None:
        given: dict[Origin, Iterable[PriceRow]] = {"own": own, "collected": collected, "published": published}
        self._histories = {origin: _histories(rows) for origin, rows in given.items()}
        # The same by instance and model, one mapping an origin: a spot history may be thousands of rows long.
        self._by_instance: dict[tuple[str, RowModel], list[dict[_Key, _History]]] = {}
        for number, histories in enumerate(self._histories.values()):
            for key, history in histories.items():
                mine = self._by_instance.setdefault((key[0], key[3]), [{} for _ in given])
                mine[number][key] = history

    def rows(self) -> Iterator[Held]:
        """Every row, the origins in their order, each price's history in order of time."""
        for origin, histories in self._histories.items():
            for key in sorted(histories, key=_sortable):
                for row in histories[key].rows:
                    yield Held(row, origin)

    def in_force(self, on: date) -> Iterator[Held]:
        """Of every price the row that counts on a date."""
        keys = {key for histories in self._histories.values() for key in histories}
        for key in sorted(keys, key=_sortable):
            for origin, histories in self._histories.items():
                row = _holding(histories.get(key), on)
                if row is not None:
                    yield Held(row, origin)
                    break

    def instance_names(self) -> set[str]:
        """What the catalog knows, and what has a price here."""
        return {*instances(), *(name for name, _ in self._by_instance)}

    def known_instance(self, name: str) -> str:
        """The name as it is written here. InputError, with the near ones, for one that is not known."""
        plain, names = name.strip().lower(), self.instance_names()
        if plain not in names:
            raise InputError(unknown_name("instance", name, sorted(names)))
        return plain

    def find(
        self,
        instance: str,
        model: str,
        *,
        region: str | None = None,
        zone: str | None = None,
        on: date | None = None,
    ) -> PriceRow:
        """The price that counts: on the date `on`, or without one the newest. Its amount may be missing, with
        the reason.

        Without `region`: that of `zone`; else of a price of one's own, us-east-1, or the only one that is
        priced. InputError where nothing is known, or where more than one region or zone answers.
        """
        name, wanted = self.known_instance(instance), row_model(model)
        mine = self._by_instance.get((name, wanted), [{}])
        rows = [row for histories in mine for history in histories.values() for row in history.rows]
        if region is None and zone is not None:
            region = _region_of(zone, rows)
        own, *others = (dict(_all_holding(histories, on)) for histories in mine)
        attempts = [(held, region) for held in (own, *others)]
        if region is None:
            attempts[1:] = [(held, place) for place in (DEFAULT_REGION, None) for held in others]
        for held, place in attempts:
            found = {key: row for key, row in held.items() if _fits(key, place, zone)}
            if found:
                return _one(found, place, zone)
        raise InputError(_nothing(name, wanted, region, zone, on, rows))

    def spot_rows(
        self, instance: str, *, region: str | None = None, zone: str | None = None, on: date | None = None
    ) -> tuple[PriceRow, ...]:
        """The whole history of the spot price that `find` answers with, in order of time."""
        key = self.find(instance, "spot", region=region, zone=zone, on=on).key
        history = next(h[key] for h in self._histories.values() if _holding(h.get(key), on) is not None)
        return tuple(row for row in history.rows if row.amount_per_hour is not None)


def row_model(name: str) -> RowModel:
    """`on-demand` and `on_demand` alike. InputError for a model that has no rows."""
    plain = name.strip().lower().replace("-", "_")
    for model in ROW_MODELS:
        if plain == model:
            return model
    there_are = ", ".join(one.replace("_", "-") for one in ROW_MODELS)
    raise InputError(f"no price model {name!r} has rows: there are {there_are}")


def check_new(rows: Sequence[PriceRow], now: datetime) -> None:
    """InputError where one was seen, or begins, after `now`."""
    for row in rows:
        for what, text in (("as of", row.as_of), ("valid from", row.valid_from)):
            if text is not None and period(text)[0] > now:
                raise InputError(
                    f"the price of {row.instance} ({row.model}, {row.zone or row.region}) is {what} {text}, "
                    f"which lies in the future of {now.date()}: give the day on which it was seen to hold"
                )


def covers(region: str, asked: str) -> bool:
    """Whether a row's region holds the one asked for."""
    return region == asked or (region == US_REGIONS and asked.startswith(("us-east-", "us-west-")))


def _histories(rows: Iterable[PriceRow]) -> Mapping[_Key, _History]:
    by_key: dict[_Key, dict[datetime, PriceRow]] = defaultdict(dict)
    for row in rows:
        start = row.start or _BEGINNING
        there = by_key[row.key].get(start)
        if there is not None:
            row = _same_price(there, row)
        by_key[row.key][start] = row
    histories = {}
    for key, by_start in by_key.items():
        starts = sorted(by_start)
        histories[key] = history = _History([by_start[start] for start in starts], starts)
        longest = history.rows[0]
        for row in history.rows[1:]:
            _must_not_overlap(longest, row)
            longest = max(longest, row, key=_held_to)
    return histories


def _same_price(there: PriceRow, row: PriceRow) -> PriceRow:
    """Of two that begin together the one that was seen later."""
    if (there.amount_per_hour, there.currency) != (row.amount_per_hour, row.currency):
        raise InputError(_overlap(there, row))
    return row if period(row.as_of) >= period(there.as_of) else there


def _must_not_overlap(earlier: PriceRow, later: PriceRow) -> None:
    if earlier.currency != later.currency:
        raise InputError(
            f"{_named(earlier)} is priced in {earlier.currency} and in {later.currency}: the history of a "
            "price is in one currency"
        )
    differs = earlier.amount_per_hour != later.amount_per_hour
    if differs and (later.start or _BEGINNING) < _held_to(earlier):
        raise InputError(_overlap(earlier, later))


def _held_to(row: PriceRow) -> datetime:
    """Until when the row is known to have held: it was still seen on `as_of`."""
    return row.end or max(row.start or _BEGINNING, period(row.as_of)[0])


def _overlap(one: PriceRow, other: PriceRow) -> str:
    return (
        f"overlapping prices of {_named(one)}: {_told(one)}, and {_told(other)}. Say when the earlier one "
        "ended (valid_to, --to), or replace it (--replace)"
    )


def _told(row: PriceRow) -> str:
    amount = "no price" if row.amount_per_hour is None else f"{row.amount_per_hour:.10g} {row.unit}"
    since = f" from {row.valid_from}" if row.valid_from else ""
    until = f" to {row.valid_to}" if row.valid_to else ""
    return f"{amount}{since}{until} as of {row.as_of} ({row.source})"


def _named(row: PriceRow) -> str:
    return f"{row.instance} {row.model.replace('_', '-')} in {row.zone or row.region}"


def _holding(history: _History | None, on: date | None) -> PriceRow | None:
    """The row in force at the end of a day; without one the newest."""
    if history is None or on is None:
        return history.rows[-1] if history else None
    day = datetime(on.year, on.month, on.day, tzinfo=UTC)
    begun = bisect_left(history.starts, day + timedelta(days=1))
    if begun == 0:
        return None
    newest = history.rows[begun - 1]
    if newest.end is None or newest.end > day:
        return newest
    # it has ended, but a row of the same price may reach further
    return next((row for row in history.rows[:begun] if row.end is not None and row.end > day), None)


def _all_holding(histories: Mapping[_Key, _History], on: date | None) -> Iterator[tuple[_Key, PriceRow]]:
    for key, history in histories.items():
        row = _holding(history, on)
        if row is not None:
            yield key, row


def _region_of(zone: str, rows: Iterable[PriceRow]) -> str:
    """Where a zone lies, by the rows or by AWS's way of naming it."""
    known = {row.region for row in rows if row.zone == zone}
    if len(known) == 1:
        return known.pop()
    named = _AWS_ZONE.fullmatch(zone)
    if named is None:
        raise InputError(f"zone {zone} is of a region that is not known: say which region")
    return named["region"]


def _fits(key: _Key, region: str | None, zone: str | None) -> bool:
    return (region is None or covers(key[1], region)) and (zone is None or key[2] in (None, zone))


def _one(found: Mapping[_Key, PriceRow], region: str | None, zone: str | None) -> PriceRow:
    """The row of the region and zone asked for, or the only one."""
    if region is None:
        regions = {key[1] for key in found}
        if len(regions) > 1:
            default = {key: row for key, row in found.items() if covers(key[1], DEFAULT_REGION)}
            if not default:
                raise InputError(
                    f"{_which(found)} is priced in {', '.join(sorted(regions))}: say which region"
                )
            found, region = default, DEFAULT_REGION
    exact = {key: row for key, row in found.items() if key[1] == region} or found
    in_zone = {key: row for key, row in exact.items() if key[2] == zone} or exact
    if len(in_zone) > 1:
        zones = ", ".join(f"{row.zone} ({_told(row)})" for row in in_zone.values())
        raise InputError(f"{_which(found)} is priced by zone: say which of {zones}")
    (row,) = in_zone.values()
    return row


def _which(found: Mapping[_Key, PriceRow]) -> str:
    row = next(iter(found.values()))
    return f"{row.instance} {row.model.replace('_', '-')}"


def _nothing(
    name: str, model: RowModel, region: str | None, zone: str | None, on: date | None, tried: list[PriceRow]
) -> str:
    asked = f"{name} {model.replace('_', '-')}"
    add = f"`trueup prices set {name}` or `trueup prices import FILE` adds one"
    if not tried:
        return f"no {model.replace('_', '-')} price of {name} is known; {add}"
    places = sorted({row.zone if zone is not None and row.zone else row.region for row in tried})
    there = [row for row in tried if _fits(row.key, region, zone)]
    if not there:
        return f"no price of {asked} is known in {zone or region}, only in {', '.join(places)}; {add}"
    held = "; ".join(_told(row) for row in sorted(there, key=lambda row: row.start or _BEGINNING))
    return f"no price of {asked} is known for {on}: {held}; {add} with --from"


def _sortable(key: _Key) -> tuple[str, str, str, str]:
    return key[0], key[3], key[1], key[2] or ""
