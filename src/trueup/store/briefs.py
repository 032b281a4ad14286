"""Many runs at once, of each only what a comparison reads: header, some measurements, evaluations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.engine import Connection

from trueup.schema import Evaluation, Measurement, RunHeader, RunRecord

from . import tables
from .rows import header_of, headers_of, measurement_of, record_of

AT_ONCE = 500  # ids in one query: SQLite takes a limited number of parameters


def figures_of(
    connection: Connection, ids: Sequence[str], names: Collection[str]
) -> dict[str, dict[str, float | None]]:
    """Values of the measurements called one of `names`, by run and name."""
    m = tables.measurements.c
    query = select(m.name, m.run_id, m.value).where(m.name.in_(names))
    if len(ids) <= AT_ONCE:
        query = query.where(m.run_id.in_(ids))
    found: dict[str, dict[str, float | None]] = {}
    for name, run_id, value in connection.execute(query):
        found.setdefault(run_id, {})[name] = value
    return found


class Brief(NamedTuple):
    """A run without steps, spans, events and samples. `tokens_after`: useful tokens trained by the end of
    each step that was evaluated."""

    record: RunRecord
    tokens_after: dict[int, int]


def briefs(
    connection: Connection, ids: Sequence[str], names: Collection[str], known: Collection[str]
) -> list[Brief]:
    """The runs in the order of `ids`, each with its measurements called one of `names`, or anything that is
    not `known`."""
    headers: dict[str, RunHeader] = {}
    measurements: dict[str, dict[str, Measurement]] = {run_id: {} for run_id in ids}
    evaluations: dict[str, list[Evaluation]] = {run_id: [] for run_id in ids}
    tokens: dict[str, dict[int, int]] = {run_id: {} for run_id in ids}
    m, e = tables.measurements.c, tables.evaluations.c
    wanted = or_(m.name.in_(names), m.name.not_in(known))
    for some in _parts(ids):
        for run_id, rest, recipe in connection.execute(headers_of(some)):
            headers[run_id] = header_of(rest, recipe)
        told = select(tables.measurements).where(and_(m.run_id.in_(some), wanted)).order_by(m.run_id, m.seq)
        for row in connection.execute(told).mappings():
            measurements[row["run_id"]][row["name"]] = measurement_of(row)
        held = select(tables.evaluations).where(e.run_id.in_(some)).order_by(e.run_id, e.seq)
        for row in connection.execute(held).mappings():
            evaluations[row["run_id"]].append(record_of(Evaluation, tables.evaluations, row))
        for run_id, step, total in connection.execute(_tokens_after(some)):
            tokens[run_id][step] = total
    return [
        Brief(
            RunRecord(
                header=headers[run_id],
                measurements=measurements[run_id],
                evaluations=tuple(evaluations[run_id]),
            ),
            _from_zero(tokens[run_id], evaluations[run_id]),
        )
        for run_id in ids
    ]


def _tokens_after(ids: Sequence[str]) -> Any:
    """(run, evaluated step, useful tokens up to its end). Of a step done again the last time counts."""
    s, e = tables.steps.c, tables.evaluations.c
    last = (
        select(s.run_id, s.step, func.max(s.seq).label("seq"))
        .where(s.run_id.in_(ids))
        .group_by(s.run_id, s.step)
        .subquery()
    )
    useful = case((s.skipped, 0), else_=s.useful_tokens)
    total = func.sum(useful).over(partition_by=s.run_id, order_by=s.step)
    totals = (
        select(s.run_id, s.step, total.label("total"))
        .join(last, and_(last.c.run_id == s.run_id, last.c.seq == s.seq))
        .subquery()
    )
    return (
        select(totals.c.run_id, totals.c.step, totals.c.total)
        .join(tables.evaluations, and_(e.run_id == totals.c.run_id, e.step == totals.c.step))
        .distinct()
    )


def _from_zero(tokens: dict[int, int], evaluations: Sequence[Evaluation]) -> dict[int, int]:
    """Before the first step nothing is trained."""
    return ({0: 0} if any(one.step == 0 for one in evaluations) else {}) | tokens


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]
