"""`trueup runs list|show|export|import`."""

from __future__ import annotations

from pathlib import Path

import typer

from trueup.home import find_home
from trueup.schema import RunRecord

from .output import JSON_OPTION, print_json, print_rich, say
from .records import RUN_ARGUMENT, open_store, records_of

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
    ref: str = RUN_ARGUMENT,
    out: Path | None = typer.Option(None, "-o", "--output", help="The zip to write; default RUN.zip."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Write one run as a zip of JSON and Parquet that another trueup can import."""
    from trueup.store import bundle

    with open_store() as store:
        run_id = store.resolve(ref)
    path = bundle.export_run(find_home().path, run_id, out or Path(f"{run_id}.zip"))
    if as_json:
        print_json({"run": run_id, "path": str(path), "bytes": path.stat().st_size})
    else:
        say(f"wrote {path}")


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
    header = record.header.model_dump(mode="json")
    return {
        **header,
        "measurements": {name: one.model_dump(mode="json") for name, one in record.measurements.items()},
        "spans": [span.model_dump(mode="json") for span in record.spans],
        "events": [event.model_dump(mode="json") for event in record.events],
        "evaluations": [one.model_dump(mode="json") for one in record.evaluations],
    }
