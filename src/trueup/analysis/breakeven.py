"""After how many full runs a move from A to B has paid: one-off cost ÷ (cost of a run at A − cost at B).

The unit is a run, each a fresh process with its own seed, never a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import fsum
from typing import Literal, NamedTuple

from trueup.schema import Frozen, InputError, Kind, Measurement, unavailable
from trueup.schema.bounds import MONEY, Bounds

from .kinds import weakest
from .student import quantile

COST = Bounds(0, 1e40)  # of a run of any size, in any currency: squares of its squares are numbers
ROUNDING = 1e-9  # costs that differ by no larger a part of them are equal
RUNS_NEEDED = 3  # of each side for an interval, as for any verdict between platforms
WELCH = "Welch's t on the costs of runs"
PAIRED = "paired t on the costs of runs that took turns"
Certainty = Literal["sure", "not sure", "no interval"]


class SideCost(NamedTuple):
    """What full runs of one side cost, each all in, in one currency."""

    label: str
    per_run: Sequence[float]
    currency: str = "USD"
    kind: Kind = "derived"
    how: str = ""


class BreakEven(Frozen):
    """`runs` is where the two cost lines cross, `whole_runs` the first whole number of runs from there on.

    The verdict goes by the means; `certainty` says whether the saving's 95% interval leaves zero out. If it
    does not, `runs` has no interval, and `at_least` says how many runs it takes at the best.
    """

    a: str
    b: str
    verdict: Literal["pays", "never pays"]
    certainty: Certainty
    cost_a: Measurement
    cost_b: Measurement
    saving: Measurement
    one_off: Measurement
    runs: Measurement
    whole_runs: int | None
    at_least: Measurement
    notes: tuple[str, ...]


def break_even(
    a: SideCost, b: SideCost, one_off: float, *, source: str = "given", paired: bool = False
) -> BreakEven:
    """When moving from A to B for `one_off`, in the currency of both sides, has paid.

    `paired`: the runs of A and B took turns on one host, and those at the same place followed each other.

    InputError where a side has no run, the currencies differ, or a cost is out of bounds.
    """
    _require(a, b, one_off)
    cost_a, cost_b, saving = _cost(a), _cost(b), _saving(a, b, paired)
    low, high = saving.ci if saving.ci is not None else (None, None)
    runs = _runs(a, b, one_off, saving)
    return BreakEven(
        a=a.label,
        b=b.label,
        verdict="never pays" if runs.value is None else "pays",
        certainty=_certainty(saving),
        cost_a=cost_a,
        cost_b=cost_b,
        saving=saving,
        one_off=Measurement(value=one_off, unit=a.currency, kind="quoted", method=source),
        runs=runs,
        whole_runs=None if runs.value is None else math.ceil(runs.value),
        at_least=_at_least(one_off, high, saving),
        notes=_notes(a, b, saving, low, high),
    )


def _require(a: SideCost, b: SideCost, one_off: float) -> None:
    if a.currency != b.currency:
        raise InputError(
            f"{a.label} is billed in {a.currency} and {b.label} in {b.currency}: give both prices in one "
            "currency, converted at a rate you name in the source"
        )
    for side in (a, b):
        if not side.per_run:
            raise InputError(f"{side.label} has no full run to take a cost from: one has to finish first")
        for cost in side.per_run:
            COST.require(cost, f"a run of {side.label} cost {cost:g} {side.currency}")
    MONEY.require(one_off, f"a one-off cost of {one_off:g} {a.currency}")


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _cost(side: SideCost) -> Measurement:
    n = len(side.per_run)
    return Measurement(
        value=_mean(side.per_run),
        unit=f"{side.currency}/run",
        kind=side.kind,
        method=f"mean of {n} full run{'s' if n > 1 else ''}, all in" + (f"; {side.how}" if side.how else ""),
        n=n,
    )


def _saving(a: SideCost, b: SideCost, paired: bool) -> Measurement:
    """Cost of a run at A less that at B, with its interval between runs."""
    ci, why_none = _interval(a.per_run, b.per_run, paired)
    return Measurement(
        value=_mean(a.per_run) - _mean(b.per_run),
        unit=f"{a.currency}/run",
        kind=weakest({a.kind, b.kind}),
        method="mean cost of a run at A less that at B" + (f"; no interval: {why_none}" if why_none else ""),
        n=min(len(a.per_run), len(b.per_run)),
        ci=ci,
        ci_method=f"between_runs: {PAIRED if paired else WELCH}" if ci else None,
    )


def _interval(
    a: Sequence[float], b: Sequence[float], paired: bool
) -> tuple[tuple[float, float] | None, str | None]:
    """95% interval of the difference of means, or None and why."""
    if min(len(a), len(b)) < RUNS_NEEDED:
        return None, f"{len(a)} and {len(b)} runs; an interval needs {RUNS_NEEDED} of each"
    differences = [one - other for one, other in zip(a, b, strict=True)] if paired else []
    samples = [differences] if paired else [list(a), list(b)]
    if all(max(sample) - min(sample) <= ROUNDING * max(*a, *b) for sample in samples):
        return None, "the costs have no spread to make an interval of"
    parts = [_variance(sample) / len(sample) for sample in samples]
    error = math.sqrt(fsum(parts))
    df = fsum(parts) ** 2 / fsum(p**2 / (len(s) - 1) for p, s in zip(parts, samples, strict=True))
    saving, reach = _mean(a) - _mean(b), quantile(df, 0.975) * error
    return (saving - reach, saving + reach), None


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _certainty(saving: Measurement) -> Certainty:
    if saving.ci is None:
        return "no interval"
    return "not sure" if saving.ci[0] <= 0 <= saving.ci[1] else "sure"


def _runs(a: SideCost, b: SideCost, one_off: float, saving: Measurement) -> Measurement:
    """A large saving is a small number of runs, so the interval's ends change places."""
    if saving.value is None or saving.value <= 0:
        found, than = (f"{_mean(side.per_run):.6g} {side.currency} a run" for side in (b, a))
        return unavailable("runs", f"{b.label} is not cheaper: {found}, against {than} at {a.label}")
    value = one_off / saving.value
    if not math.isfinite(value):
        return unavailable("runs", f"the saving of {saving.value:.3g} {a.currency} a run is as good as none")
    ends = (one_off / end if end > 0 else math.inf for end in reversed(saving.ci or (0.0, 0.0)))
    low, high = ends
    ci = (low, high) if math.isfinite(high) else None
    return Measurement(
        value=value,
        unit="runs",
        kind=saving.kind,
        method=f"{one_off:.6g} {a.currency} / {saving.value:.6g} {saving.unit}",
        n=saving.n,
        ci=ci,
        ci_method=saving.ci_method if ci else None,
    )


