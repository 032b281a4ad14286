"""Whether two groups of runs took turns on one host, and what in their order makes a comparison doubtful."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

from .comparable import ComparedRun, Group

Pair = tuple[ComparedRun, ComparedRun]


def pairs_of(first: Group, second: Group) -> list[Pair]:
    """The pairs of runs that followed each other, one of each group, in the order of their start; empty where
    the groups did not take turns on one host all the way through.

    Taking turns: in the order of their start, every two runs are one of each group (A B A B, also A B B A).
    What a drift of the host does to one of a pair it then does to the other.
    """
    hosts = {run.host for run in (*first.runs, *second.runs)}
    if len(first.runs) != len(second.runs) or len(hosts) != 1 or None in hosts:
        return []
    own = {id(run) for run in first.runs}
    ordered = sorted((*first.runs, *second.runs), key=lambda run: run.started)
    pairs: list[Pair] = []
    for one, other in zip(ordered[::2], ordered[1::2], strict=True):
        if (id(one) in own) == (id(other) in own):
            return []
        pairs.append((one, other) if id(one) in own else (other, one))
    return pairs


def doubts(groups: Sequence[Group]) -> list[str]:
    """What the runs' times and hosts say against taking a difference for the groups' own."""
    first = groups[0]
    found = [
        f"{first.name} and {group.name} ran one after the other on one host, not in turns: a drift of the "
        "host looks like a difference between them"
        for group in groups[1:]
        if min(len(first.runs), len(group.runs)) > 1 and one_after_the_other(first, group)
    ]
    if crowded := _at_the_same_time([run for group in groups for run in group.runs]):
        one, other = (run.id for run in crowded)
        found.append(f"runs {one} and {other} ran at the same time on one host and took each other's time")
    return found


def one_after_the_other(first: Group, second: Group) -> bool:
    """Whether, on one host, all runs of one group began before any of the other."""
    hosts = {run.host for run in (*first.runs, *second.runs)}
    if len(hosts) != 1 or None in hosts:
        return False
    a, b = ([run.started for run in group.runs] for group in (first, second))
    return max(a) < min(b) or max(b) < min(a)


def _at_the_same_time(runs: Sequence[ComparedRun]) -> Pair | None:
    by_host: dict[str, list[ComparedRun]] = {}
    for run in runs:
        if run.host is not None and run.header.wall_s is not None:
            by_host.setdefault(run.host, []).append(run)
    for there in by_host.values():
        for one, other in pairwise(sorted(there, key=lambda run: run.started)):
            if other.started < one.started + timedelta(seconds=one.header.wall_s or 0.0):
                return one, other
    return None
