"""Many runs at once, of each only what a comparison reads: header, some measurements, evaluations."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from trueup.schema import Evaluation, Measurement, RunHeader, RunRecord

from .database import AT_ONCE, marks, one_of
from .rows import header_of, measurement_of, record_of

_HEADERS = (
    "SELECT h.run_id, h.header, r.recipe FROM headers h JOIN recipes r ON r.run_id = h.run_id "
    "WHERE h.run_id IN ({ids})"
)
# (run, evaluated step, useful tokens up to its end). Of a step done again the last time counts.
_TOKENS_AFTER = """
    WITH last AS (
        SELECT run_id, step, max(seq) AS seq FROM steps WHERE run_id IN ({ids}) GROUP BY run_id, step
    ), totals AS (
        SELECT s.run_id, s.step,
            sum(CASE WHEN s.skipped THEN 0 ELSE s.useful_tokens END)
                OVER (PARTITION BY s.run_id ORDER BY s.step) AS total
        FROM steps s JOIN last ON last.run_id = s.run_id AND last.seq = s.seq
    )
    SELECT DISTINCT t.run_id, t.step, t.total
    FROM totals t JOIN evaluations e ON e.run_id = t.run_id AND e.step = t.step
"""


def headers(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, RunHeader]:
    """Those of the runs that are known."""
    found = connection.execute(_HEADERS.format(ids=marks(ids)), ids)
    return {run_id: header_of(rest, recipe) for run_id, rest, recipe in found}


def figures_of(
    connection: sqlite3.Connection, ids: Sequence[str], names: Collection[str]
) -> dict[str, dict[str, float | None]]:
    """Values of the measurements called one of `names`, by name and run; maybe of others than these runs."""
    among, given = one_of("run_id", ids)
    query = f"SELECT run_id, value FROM measurements WHERE name = ? AND {among}"
    return {name: dict(connection.execute(query, [name, *given])) for name in names}


class Brief(NamedTuple):
    """A run without steps, spans, events and samples. `tokens_after`: useful tokens trained by the end of
    each step that was evaluated."""

    record: RunRecord
    tokens_after: dict[int, int]


def briefs(
    connection: sqlite3.Connection, ids: Sequence[str], names: Collection[str], known: Collection[str]
) -> list[Brief]:
    """The runs in the order of `ids`, each with its measurements called one of `names`, or anything that is
    not `known`."""
    found: dict[str, RunHeader] = {}
    measurements: dict[str, dict[str, Measurement]] = {run_id: {} for run_id in ids}
    evaluations: dict[str, list[Evaluation]] = {run_id: [] for run_id in ids}
    tokens: dict[str, dict[int, int]] = {run_id: {} for run_id in ids}
    told = (
        f"SELECT * FROM measurements WHERE run_id IN ({{ids}}) "
        f"AND (name IN ({marks(names)}) OR name NOT IN ({marks(known)})) ORDER BY run_id, seq"
    )
    held = "SELECT * FROM evaluations WHERE run_id IN ({ids}) ORDER BY run_id, seq"
    for some in _parts(ids):
        found |= headers(connection, some)
        for row in connection.execute(told.format(ids=marks(some)), [*some, *names, *known]):
            measurements[row["run_id"]][row["name"]] = measurement_of(row)
        for row in connection.execute(held.format(ids=marks(some)), some):
            evaluations[row["run_id"]].append(record_of(Evaluation, row))
        for run_id, step, total in connection.execute(_TOKENS_AFTER.format(ids=marks(some)), some):
            tokens[run_id][step] = total
    return [
        Brief(
            RunRecord(
                header=found[run_id],
                measurements=measurements[run_id],
                evaluations=tuple(evaluations[run_id]),
            ),
            _from_zero(tokens[run_id], evaluations[run_id]),
        )
        for run_id in ids
    ]


def _from_zero(tokens: dict[int, int], evaluations: Sequence[Evaluation]) -> dict[int, int]:
    """Before the first step nothing is trained."""
    return ({0: 0} if any(one.step == 0 for one in evaluations) else {}) | tokens


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]
