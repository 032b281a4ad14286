"""Stretches of a run in which a sensor that had been read gave nothing, from the events that say so."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from trueup.schema import Event
from trueup.schema.run import SENSOR_BACK, SENSOR_LOST, SENSOR_SILENT

RESUME = "resume"  # the event of a process that goes on: it asks every sensor anew


def silences(events: Sequence[Event], end_s: float) -> dict[str, list[tuple[float, float]]]:
    """(from, to) of each sensor's, in seconds of the run; one that never came back lasts until `end_s`."""
    found: dict[str, list[tuple[float, float]]] = {}
    since_s: dict[str, float] = {}
    for event in sorted(events, key=lambda event: event.at_s):
        name = str(event.data.get("sensor", ""))
        if event.kind in (SENSOR_SILENT, SENSOR_LOST):
            since_s.setdefault(name, float(event.data.get("since_s", event.at_s)))
        elif event.kind == SENSOR_BACK and name in since_s:
            found.setdefault(name, []).append((since_s.pop(name), event.at_s))
        elif event.kind == RESUME:
            for one, start_s in since_s.items():
                found.setdefault(one, []).append((start_s, event.at_s))
            since_s.clear()
    for one, start_s in since_s.items():
        found.setdefault(one, []).append((start_s, max(start_s, end_s)))
    return found


def in_words(events: Sequence[Event], end_s: float) -> list[str]:
    """A sentence for each sensor that fell silent."""
    said = []
    for name, gaps in silences(events, end_s).items():
        total_s = fsum(to_s - from_s for from_s, to_s in gaps)
        often = f"{len(gaps)} times, first" if len(gaps) > 1 else "once,"
        until = "to the end" if gaps[-1][1] >= end_s else f"to {gaps[-1][1]:,.0f} s"
        first = f"from {gaps[0][0]:,.0f} s" + ("" if len(gaps) > 1 else f" {until}")
        said.append(
            f"{name} fell silent {often} {first}: it was not read for {total_s:,.0f} s of the run, and what "
            "is said of it is of the rest"
        )
    return said
