"""Spot: a price that moves, and an instance that may be taken away.

Interruptions come at a constant rate and independently (a Poisson process). With M = 1/rate, a stretch of s
seconds between saves takes M (e^{s/M} − 1) e^{R/M} in expectation, R being the restart, which may be
interrupted too (Daly, Future Generation Computer Systems 22, 2006).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal, NamedTuple

from trueup.schema import Measurement, SpotPoint, SpotTerms, unavailable
from trueup.schema.bounds import COUNT, HOURS


class Disturbance(NamedTuple):
    """What interruptions are expected to add to a run."""

    interruptions: float
    lost_s: float  # work done again
    restart_s: float

    @property
    def extra_s(self) -> float:
        return self.lost_s + self.restart_s


class SpotCost(NamedTuple):
    terms: SpotTerms
    hourly: Measurement  # of the price series over the run
    total: Measurement
    notes: tuple[str, ...]
    parts: dict[str, Measurement]


def series_mean(series: Sequence[SpotPoint], started: datetime, seconds: float) -> float | None:
    """The time-weighted mean of a price series over [started, started + seconds); the price of the instant
    where `seconds` is 0. None where the series begins later."""
    if started < series[0].at:
        return None
    ended = started + timedelta(seconds=seconds)
    in_force = [point.amount for point in series if point.at <= started][-1]
    changes = [point for point in series if started < point.at < ended]
    if not changes:
        return in_force
    edges = [started, *(point.at for point in changes), ended]
    spans = [(later - earlier).total_seconds() for earlier, later in pairwise(edges)]
    amounts = [in_force, *(point.amount for point in changes)]
    return math.fsum(s * a for s, a in zip(spans, amounts, strict=True)) / math.fsum(spans)


def disturbance(
    wall_s: float, per_s: float, interval_s: float | None, restart_s: float
) -> Disturbance | None:
    """What interruptions at the rate `per_s` add to a run that would take `wall_s` without any.

    `interval_s` is from save to save; None: nothing is saved. None where so long a stretch is not to be
    expected to end (its expected time overflows).
    """
    if per_s == 0 or wall_s == 0:
        return Disturbance(0.0, 0.0, 0.0)
    stretch = wall_s if interval_s is None else min(interval_s, wall_s)
    whole = math.floor(wall_s / stretch)
    last = max(0.0, wall_s - whole * stretch)
    try:
        trying_s = whole * math.expm1(per_s * stretch) / per_s + math.expm1(per_s * last) / per_s
        restarting_s = trying_s * math.expm1(per_s * restart_s)
    except OverflowError:
        return None
    return Disturbance(per_s * (trying_s + restarting_s), max(0.0, trying_s - wall_s), restarting_s)


def young_interval_s(save_s: float, between_s: float) -> float:
    """Seconds of work between saves by Young's first-order rule, √(2 δ M) (CACM 17, 1974)."""
    return math.sqrt(2 * save_s * between_s)


