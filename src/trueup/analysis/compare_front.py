"""Which groups of a comparison no other group beats on cost, quality and time at once."""

from __future__ import annotations

from collections.abc import Mapping

from trueup.schema import Frozen, Measurement

from .compare_figures import ALL_IN, PERPLEXITY, WALL

AXES = (ALL_IN, PERPLEXITY, WALL)  # of each the lower the better


class Point(Frozen):
    """Where a group lies. `behind`: the groups that are nowhere worse and somewhere better, if any."""

    group: str
    usd_per_million_useful_tokens: float
    perplexity: float
    wall_s: float
    behind: tuple[str, ...] = ()


def front_of(figures: Mapping[str, Mapping[str, Measurement]]) -> list[Point]:
    """The groups that have all three figures, by their means, each with those that beat it (Pareto)."""
    places = {
        group: tuple(float(value) for axis in AXES if (value := _value(own, axis)) is not None)
        for group, own in figures.items()
    }
    whole = {group: place for group, place in places.items() if len(place) == len(AXES)}
    return [
        Point(
            group=group,
            usd_per_million_useful_tokens=place[0],
            perplexity=place[1],
            wall_s=place[2],
            behind=tuple(other for other, theirs in whole.items() if _beats(theirs, place)),
        )
        for group, place in whole.items()
    ]


def front_words(points: list[Point], groups: list[str]) -> str:
    """In one line who is on the front, who is behind whom, and who has no place."""
    missing = [group for group in groups if group not in {point.group for point in points}]
    without = f"; without a place for want of a figure: {', '.join(missing)}" if missing else ""
    if not points:
        return "no Pareto front: no group has cost, perplexity and time all three"
    front = [point.group for point in points if not point.behind]
    behind = [f"{point.group} (behind {', '.join(point.behind)})" for point in points if point.behind]
    rest = f"; behind it: {'; '.join(behind)}" if behind else ""
    return f"on the Pareto front of cost, quality and time, by the means: {', '.join(front)}{rest}{without}"


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _value(figures: Mapping[str, Measurement], name: str) -> float | None:
    found = figures.get(name)
    return found.value if found is not None else None
