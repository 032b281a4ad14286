"""`trueup runs list|show|export|import`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from trueup.home import find_home
from trueup.schema import Frozen, InputError, RunRecord

from .output import JSON_OPTION, print_json, print_rich, say
from .records import RUN_ARGUMENT, open_store, record_of, records_of

if TYPE_CHECKING:
    from trueup.store.table_export import TableFormat, What

app = typer.Typer(help="List and show recorded runs; carry them between machines.", no_args_is_help=True)


@app.command("list")
def list_runs(as_json: bool = JSON_OPTION) -> None:
    """List every run of this home, newest first."""
    with open_store() as store:
        summaries = store.runs()
    if as_json:
        print_json([summary.model_dump(mode="json") for summary in summaries])
    elif not summaries:
        say("no runs yet; `trueup train recipes/demo.yaml` makes one")
    else:
        from trueup.report.terminal import runs_table

        print_rich(runs_table(summaries))


@app.command()
def show(ref: str = RUN_ARGUMENT, as_json: bool = JSON_OPTION) -> None:
    """Show one run: its measurements, spans, events and surroundings."""
    (record,) = records_of([ref])
    if as_json:
        print_json(run_document(record))
    else:
        from trueup.report.terminal import run_text

        print_rich(run_text(record))


@app.command("export")
def export_run(
    refs: list[str] = typer.Argument(
        None,
        help="Runs: ids, unique prefixes, names, or `last`; of a table all runs if none is given.",
        metavar="RUN...",
    ),
    out: Path | None = typer.Option(
        None, "-o", "--output", help="The file to write; default RUN.zip, or WHAT.FORMAT of a table."
    ),
    form: Literal["zip", "csv", "parquet", "json"] = typer.Option(
        "zip", "--format", help="A whole run for another trueup, or a table for other programs."
    ),
    what: Literal["runs", "measurements", "steps"] | None = typer.Option(
        None, "--what", help="What a table has a row for; default measurements."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Write one run as a zip that another trueup can import, or any number as one table."""
    document = _export_zip(refs or [], out, what) if form == "zip" else _export_table(refs, out, what, form)
    if as_json:
        print_json(document)
    else:
        rows = "" if form == "zip" else f": {document['rows']} rows, {document['what']}"
        say(f"wrote {document['path']}{rows}")


def _export_zip(refs: list[str], out: Path | None, what: str | None) -> dict[str, object]:
    from trueup.store import bundle

    if what is not None:
        raise InputError("--what chooses the rows of a table; give --format csv, parquet or json with it")
    if len(refs) != 1:
        raise InputError(f"a zip holds one run, not {len(refs)}; name one, or give --format csv for a table")
    with open_store() as store:
        run_id = store.resolve(refs[0])
    path = bundle.export_run(find_home().path, run_id, out or Path(f"{run_id}.zip"))
    return {"run": run_id, "path": str(path), "bytes": path.stat().st_size}


def _export_table(
    refs: list[str] | None, out: Path | None, what: What | None, form: TableFormat
) -> dict[str, object]:
    from trueup.store import table_export

    what = what or "measurements"
    path = out or Path(f"{what}.{form}")
    with open_store() as store:
        ids = list(dict.fromkeys(store.resolve(ref) for ref in refs or ()))
        summaries = {summary.id: summary for summary in store.runs()}
        ids = ids or list(summaries)
        rows: Iterable[Frozen] = (summaries[run_id] for run_id in ids)
        if what != "runs":
            of_record = {"measurements": table_export.measurement_rows, "steps": table_export.step_rows}[what]
            rows = (row for run_id in ids for row in of_record(record_of(store, run_id)))
        count = table_export.export_table(rows, what, form, path, home=store.home)
    size = path.stat().st_size
    return {"runs": ids, "what": what, "format": form, "rows": count, "path": str(path), "bytes": size}


@app.command("import")
def import_run(
    path: Path = typer.Argument(help="A zip that `trueup runs export` wrote.", metavar="FILE"),
    as_json: bool = JSON_OPTION,
) -> None:
    """Check a run from another machine and add it to this home."""
    from trueup.store import bundle

    home = find_home().for_writing()
    imported = bundle.import_run(home.path, path)
    if as_json:
        print_json({"run": imported.run_id, "already_here": imported.already_here})
    else:
        say(f"run {imported.run_id} {'is already here, identical' if imported.already_here else 'imported'}")


def run_document(record: RunRecord) -> dict[str, object]:
    """What `runs show --json` and `train --json` print; documented in docs/json.md."""
    return {
        **_plain(record.header),
        "measurements": {name: _plain(one) for name, one in record.measurements.items()},
        "spans": [_plain(span) for span in record.spans],
        "events": [_plain(event) for event in record.events],
        "evaluations": [_plain(one) for one in record.evaluations],
    }


def _plain(record: Frozen) -> dict[str, object]:
    """As JSON has it: a loss that is not a number is the string "NaN", which `model_dump` does not write."""
    fields: dict[str, object] = json.loads(record.model_dump_json())
    return fields