def daly_interval_s(save_s: float, between_s: float) -> float:
    """Seconds of work between saves by Daly's higher-order estimate (2006, eq. 37): M for saves of 2 M and
    more."""
    if save_s >= 2 * between_s:
        return between_s
    ratio = save_s / (2 * between_s)
    return young_interval_s(save_s, between_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def interruption_rate(count: int, hours: float) -> Measurement:
    """Interruptions an hour seen over `hours` of instances, with the exact Poisson interval (Garwood
    1936)."""
    COUNT.require(count, f"{count:g} interruptions")
    HOURS.require(hours, f"{count:g} interruptions in {hours:g} h")
    from scipy.special import gammaincinv  # half the quantile of chi² with twice as many degrees of freedom

    low = float(gammaincinv(count, 0.025)) if count else 0.0
    high = float(gammaincinv(count + 1, 0.975))
    return Measurement(
        value=count / hours,
        unit="1/h",
        kind="measured",
        method=f"{count} interruptions in {hours:.6g} h",
        scope="node",
        n=count,
        ci=(low / hours, high / hours),
        ci_method="Poisson, exact",
    )


def spot_cost(terms: SpotTerms, wall_s: float, started: datetime | None) -> SpotCost:
    """The series over the run, and over the seconds that interruptions are expected to add at its mean
    price."""
    notes: list[str] = []
    hourly = _hourly(terms, wall_s, started, notes)
    parts = {"series_per_hour": hourly, **_suggested(terms)}
    if hourly.value is None:
        return SpotCost(
            terms, hourly, hourly.model_copy(update={"unit": terms.currency}), tuple(notes), parts
        )
    rate = terms.interruptions_per_hour
    if rate is None or rate.value is None:
        why = rate.reason if rate is not None else "no rate of interruptions is given"
        notes.append(f"interruptions are not counted: {why}")
        return SpotCost(terms, hourly, _total(terms, hourly, wall_s, None, None), tuple(notes), parts)
    added = disturbance(wall_s, rate.value / 3600, terms.checkpoint_interval_s, terms.restart_s or 0.0)
    if added is None:
        reason = (
            f"at {rate.value:g} interruptions an hour the run is not to be expected to end: save more often"
        )
        return SpotCost(terms, hourly, unavailable(terms.currency, reason, scope="node"), tuple(notes), parts)
    if rate.value > 0:
        notes += _told(terms)
    parts |= _parts(added, rate)
    ends = (
        None
        if rate.ci is None
        else [
            disturbance(wall_s, one / 3600, terms.checkpoint_interval_s, terms.restart_s or 0.0)
            for one in rate.ci
        ]
    )
    return SpotCost(terms, hourly, _total(terms, hourly, wall_s, added, ends), tuple(notes), parts)


def _hourly(terms: SpotTerms, wall_s: float, started: datetime | None, notes: list[str]) -> Measurement:
    unit, first, last = f"{terms.currency}/h", terms.series[0], terms.series[-1]
    kind: Literal["derived", "estimated"] = "estimated" if terms.kind == "estimated" else "derived"
    whence = f"{terms.kind}, {terms.source}"
    if started is None:
        length_s = (last.at - first.at).total_seconds()
        mean = series_mean(terms.series, first.at, length_s)
        if length_s > 0:
            notes.append("when the run took place is not known: the mean of the whole price series is used")
        method = f"time-weighted mean of {len(terms.series)} spot prices ({whence})"
    else:
        mean = series_mean(terms.series, started, wall_s)
        method = f"spot prices from {started:%Y-%m-%d %H:%M} UTC on, weighted by time ({whence})"
        if len(terms.series) == 1:
            method = f"one spot price for all of the run ({whence})"
    if mean is None:
        reason = f"the spot prices begin at {first.at.isoformat()}, after the run's start at {started}"
        return unavailable(unit, reason, method=terms.source, scope="node")
    return Measurement(value=mean, unit=unit, kind=kind, method=method, scope="node")


def _total(
    terms: SpotTerms,
    hourly: Measurement,
    wall_s: float,
    added: Disturbance | None,
    ends: Sequence[Disturbance | None] | None,
) -> Measurement:
    assert hourly.value is not None
    per_s = hourly.value / 3600
    extra_s = added.extra_s if added is not None else 0.0
    seconds = f"{wall_s:.6g} s"
    if extra_s:
        seconds = f"({seconds} + {extra_s:.6g} s that interruptions are expected to add)"
    ci = None
    if ends is not None and all(one is not None for one in ends):
        ci_low, ci_high = (
            per_s * max(wall_s + one.extra_s, terms.minimum_s) for one in ends if one is not None
        )
        ci = (ci_low, ci_high)
    return Measurement(
        value=per_s * max(wall_s + extra_s, terms.minimum_s),
        unit=terms.currency,
        kind="estimated" if extra_s else hourly.kind,
        method=f"{hourly.value:.7g} {hourly.unit} × {seconds} ÷ 3600; {hourly.method}",
        scope="node",
        ci=ci,
        ci_method="of the rate of interruptions alone" if ci else None,
    )


def _told(terms: SpotTerms) -> list[str]:
    told = []
    if terms.checkpoint_interval_s is None:
        told.append("nothing is saved: an interruption is taken to lose the whole run so far")
    if terms.restart_s is None:
        told.append("how long a restart takes is not given and not counted: the total is a lower bound")
    return told


def _parts(added: Disturbance, rate: Measurement) -> dict[str, Measurement]:
    method = f"Poisson interruptions at {rate.value:g} an hour ({rate.kind})"

    def part(value: float, unit: str) -> Measurement:
        return Measurement(value=value, unit=unit, kind="estimated", method=method, scope="node")

    return {
        "interruptions": part(added.interruptions, "1"),
        "lost_work_s": part(added.lost_s, "s"),
        "restart_s": part(added.restart_s, "s"),
    }


def _suggested(terms: SpotTerms) -> dict[str, Measurement]:
    """The interval between saves, the save in it, that Young's and Daly's rules suggest."""
    names = ("checkpoint_interval_young_s", "checkpoint_interval_daly_s")
    rate = terms.interruptions_per_hour
    if rate is None or not rate.value or terms.save_s is None:
        reason = (
            "a save's seconds are not given"
            if rate is not None and rate.value
            else "no rate of interruptions"
        )
        return {name: unavailable("s", reason, scope="node") for name in names}
    between_s = 3600 / rate.value
    method = f"a save of {terms.save_s:g} s, an interruption every {between_s:.6g} s"
    return {
        name: Measurement(
            value=rule(terms.save_s, between_s) + terms.save_s,
            unit="s",
            kind="estimated",
            method=f"{method}; {source}",
            scope="node",
        )
        for name, rule, source in (
            (names[0], young_interval_s, "√(2 δ M) and the save, Young 1974"),
            (names[1], daly_interval_s, "Daly 2006, and the save"),
        )
    }
