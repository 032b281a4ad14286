"""`trueup runs list|show|export|import`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from trueup.home import find_home
from trueup.schema import InputError
from trueup.schema.counting import counted

from .garbage import uncollected
from .output import JSON_OPTION, print_json, print_json_list, print_rich, say
from .records import RUN_ARGUMENT, open_store, record_of, records_of, resolved

if TYPE_CHECKING:
    from trueup.schema import Frozen, RunRecord
    from trueup.store.table_export import TableFormat, What

app = typer.Typer(help="List and show recorded runs; carry them between machines.", no_args_is_help=True)


SHOWN = 100  # runs in a table: one of thousands takes longer to draw than anybody reads


@app.command("list")
@uncollected()
def list_runs(
    selections: list[str] = typer.Argument(
        None,
        help="Only these: an id, a name, a pattern ('demo-*'), conditions ('platform=cpu,tune.rank=16').",
        metavar="RUNS...",
    ),
    limit: int | None = typer.Option(
        None, "--limit", min=1, help="So many of the newest; default 100 in a table, all with --json."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """List the runs of this home, newest first."""
    newest = limit or (None if as_json else SHOWN)
    with open_store() as store:
        among = {run for text in selections for run in store.meant_by(text)} if selections else None
        summaries = store.runs(among=among, newest=newest and newest + 1)
    more, summaries = newest is not None and len(summaries) > newest, summaries[:newest]
    if as_json:
        print_json_list(summaries)
    elif not summaries:
        say("no runs yet; `trueup train recipes/demo.yaml` makes one")
    else:
        from trueup.report.runs_table import runs_table

        print_rich(runs_table(summaries))
        if more:
            say(f"these are the newest {newest}; --limit shows more")


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
    force: bool = typer.Option(False, "-f", "--force", help="Replace the file if it is there already."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Write one run as a zip that another trueup can import, or any number as one table."""
    if form == "zip":
        document = _export_zip(refs or [], out, what, force=force)
    else:
        document = _export_table(refs, out, what, form, force=force)
    if as_json:
        print_json(document)
    else:
        rows = "" if form == "zip" else f": {counted(document['rows'], 'row')}, {document['what']}"
        say(f"wrote {document['path']}{rows}")


def _export_zip(refs: list[str], out: Path | None, what: str | None, *, force: bool) -> dict[str, Any]:
    from trueup.store import bundle

    if what is not None:
        raise InputError("--what chooses the rows of a table; give --format csv, parquet or json with it")
    if len(refs) != 1:
        raise InputError(f"a zip holds one run, not {len(refs)}; name one, or give --format csv for a table")
    with open_store() as store:
        run_id = resolved(store, refs[0])
    target = out or Path(f"{run_id}.zip")
    _require_new(target, force=force)
    path = bundle.export_run(find_home().path, run_id, target)
    return {"run": run_id, "path": str(path), "bytes": path.stat().st_size}


def _export_table(
    refs: list[str] | None, out: Path | None, what: What | None, form: TableFormat, *, force: bool
) -> dict[str, Any]:
    from trueup.store import table_export

    what = what or "measurements"
    path = out or Path(f"{what}.{form}")
    _require_new(path, force=force)
    with open_store() as store:
        ids = list(dict.fromkeys(resolved(store, ref) for ref in refs or ()))
        summaries = {summary.id: summary for summary in store.runs()}
        ids = ids or list(summaries)
        rows: Iterable[Frozen] = (summaries[run_id] for run_id in ids)
        if what != "runs":
            of_record = {"measurements": table_export.measurement_rows, "steps": table_export.step_rows}[what]
            rows = (row for run_id in ids for row in of_record(record_of(store, run_id)))
        count = table_export.export_table(rows, what, form, path, home=store.home)
    size = path.stat().st_size
    return {"runs": ids, "what": what, "format": form, "rows": count, "path": str(path), "bytes": size}


def _require_new(path: Path, *, force: bool) -> None:
    if not force and not path.is_dir() and (path.exists() or path.is_symlink()):
        raise InputError(f"{path}: exists; name a new file with -o, or give --force to replace this one")


@app.command("import")
def import_run(
    path: Path = typer.Argument(
        help="A zip that `trueup runs export` wrote, or a folder of them.", metavar="FILE"
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Check a run from another machine and add it to this home; of a folder, the run of every zip in it."""
    from trueup.store import bundle

    home = find_home().for_writing()
    done: list[bundle.ImportedRun] = []
    problems: list[str] = []
    for file in bundle.bundles_in(path) if path.is_dir() else [path]:
        try:
            done.append(bundle.import_run(home.path, file))
        except InputError as error:
            problems.append(f"{file.name}: {error}" if path.is_dir() else str(error))
    if not done:
        raise InputError("\n".join(problems))
    if as_json:
        documents = [{"run": one.run_id, "already_here": one.already_here} for one in done]
        print_json(documents if path.is_dir() else documents[0])
    else:
        for one in done:
            say(f"run {one.run_id} {'is already here, identical' if one.already_here else 'imported'}")
    if problems:
        raise InputError("\n".join(problems))


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
