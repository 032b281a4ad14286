"""`trueup prices list|set|import|refresh`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from trueup.home import find_home
from trueup.schema import InputError, TrueupError
from trueup.schema.counting import counted

from .output import JSON_OPTION, print_json, print_rich, say
from .price_book import book_of, date_given, open_price_book, today

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trueup.catalog.price_book import Held
    from trueup.schema import PriceRow

MOST_BYTES = 1 << 28  # of a file to import
_NAMES_SHOWN = 5  # of instances left out
app = typer.Typer(
    help="What instances cost: list, set, import, fetch. History is kept.", no_args_is_help=True
)
_INSTANCE = typer.Option(None, "--instance", help="Instance type; may be given again.", metavar="NAME")
_REGION = typer.Option(None, "--region", help="The provider's name of the region.", metavar="NAME")
_ZONE = typer.Option(
    None, "--zone", help="Zone of the region, for a price that differs by zone.", metavar="NAME"
)
_AS_OF = typer.Option(None, "--as-of", help="The day on which it was seen to hold.", metavar="DATE")
_SOURCE = typer.Option(
    None, "--source", help="Who says so; shown wherever the price is used.", metavar="TEXT"
)


@app.command("list")
def list_prices(
    instance: list[str] | None = _INSTANCE,
    region: str | None = _REGION,
    model: str | None = typer.Option(
        None, "--model", help="on-demand, spot, reserved-1y, reserved-3y or capacity-block.", metavar="MODEL"
    ),
    on: str | None = typer.Option(None, "--on", help="What held on this day; default today.", metavar="DATE"),
    history: bool = typer.Option(False, "--history", help="Every row known, whenever it held."),
    as_json: bool = JSON_OPTION,
) -> None:
    """List prices with source and date; what is missing with the reason, what is older than 90 days
    marked."""
    from trueup.catalog import staleness

    day = date_given(on, "--on") or today()
    held = _selected(instance, region, model, None if history else day)
    if as_json:
        rows = [
            {**row.model_dump(mode="json"), "origin": origin, "stale": staleness(row, day)}
            for row, origin in held
        ]
        print_json({"on": day.isoformat(), "prices": rows})
        return
    if not held:
        say("no such price is known; `trueup prices set` and `trueup prices import` add some")
        return
    from trueup.report.prices import prices_table

    print_rich(prices_table(held, None if history else day))
    old = 0 if history else sum(staleness(row, day) is not None for row, _ in held)
    if old:
        these = f"{old} of these prices" if len(held) > 1 else "this price"
        say(f"{these}: last seen more than 90 days before {day}; may hold no more")


@app.command("set")
def set_price(
    instance: str = typer.Argument(help="Instance type, or a name of your own.", metavar="INSTANCE"),
    amount: float = typer.Option(..., "--per-hour", help="Of the whole instance.", metavar="AMOUNT"),
    currency: str = typer.Option(..., "--currency", help="Three letters, as USD.", metavar="CODE"),
    region: str = typer.Option(..., "--region", help="The provider's name of the region.", metavar="NAME"),
    source: str = typer.Option(..., "--source", help="Who says so.", metavar="TEXT"),
    model: str = typer.Option("on-demand", "--model", help="Price model.", metavar="MODEL"),
    zone: str | None = _ZONE,
    kind: Literal["quoted", "measured", "estimated"] = typer.Option(
        "quoted", "--kind", help="From a list or contract, from a bill, or a guess."
    ),
    as_of: str | None = typer.Option(
        None, "--as-of", help="When it was seen; default today.", metavar="DATE"
    ),
    valid_from: str | None = typer.Option(None, "--from", help="Since when it holds.", metavar="DATE"),
    valid_to: str | None = typer.Option(None, "--to", help="Its last day.", metavar="DATE"),
    minimum_s: float | None = typer.Option(
        None, "--minimum-s", help="Seconds billed at the least.", metavar="SECONDS"
    ),
    block_hours: float | None = typer.Option(
        None, "--block-hours", help="Length of a capacity block.", metavar="HOURS"
    ),
    replace: bool = typer.Option(
        False, "--replace", help="In place of your own row that begins on that day."
    ),
    new: bool = typer.Option(False, "--new-instance", help="Take a name that the catalog does not know."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Set a price of your own. It comes before imported, fetched and published ones."""
    from pydantic import ValidationError

    from trueup.catalog.price_book import row_model
    from trueup.catalog.price_csv import told
    from trueup.schema import PriceRow

    name = instance.strip().lower() if new else open_price_book().known_instance(instance)
    try:
        row = PriceRow(
            instance=name,
            region=region,
            zone=zone,
            model=row_model(model),
            amount_per_hour=amount,
            currency=currency,
            minimum_billed_s=minimum_s,
            block_hours=block_hours,
            valid_from=valid_from,
            valid_to=valid_to,
            as_of=as_of or today().isoformat(),
            source=source,
            kind=kind,
        )
    except ValidationError as error:
        raise InputError(told(error)) from None
    _keep([row], "own", replaces=replace)
    if as_json:
        print_json(row.model_dump(mode="json"))
    else:
        since = row.valid_from or row.as_of
        say(f"{row.instance} {model} in {zone or region}: {amount:.10g} {row.unit} from {since}")


