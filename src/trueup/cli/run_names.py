"""What a new run is called: an id of its own, and a name that no other run has."""

from __future__ import annotations

import secrets

from trueup.home import Home

from .output import say

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
            runs = store.runs()
        # a run that ended before its first step, by a mistake in the recipe say, does not keep its name
        taken = {
            run.name: run.id
            for run in runs
            if run.useful_tokens or run.output_tokens or run.state in ("running", "finished")
        }
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
