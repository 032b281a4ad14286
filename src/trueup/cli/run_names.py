"""What a new run is called: an id of its own, and a name that no other run has."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.home import Home, find_home

from .output import say

if TYPE_CHECKING:
    from trueup.store import RunSummary

RUN_ID_BYTES = 4


def new_id(home: Home) -> str:
    """An id that no run of this home has."""
    while (home.runs / (run_id := secrets.token_hex(RUN_ID_BYTES))).exists():
        pass
    return run_id


def new_name(asked: str | None, default: str) -> str:
    """The asked-for name if it is free; the recipe's, numbered where it is taken."""
    from trueup.schema import InputError, StorageError

    taken: dict[str, str] = {}
    try:
        from .records import open_store

        with open_store() as store:
            runs, folders = store.runs(), find_home().runs
        # of the names that may be given: whether a run keeps its own can take reading its folder
        alike = (run for run in runs if run.name == asked or run.name.startswith(default))
        taken = {run.name: run.id for run in alike if _keeps_its_name(run, folders / run.id)}
    except StorageError as error:  # a run is worth more than its place in the database
        say(f"note: {error} This run is recorded in its folder and taken in later.")
    for name in filter(None, (asked, default)):
        if not name.isprintable() or name == "last":
            raise InputError(f"the name {name!r}: give printable characters on one line, and not 'last'")
    if asked is not None:
        if not asked.strip():
            raise InputError("--name: the name is empty; leave --name out to take the recipe's")
        if asked in taken:
            raise InputError(
                f"--name {asked}: run {taken[asked]} has this name; choose another, for a repetition "
                f"one such as {asked}-2: the pattern '{asked}*' means both"
            )
        return asked
    name, number = default, 2
    while name in taken:
        name, number = f"{default}-{number}", number + 1
    return name


def _keeps_its_name(run: RunSummary, folder: Path) -> bool:
    """A run that ended before its first step or answer, by a mistake in the recipe say, does not."""
    if run.useful_tokens or run.output_tokens or run.state in ("running", "finished"):
        return True
    from trueup.schema.run import MEASUREMENTS_FILE
    from trueup.store import read_run_folder

    if (folder / MEASUREMENTS_FILE).exists():
        return False
    # killed before it summed itself up: what it had done by then is in its folder
    done = read_run_folder(folder, samples=False)
    return bool(done.steps) or any(not one.warm_up and one.error is None for one in done.requests)
