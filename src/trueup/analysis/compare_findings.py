"""One figure of a group beside the reference's: their ratio, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trueup.schema import Frozen, Kind, Measurement, unavailable

from .comparable import Group, dig
from .compare_figures import values_of
from .compare_metric import Metric
from .compare_turns import Pair
from .kinds import weakest
from .verdicts import (
    FEWEST,
    MARGIN,
    Design,
    Estimate,
    Verdict,
    interval,
    judge,
    paired,
    runs_needed,
    welch,
)

Figures = Mapping[str, Mapping[str, Measurement]]  # by group, then by measurement

Turns = Mapping[str, Sequence[Pair]]  # by the name of the group that is compared with the reference

THE_SAME, UNDECIDED, NO_VERDICT = "the same", "not enough runs", "no verdict"
GIVEN = "it was given to the runs with an interval of its own: that they repeat it says nothing more of it"
_METHODS: dict[Design, str] = {
    "paired": "between_runs: paired t on log-ratios",
    "welch": "between_runs: Welch's t on logarithms",
}


class Finding(Frozen):
    """One figure of one group against the reference's. `ratio`: this group's over the reference's. `verdict`:
    cheaper, dearer, faster, ..., the same, not enough runs, or no verdict; `more_runs`: how many more of each
    would decide, where that can be told."""

    metric: str
    group: str
    ratio: Measurement
    design: Design | None
    verdict: str
    words: str
    more_runs: int | None


class _Side(NamedTuple):
    """A group's values beside the reference's; `why` where there is no ratio."""

    ratio: float | None
    estimate: Estimate | None
    n: tuple[int, int]
    why: str = ""


def findings_of(
    metric: Metric, reference: Group, others: Sequence[Group], figures: Figures, turns: Turns
) -> list[Finding]:
    """A finding on each of the other groups, judged together (Holm). `turns`: the pairs of each with the
    reference, none where they did not take turns."""
    sides = [_side(metric, reference, group, figures, turns[group.name]) for group in others]
    known = [side.estimate for side in sides if side.estimate is not None]
    judged = iter(judge(known))
    found = []
    for group, side in zip(others, sides, strict=True):
        verdict = next(judged) if side.estimate is not None else "none"
        alike = _too_few_seeds((reference, group)) if metric.learnt else None
        if alike is not None and min(side.n) >= FEWEST:
            verdict, side = "none", side._replace(why=alike)
        kinds = {figures[one.name][metric.name].kind for one in (reference, group)}
        found.append(_finding(metric, group.name, side, verdict, kinds, looks=max(1, len(known))))
    return found


def _side(metric: Metric, reference: Group, group: Group, figures: Figures, turns: Sequence[Pair]) -> _Side:
    for one in (reference, group):
        figure = figures[one.name][metric.name]
        if figure.value is None:
            return _Side(None, None, (0, 0), f"{one.name}: {figure.reason}")
    if metric.given and any(figures[one.name][metric.name].ci is not None for one in (reference, group)):
        before, after = (figures[one.name][metric.name].value or 0.0 for one in (reference, group))
        return _Side(after / before if before > 0 else None, None, (1, 1), GIVEN)
    first, second = (values_of(metric, one.runs) for one in (reference, group))
    n = (len(first), len(second))
    a, b = [value for _, value in first], [value for _, value in second]
    if not all(0 < value < math.inf for value in (*a, *b)):
        return _Side(None, None, n, "a value of 0 has no ratio")
    value_of = {run.id: value for run, value in (*first, *second)}
    pairs = [
        (value_of[one.id], value_of[other.id])
        for one, other in turns
        if one.id in value_of and other.id in value_of
    ]
    if len(pairs) >= 2 and len(pairs) == min(n):
        estimate = paired([one for one, _ in pairs], [other for _, other in pairs])
    elif max(n) > 1:
        estimate = welch(a, b)
    else:
        return _Side(b[0] / a[0], None, n)
    return _Side(math.exp(estimate.log_ratio), estimate, n)


def _too_few_seeds(groups: Sequence[Group]) -> str | None:
    """What was learnt varies with the seed: runs of one seed are one run of it, done again."""
    for group in groups:
        seeds = {dig(run.header.recipe, "train.seed") for run in group.runs}
        if len(seeds) < FEWEST:
            return (
                f"{group.name} has {len(seeds)} seed{'' if len(seeds) == 1 else 's'}, and what is learnt "
                f"differs between seeds; runs with {FEWEST} seeds or more are needed"
            )
    return None


def _finding(
    metric: Metric, group: str, side: _Side, verdict: Verdict, kinds: set[Kind], *, looks: int
) -> Finding:
    more = None
    if side.estimate is not None and verdict in ("undecided", "none") and not side.why:
        needed = runs_needed(side.estimate, looks)
        more = None if needed is None else max(1, needed - min(side.n), FEWEST - min(side.n))
    return Finding(
        metric=metric.name,
        group=group,
        ratio=_ratio(side, kinds),
        design=side.estimate.design if side.estimate is not None else None,
        verdict=_word(metric, verdict),
        words=_words(side, verdict, more),
        more_runs=more,
    )


def _ratio(side: _Side, kinds: set[Kind]) -> Measurement:
    if side.ratio is None:
        return unavailable("1", side.why, n=min(side.n))
    kind = weakest(kinds)
    method = "ratio of geometric means over runs" if max(side.n) > 1 else "ratio of one run's to another's"
    if side.estimate is None or min(side.n) < 2:
        return Measurement(value=side.ratio, unit="1", kind=kind, method=method, n=min(side.n))
    return Measurement(
        value=side.ratio,
        unit="1",
        kind=kind,
        method=method,
        n=min(side.n),
        ci=interval(side.estimate),
        ci_method=_METHODS[side.estimate.design],
    )


def _word(metric: Metric, verdict: Verdict) -> str:
    return {
        "lower": metric.lower,
        "higher": metric.higher,
        "same": THE_SAME,
        "undecided": UNDECIDED,
        "none": NO_VERDICT,
    }[verdict]


def _words(side: _Side, verdict: Verdict, more: int | None) -> str:
    a, b = side.n
    if side.why:
        return side.why
    how = f"{a} and {b} runs" + (", in pairs" if side.estimate and side.estimate.design == "paired" else "")
    if verdict == "none":
        spread = f"; by the spread seen about {more} more of each would decide" if more is not None else ""
        return f"{how}: at least {FEWEST} of each are needed{spread}"
    if verdict == "undecided":
        if more is None:
            return (
                f"{how}: neither a difference nor sameness is shown, and no reachable number would show one"
            )
        return f"{how}: about {more} more of each would decide, if ratio and spread stay as seen"
    if verdict == "same":
        return f"{how}: shown to be within {MARGIN - 1:.0%} either way"
    return f"{how}: the interval of the ratio is clear of one"