@app.command("import")
def import_prices(
    path: Path = typer.Argument(help="CSV of the SkyPilot catalog's columns, or of ours.", metavar="FILE"),
    as_of: str | None = _AS_OF,
    source: str | None = _SOURCE,
    everything: bool = typer.Option(False, "--all", help="Also instances that the catalog does not know."),
    skip_unknown: bool = typer.Option(
        False, "--skip-unknown", help="Leave out rows of instances that the catalog does not know."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Import prices from a CSV file, all of its rows or none; whose columns they are is found out and
    said."""
    from trueup.catalog.price_csv import read_price_csv

    if everything and skip_unknown:
        raise InputError("--all takes rows of unknown instances, --skip-unknown leaves them out: give one")
    if as_of is not None:
        date_given(as_of, "--as-of")
    from trueup.recipe.text_file import read_text

    text = read_text(path, "CSV file", most_bytes=MOST_BYTES)
    known = None if everything else open_price_book().instance_names()
    found = read_price_csv(
        text, name=path.name, as_of=as_of, source=source, known=known, skip_unknown=skip_unknown
    )
    added = _keep(found.rows, "collected")
    if as_json:
        document = {"columns": found.columns, "left_out": dict(found.left_out), **_counted(found.rows)}
        print_json({**document, "added": added})
        return
    say(f"{path}: {found.columns} columns; {_words(found.rows)}, {added} of them new")
    if found.left_out:
        rows, names = sum(found.left_out.values()), [*found.left_out]
        more = f" and {counted(len(names) - _NAMES_SHOWN, 'other')}" if len(names) > _NAMES_SHOWN else ""
        say(
            f"note: {counted(rows, 'row')} left out, of instances that the catalog does not know: "
            f"{', '.join(names[:_NAMES_SHOWN])}{more}"
        )


@app.command()
def refresh(
    whence: Literal["aws"] = typer.Option(..., "--from", help="The provider to ask."),
    instance: list[str] | None = _INSTANCE,
    region: str | None = typer.Option(None, "--region", help="Default: boto3's own.", metavar="NAME"),
    spot_days: float = typer.Option(7.0, "--spot-days", min=0, max=90, help="Spot history of so many days."),
    block_hours: int = typer.Option(24, "--block-hours", min=1, help="Length of capacity blocks to ask for."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Fetch on-demand, reserved, spot and capacity-block prices, of every instance of the catalog by default.

    Needs the extra `aws`. Credentials are those of boto3's own chain. What came is kept, also where not all
    did.
    """
    from trueup.catalog import aws_prices, instances

    book = open_price_book()
    names = [book.known_instance(name) for name in instance or sorted(instances())]
    find_home().for_writing()
    clients = aws_prices.open_clients(region)
    now = datetime.now(UTC)
    rows: list[PriceRow] = []
    problems: list[str] = []
    for name in names:
        known = instances().get(name)
        asked = [
            partial(aws_prices.list_prices, clients, name, now),
            partial(aws_prices.spot_prices, clients, name, spot_days, now),
        ]
        if known is not None and known.chip_count:  # blocks are sold of instances with accelerators alone
            asked.append(partial(aws_prices.capacity_blocks, clients, name, block_hours, now))
        for ask in asked:
            try:
                rows += ask()
            except InputError:
                raise
            except TrueupError as error:
                problems.append(str(error))
    added = _keep(rows, "collected") if rows else 0
    if as_json:
        print_json({"region": clients.region, **_counted(rows), "added": added, "problems": problems})
    else:
        say(f"AWS, {clients.region}: {_words(rows)}, {added} of them new")
    if problems:
        raise TrueupError("; ".join(dict.fromkeys(problems)))


def _selected(
    instances: Sequence[str] | None, region: str | None, model: str | None, on: date | None
) -> list[Held]:
    from trueup.catalog.price_book import covers, row_model

    book = open_price_book()
    names = {book.known_instance(name) for name in instances or ()}
    wanted = row_model(model) if model is not None else None
    return [
        held
        for held in (book.rows() if on is None else book.in_force(on))
        if (not names or held.row.instance in names)
        and (region is None or covers(held.row.region, region))
        and (wanted is None or held.row.model == wanted)
    ]


def _keep(rows: Sequence[PriceRow], origin: Literal["own", "collected"], *, replaces: bool = False) -> int:
    """Add the rows that say something new to the home's price file; how many those were.

    InputError where one lies in the future or contradicts what is there: nothing is written then.
    """
    from trueup.catalog import check_new
    from trueup.schema.price_row import PriceEntry
    from trueup.store.price_file import PriceFile

    now = datetime.now(UTC)
    check_new(rows, now)
    recorded = now.isoformat(timespec="seconds").replace("+00:00", "Z")

    def new(there: list[PriceEntry]) -> list[PriceEntry]:
        known = {_but_for_when_seen(entry.row) for entry in there if entry.origin == origin}
        entries = []
        for row in rows:
            if replaces or _but_for_when_seen(row) not in known:
                entries.append(PriceEntry(row=row, origin=origin, recorded=recorded, replaces=replaces))
                known.add(_but_for_when_seen(row))  # a file may say a thing twice
        book_of([*there, *entries])
        return entries

    return len(PriceFile(find_home().for_writing().path).add(new))


def _but_for_when_seen(row: PriceRow) -> PriceRow:
    """What has ended says nothing new when it is seen again: each refresh has days of spot prices again."""
    return row if row.valid_to is None else row.model_copy(update={"as_of": row.valid_to})


def _counted(rows: Iterable[PriceRow]) -> dict[str, Any]:
    rows = list(rows)
    return {
        "rows": len(rows),
        "missing": sum(row.amount_per_hour is None for row in rows),
        "models": dict(Counter(row.model for row in rows)),
    }


def _words(rows: Sequence[PriceRow]) -> str:
    totals = _counted(rows)
    models = ", ".join(f"{count} {model.replace('_', '-')}" for model, count in totals["models"].items())
    missing = f"; {totals['missing']} with no price, and the reason" if totals["missing"] else ""
    return f"{counted(totals['rows'], 'row')}{f' ({models}{missing})' if models else ''}"
