"""The figures of a comparison: which measurements, what is better, and one figure for a group of runs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from trueup.schema import InputError, Measurement, unavailable
from trueup.schema.counting import counted

from .comparable import ComparedRun, Group
from .compare_metric import COST, ENERGY, RATE, TIME, Metric
from .kinds import weakest
from .load_metrics import load_metrics
from .names import NAMES
from .quality_cost import SECONDS_TO_QUALITY, TOKENS_TO_QUALITY, USD_TO_QUALITY
from .verdicts import geometric_mean

ALL_IN = "usd_per_million_useful_tokens"
STEADY = "usd_per_million_useful_tokens_steady"
THROUGHPUT = "useful_tokens_per_s"
PERPLEXITY = "eval_perplexity_best"
WALL = "wall_s"

METRICS: tuple[Metric, ...] = (
    Metric(ALL_IN, "$ per million useful tokens, all in", *COST),
    Metric(STEADY, "$ per million useful tokens, steady", *COST),
    Metric(USD_TO_QUALITY, "$ to perplexity", *COST, learnt=True, every_run=True),
    Metric(SECONDS_TO_QUALITY, "time to perplexity", *TIME, learnt=True, every_run=True),
    Metric(
        TOKENS_TO_QUALITY,
        "useful tokens to perplexity",
        "lower",
        "fewer tokens",
        "more tokens",
        learnt=True,
        every_run=True,
    ),
    Metric(THROUGHPUT, "useful tokens/s", *RATE),
    Metric("useful_tokens_per_s_steady", "useful tokens/s, steady", *RATE),
    Metric("step_p50_s", "step time, p50", *TIME),
    Metric("step_p90_s", "step time, p90", *TIME),
    Metric("step_p99_s", "step time, p99", *TIME),
    Metric("step_jitter_share", "jitter of step time", "lower", "steadier", "less steady"),
    Metric(WALL, "wall clock", *TIME),
    Metric("energy_j", "energy", *ENERGY),
    Metric("energy_per_useful_token_j", "energy per useful token", *ENERGY),
    Metric(PERPLEXITY, "held-out perplexity, best", "lower", "better", "worse", learnt=True),
    Metric("eval_perplexity_last", "held-out perplexity, last", "lower", "better", "worse", learnt=True),
)
NEEDED = (*(metric.name for metric in METRICS), "others_cpu_share_steady", "others_cpu_share")

NOT_JUDGED = (
    "it was given no figures of a quality gate; an original has none: what is quantised is judged against it"
)
_SCORE = re.compile(r"(^|_)(score|accuracy|acc|exact_match|f1)(_|$)")
_RATES = (THROUGHPUT, "useful_tokens_per_s_steady")


def metrics_of(runs: Iterable[ComparedRun]) -> list[Metric]:
    """The rows: those of METRICS that any run has a measurement for, then task scores under any name; of load
    runs, those of `load_metrics`."""
    runs = list(runs)
    names = dict.fromkeys(name for run in runs for name in run.measurements)
    if any(run.header.kind == "load" for run in runs):
        return load_metrics(names)
    rows = [metric for metric in METRICS if metric.name in names]
    scores = [name for name in names if name not in NAMES and _SCORE.search(name)]
    return rows + [
        Metric(name, name.replace("_", " "), "higher", "worse", "better", learnt=True) for name in scores
    ]


def values_of(metric: Metric, runs: Sequence[ComparedRun]) -> list[tuple[ComparedRun, float]]:
    """The runs that have a value, with it. InputError for a throughput of zero, which no finished run has."""
    found = []
    for run in runs:
        one = run.measurements.get(metric.name)
        if one is None or one.value is None:
            continue
        if one.value <= 0 and metric.name in _RATES:
            raise InputError(
                f"run {run.id} ({run.header.name}) has a throughput of {one.value:g} {one.unit} "
                f"({metric.name}): it cannot be compared; leave it out, or look at it with "
                f"`trueup runs show {run.id}`"
            )
        found.append((run, one.value))
    return found


def require_one_unit(metric: Metric, groups: Sequence[Group]) -> None:
    """InputError where runs give a figure in several units: dollars and euros, say."""
    units: dict[str, str] = {}
    for group in groups:
        for run in group.runs:
            one = run.measurements.get(metric.name)
            if one is not None and one.value is not None:
                units.setdefault(one.unit, run.id)
    if len(units) > 1:
        told = ", ".join(f"{unit} in run {run}" for unit, run in units.items())
        what = "currencies" if metric.lower == "cheaper" else "units"
        raise InputError(
            f"mixed {what}: {metric.name} is {told}; convert them first, or leave one side out: "
            "a ratio of the two says nothing"
        )


def group_figure(metric: Metric, runs: Sequence[ComparedRun]) -> Measurement:
    """One figure for the runs: their geometric mean with its interval between runs; of one run its own."""
    held = values_of(metric, runs)
    told = [run.measurements[metric.name] for run in runs if metric.name in run.measurements]
    unit = told[0].unit if told else NAMES[metric.name].unit if metric.name in NAMES else "1"
    if not held or (metric.every_run and len(held) < len(runs)):
        return unavailable(unit, _why_none(metric, runs), n=len(held))
    given = [run.measurements[metric.name] for run, _ in held]
    if len(held) == 1 or (metric.given and all(one == given[0] for one in given)):
        return given[0]
    values = [value for _, value in held]
    if set(values) == {0.0}:
        method = f"0 in each of {counted(len(held), 'run')}"
        return Measurement(value=0.0, unit=unit, kind=weakest({one.kind for one in given}), method=method)
    if not all(0 < value < math.inf for value in values):
        return unavailable(unit, "a run has 0 or less of it, and of that there is no ratio", n=len(held))
    mean = geometric_mean(values)
    return Measurement(
        value=mean.value,
        unit=unit,
        kind=weakest({one.kind for one in given}),
        method=f"geometric mean of {len(held)} runs"
        + (f"; {len(runs) - len(held)} have no figure" if len(held) < len(runs) else ""),
        scope=told[0].scope,
        n=len(held),
        **_interval(metric, mean.ci),
    )


def _interval(metric: Metric, ci: tuple[float, float] | None) -> dict[str, Any]:
    """Of a share without what is above 1: the share itself is below, so that nothing of the 95% is lost."""
    if ci is None:
        return {}
    how = "between_runs: Student's t on logarithms"
    if metric.share and ci[1] > 1.0:
        return {"ci": (min(ci[0], 1.0), 1.0), "ci_method": f"{how}, cut at 1, above which no share is"}
    return {"ci": ci, "ci_method": how}


def _why_none(metric: Metric, runs: Sequence[ComparedRun]) -> str:
    reasons = Counter(
        one.reason or "no reason was recorded"
        for run in runs
        if (one := run.measurements.get(metric.name)) is not None and one.value is None
    )
    if not reasons:
        return NOT_JUDGED if metric.name.startswith("quality_") else "no run recorded it"
    reason, count = reasons.most_common(1)[0]
    return reason if count == len(runs) else f"{reason} ({count} of {counted(len(runs), 'run')})"
