"""Whether a server kept up with the rate at which requests came.

A server that is too slow for an open load answers fewer a second than come, and those in flight grow for as
long as the load lasts. From nothing they grow at first beside any server, so what is looked at is how many
were in flight when a request was due, in the middle third of the requests and in the last: beside a server
that falls behind they go on growing at an even pace, by two thirds from one to the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from trueup.schema import Measurement, RequestResult, RunRecord

from .bill_lines import value_of
from .load_limits import Limits, limits_of
from .load_names import load_figure, load_missing

PACE_NEEDS = 30  # requests: ten in each third
KEPT_SHARE = 0.9  # of the rate: the last answers come after the last request
GROWN_BY = 1.25
LONG_WAIT = 0.1  # of the whole answer's time, in the server's queue
THIRDS = ("in_flight_middle_third_count", "in_flight_last_third_count")


class _Pace(NamedTuple):
    """Requests and answers a second; requests in flight in the middle third of the load and in the last."""

    offered: float
    done: float
    middle: float
    last: float

    @property
    def fell_behind(self) -> bool:
        grown = self.last > max(GROWN_BY * self.middle, self.middle + 1)
        return self.done < KEPT_SHARE * self.offered or grown


def in_flight_by_third(asked: Sequence[RequestResult]) -> dict[str, Measurement]:
    """Requests in flight when one was due, mean over the middle and over the last third of the requests."""
    if len(asked) < PACE_NEEDS:
        reason = f"{len(asked)} requests; whether a server keeps up is told from {PACE_NEEDS} on"
        return {name: load_missing(name, reason, n=len(asked)) for name in THIRDS}
    due, done = sorted(one.due_s for one in asked), sorted(one.done_s for one in asked)
    held = [before - bisect_right(done, at_s) for before, at_s in enumerate(due)]
    third = len(held) // 3
    parts = (held[-2 * third : -third], held[-third:])
    how = "due before and not yet at an end, mean over the requests of the third, in order of time"
    return {
        name: load_figure(name, fsum(part) / third, "measured", how, n=third)
        for name, part in zip(THIRDS, parts, strict=True)
    }


def fell_behind(record: RunRecord) -> bool:
    """Whether it is known that the server did not keep up; that it did, or is not known, is no."""
    held = _pace(record)
    return held is not None and held.fell_behind


def pace_note(record: RunRecord) -> str | None:
    """Whether the server kept up, and what follows for its goodput. None where the load's rate is no steady
    one of its own (closed, or a ramp), or nothing is known."""
    if not _has_a_rate(record):
        return None
    pace = _pace(record)
    if pace is None:
        found = record.measurements.get(THIRDS[0])
        return f"whether the server kept up is not known: {found.reason}" if found is not None else None
    held = (
        f"{pace.middle:.3g} requests were in flight in the middle third of the load, {pace.last:.3g} in the "
        "last"
    )
    rates = f"{pace.done:.4g} answers a second of {pace.offered:.4g} requests a second"
    if pace.fell_behind:
        return f"the server did not keep up: {rates}; {held}. In a longer load latencies would grow further"
    if value_of(record, "goodput_share") != 1.0:
        return None
    return (
        f"the server kept up with this load, which says that no queue grew: {rates}; {held}. It may carry "
        "more: its goodput is a lower bound, and the instances that follow from it an upper one; a higher "
        "--rate shows where it ends" + _but(record)
    )


def _has_a_rate(record: RunRecord) -> bool:
    """One that is steady and its own, and answers at it."""
    load = record.header.recipe.get("load")
    if not isinstance(load, dict) or load.get("arrivals") not in ("poisson", "trace"):
        return False
    return all(value_of(record, f"{what}_requests_per_s") for what in ("offered", "completed"))


def _pace(record: RunRecord) -> _Pace | None:
    """None where the load has no such rate, or too few requests."""
    names = ("offered_requests_per_s", "completed_requests_per_s", *THIRDS)
    known = [value for name in names if (value := value_of(record, name)) is not None]
    return _Pace(*known) if _has_a_rate(record) and len(known) == len(names) else None


def _but(record: RunRecord) -> str:
    """What keeps a load from being an easy one: a long wait, or that no limit was stated."""
    said = ""
    queue, whole = value_of(record, "server_queue_mean_s"), value_of(record, "e2e_mean_s")
    if queue and whole and queue > LONG_WAIT * whole:
        said += f". A request waited {queue:.3g} s in its queue of {whole:.3g} s in all: the end is near"
    if limits_of(record.header) == Limits():
        said += ". No limit on latency was stated, so an answer counts however late it came"
    return said