def _at_least(one_off: float, high: float | None, saving: Measurement) -> Measurement:
    """The fewest runs that the interval of the saving allows."""
    if high is None:
        return unavailable("runs", f"the saving has no interval: {saving.method.partition(': ')[2]}")
    if high <= 0 or not math.isfinite(one_off / high):
        return unavailable("runs", "the whole interval of the saving is at or below zero")
    return Measurement(
        value=one_off / high,
        unit="runs",
        kind=saving.kind,
        method="one-off cost over the upper end of the saving's 95% interval",
        n=saving.n,
    )


def _notes(
    a: SideCost, b: SideCost, saving: Measurement, low: float | None, high: float | None
) -> tuple[str, ...]:
    notes = []
    if low is None or high is None:
        notes.append(saving.method.partition("; ")[2])
    elif low <= 0 < high:
        notes.append(
            f"the saving's 95% interval holds zero: to be sure which is cheaper, more runs of {a.label} and "
            f"{b.label} are needed"
        )
    return tuple(notes)


class CostLines(NamedTuple):
    """Cost so far over runs, of staying at A and of moving to B: two straight lines, by their end points."""

    runs: tuple[float, float]
    stay: tuple[float, float]
    move: tuple[float, float]

    @property
    def crossing(self) -> tuple[float, float] | None:
        """(runs, cost) where moving becomes the cheaper of the two, if it does within the picture."""
        (stay_0, stay_1), (move_0, move_1) = self.stay, self.move
        gap_0, gap_1 = move_0 - stay_0, move_1 - stay_1
        if not gap_0 >= 0 > gap_1:
            return None
        part = gap_0 / (gap_0 - gap_1)
        return self.runs[0] + part * (self.runs[1] - self.runs[0]), stay_0 + part * (stay_1 - stay_0)


def cost_lines(found: BreakEven) -> CostLines:
    """From no run to twice the break-even; without one, to where B's runs cost as much as the one-off."""
    cost_a, cost_b, one_off = (one.value or 0.0 for one in (found.cost_a, found.cost_b, found.one_off))
    most = 2 * (found.runs.value or 0.0)
    if most == 0:
        most = min(one_off / cost_b, 1e6) if cost_b > 0 else 0.0
    most = max(most, 4.0)
    return CostLines((0.0, most), (0.0, most * cost_a), (one_off, one_off + most * cost_b))
