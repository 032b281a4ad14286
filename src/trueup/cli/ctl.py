"""`trueup ctl RUN pause|resume|checkpoint|stop`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import typer

from trueup.home import find_home
from trueup.schema import InputError, StorageError
from trueup.schema.choices import Order

from .output import JSON_OPTION, print_json, say
from .records import RUN_ARGUMENT, open_store

WHAT_FOLLOWS: dict[Order, str] = {
    "pause": "after its current step it saves, and waits until it is told to resume or stop",
    "resume": "it goes on, if it is paused",
    "checkpoint": "it saves after its current step",
    "stop": "it ends after its current step, saved",
}
# An order that is not taken yet and that the new one overrules.
OVERRULED: dict[Order, tuple[Order, ...]] = {
    "pause": ("resume",),
    "resume": ("pause",),
    "stop": ("pause", "resume"),
}


def ctl(
    run: str = RUN_ARGUMENT,
    order: Order = typer.Argument(
        help="`pause`, `resume`, `checkpoint` or `stop`.", metavar="pause|resume|checkpoint|stop"
    ),
    why: str = typer.Option("", "--why", help="The reason; kept with the run's events."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Tell a run that is going on, on this machine or on one that shares its folder, what to do. It takes the
    order after its current step."""
    with open_store() as store:
        run_id = store.resolve(run)
        header = store.record(run_id).header
    if header.state != "running":
        raise InputError(f"run {run_id} ({header.name}) is not running: it is {header.state}")
    file = _put(find_home().runs / run_id, order, why)
    if as_json:
        print_json({"run": run_id, "order": order, "file": str(file)})
    else:
        say(f"told run {run_id} ({header.name}) to {order}: {WHAT_FOLLOWS[order]}")


def _put(folder: Path, order: Order, why: str) -> Path:
    from trueup.files.whole import replace_text
    from trueup.schema.run import CONTROL_FOLDER

    if not folder.is_dir():
        raise InputError(f"the run's folder {folder} is not there, so the run cannot be told anything")
    control = folder / CONTROL_FOLDER
    try:
        control.mkdir(exist_ok=True)
        for word in OVERRULED.get(order, ()):
            with contextlib.suppress(FileNotFoundError):
                (control / word).unlink()
        replace_text(control / order, why)
    except OSError as error:
        raise StorageError(f"{control} cannot be written: {error.strerror or error}") from None
    return control / order
