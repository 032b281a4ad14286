"""What it cost to reach a given quality: dollars, seconds and useful tokens to a held-out perplexity.

A curve's points are the evaluations of a run, in the order of its clock; between two of them the loss, the
logarithm of perplexity, is taken to fall evenly with time and with tokens. What was paid by then is the whole
wall clock up to that instant, start and evaluations included, as in the all-in cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from trueup.schema import Evaluation, InputError, Measurement, Price, unavailable

from .comparable import ComparedRun, Group

USD_TO_QUALITY, SECONDS_TO_QUALITY, TOKENS_TO_QUALITY = "usd_to_quality", "s_to_quality", "tokens_to_quality"
_UNITS = {USD_TO_QUALITY: "USD", SECONDS_TO_QUALITY: "s", TOKENS_TO_QUALITY: "tokens"}


class Reached(NamedTuple):
    """When a perplexity was reached: seconds since the run began, useful tokens trained (None: not known)."""

    seconds: float
    tokens: float | None
    method: str


def target_perplexity(groups: Sequence[Group], asked: float | None = None) -> float | None:
    """The perplexity asked for; by default the worst that any of the runs ended with, which all of them had
    on the way if they learnt steadily. None where no run was evaluated. InputError for one below 1."""
    if asked is not None:
        if not (math.isfinite(asked) and asked >= 1):
            raise InputError(f"--at-perplexity {asked:g}: a perplexity is a number of at least 1")
        return asked
    finals = [curve[-1].perplexity for group in groups for run in group.runs if (curve := curve_of(run))]
    known = [one for one in finals if math.isfinite(one)]
    return max(known) if known else None


def with_quality_cost(group: Group, perplexity: float | None) -> Group:
    """The group, each run with what reaching the perplexity cost it, or why that is not known."""
    return replace(
        group, runs=tuple(replace(run, measurements=_extended(run, perplexity)) for run in group.runs)
    )


def curve_of(run: ComparedRun) -> list[Evaluation]:
    """The evaluations that stand, of the split that perplexity is of: what was evaluated before the run went
    back to a checkpoint is left out."""
    splits = [one.split for one in run.evaluations]
    split = "validation" if "validation" in splits else splits[0] if splits else ""
    standing: list[Evaluation] = []
    for one in run.evaluations:
        if one.split != split:
            continue
        while standing and standing[-1].step >= one.step:
            standing.pop()
        standing.append(one)
    return standing


def reach(run: ComparedRun, perplexity: float) -> Reached | str:
    """The first instant at which the perplexity was reached, or the reason why there is none."""
    curve = curve_of(run)
    wanted = math.log(perplexity)
    if len(curve) < 2:
        return f"run {run.id} was evaluated {len(curve)} times; a curve needs two points"
    if curve[0].loss <= wanted:
        return (
            f"run {run.id} had a perplexity of {curve[0].perplexity:.4g} at its first evaluation, "
            f"step {curve[0].step}: when it reached {perplexity:.4g} is not known"
        )
    for before, after in pairwise(curve):
        if after.loss <= wanted < before.loss:
            return _between(run, before, after, wanted)
    lowest = min((one.perplexity for one in curve if math.isfinite(one.perplexity)), default=math.nan)
    return f"run {run.id} never reached {perplexity:.4g}; its lowest is {lowest:.4g}"


def _between(run: ComparedRun, before: Evaluation, after: Evaluation, wanted: float) -> Reached:
    part = (before.loss - wanted) / (before.loss - after.loss) if math.isfinite(before.loss) else 1.0
    trained = [run.tokens_after.get(one.step) for one in (before, after)]
    tokens = None
    if trained[0] is not None and trained[1] is not None:
        tokens = trained[0] + part * (trained[1] - trained[0])
    exact = part == 1.0
    return Reached(
        seconds=before.at_s + part * (after.at_s - before.at_s),
        tokens=tokens,
        method=f"evaluation after step {after.step}"
        if exact
        else f"between the evaluations after steps {before.step} and {after.step}",
    )


def _extended(run: ComparedRun, perplexity: float | None) -> dict[str, Measurement]:
    found = "no run was evaluated" if perplexity is None else reach(run, perplexity)
    costs = {name: _cost(name, found, run.header.price) for name in _UNITS}
    return {**run.measurements, **costs}


def _cost(name: str, found: Reached | str, price: Price | None) -> Measurement:
    unit = _UNITS[name]
    if isinstance(found, str):
        return unavailable(unit, found)
    if name == USD_TO_QUALITY and price is None:
        return unavailable(unit, "the run has no price")
    if name == TOKENS_TO_QUALITY and found.tokens is None:
        return unavailable(unit, "the steps up to the evaluation are not recorded")
    value = {
        USD_TO_QUALITY: found.seconds * (price.usd_per_hour / 3600 if price else 0.0),
        SECONDS_TO_QUALITY: found.seconds,
        TOKENS_TO_QUALITY: found.tokens,
    }[name]
    method = f"wall clock, {found.method}" if name != TOKENS_TO_QUALITY else found.method
    if name == USD_TO_QUALITY and price is not None:
        method += f", at ${price.usd_per_hour:g} an hour ({price.kind})"
    guessed = name == USD_TO_QUALITY and price is not None and price.kind == "estimated"
    return Measurement(value=value, unit=unit, kind="estimated" if guessed else "derived", method=method)
