"""Which one run is meant by an id, `last`, a name or a unique prefix of an id; and the order of runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from pathlib import Path

from trueup.schema import InputError

from .database import marks, one_of
from .liveness import parse_instant

LAST_LETTER = "\U0010ffff"  # after every other
_LISTED = 10  # of several that may be meant
_WORKED = """SELECT id FROM runs WHERE name = ? AND (
    EXISTS (SELECT 1 FROM steps WHERE run_id = id)
    OR EXISTS (
        SELECT 1 FROM measurements WHERE name = 'completed_requests_count' AND run_id = id AND value > 0
    ))"""


def one_meant(connection: sqlite3.Connection, ref: str, home: Path) -> str:
    """The run's id. A name that several runs have means the one of them that trained, or, of loads, the one
    that was answered, where only one was. InputError if there is none, or more than one."""
    if connection.execute("SELECT 1 FROM runs WHERE id = ?", [ref]).fetchone():
        return ref
    if ref == "last" and (began := began_at(connection)):
        return max(began, key=began.__getitem__)
    named = _ids(connection, "SELECT id FROM runs WHERE name = ?", ref)
    if len(named) > 1:
        worked = _ids(connection, _WORKED, ref)
        named = worked if len(worked) == 1 else named
    found = named or _begun_with(connection, ref)
    if len(found) == 1:
        return found[0]
    if found:
        what = "are named" if named else "have an id that begins with"
        listed = _listed(connection, found)
        raise InputError(f"{len(found)} runs {what} '{ref}': {listed}; give the id of one")
    raise InputError(_none(connection, ref, home))


def began_at(
    connection: sqlite3.Connection, ids: Collection[str] | None = None
) -> dict[str, tuple[float, str]]:
    """What puts runs in order, the oldest first: of all of them, or of these and maybe others."""
    among, given = one_of("id", ids)
    found = connection.execute(f"SELECT id, started_at FROM runs WHERE {among}", given)
    return {run_id: (_seconds(started_at), run_id) for run_id, started_at in found}


def _seconds(started_at: str) -> float:
    started = parse_instant(started_at)
    return started.timestamp() if started else 0.0


def _begun_with(connection: sqlite3.Connection, ref: str) -> list[str]:
    if not ref:
        return []
    return _ids(connection, "SELECT id FROM runs WHERE id >= ? AND id < ?", ref, ref + LAST_LETTER)


def _ids(connection: sqlite3.Connection, query: str, *given: str) -> list[str]:
    return [run_id for (run_id,) in connection.execute(query, given)]


def _listed(connection: sqlite3.Connection, ids: list[str]) -> str:
    """Some of the runs, the newest first."""
    newest = sorted(ids, key=began_at(connection, ids).__getitem__, reverse=True)[:_LISTED]
    query = f"SELECT id, name, started_at FROM runs WHERE id IN ({marks(newest)})"
    said = {row[0]: f"{row[0]} ({row[1]}, {row[2]})" for row in connection.execute(query, newest)}
    more = f" and {len(ids) - len(newest)} more" if len(ids) > len(newest) else ""
    return ", ".join(said[run_id] for run_id in newest) + more


def _none(connection: sqlite3.Connection, ref: str, home: Path) -> str:
    known = {text for row in connection.execute("SELECT id, name FROM runs") for text in row}
    if not known:
        return f"there are no runs yet in {home}; `trueup train RECIPE` makes one"
    import difflib  # only a mistyped reference needs it

    near = difflib.get_close_matches(ref, known)
    meant = f"did you mean {' or '.join(near)}?" if near else "`trueup runs list` shows all"
    return f"there is no run '{ref}'; {meant}"
