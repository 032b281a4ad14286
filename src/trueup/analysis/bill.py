"""The bill: where a run's money went. Its lines add up to the total and none is negative.

Everything is taken from the stored record, so that a bill from the database and one from the run's folder are
the same. Neither numpy nor scipy is imported here or below: printing a bill is quick.
"""

from __future__ import annotations

import math
from collections import Counter
from math import fsum
from typing import Literal

from trueup.schema import Frozen, InputError, Measurement, Price, RunRecord, SpanName, unavailable

from .outcomes import wall_seconds
from .totals import totals, world_size

LINE_NAMES = (
    "useful_compute",
    "below_peak",
    "compute",  # stands for the two above where FLOPs or ceiling are not known
    "padding",
    "head_padding",
    "recompute",
    "compile",
    "warm_up",
    "load",
    "prepare",
    "data_wait",
    "communication",
    "evaluation",
    "checkpoint",
    "pause",
    "lost_work",
    "down_time",
    "record",
    "other",
)
_LINE_OF_SPAN = {
    SpanName.START: "load",
    SpanName.LOAD: "load",
    SpanName.PREPARE: "prepare",
    SpanName.CALIBRATE: "warm_up",
    SpanName.WARM_UP: "warm_up",
    SpanName.COMPILE: "compile",
    SpanName.DATA_WAIT: "data_wait",
    SpanName.COMMUNICATION: "communication",
    SpanName.EVALUATE: "evaluation",
    SpanName.CHECKPOINT: "checkpoint",
    SpanName.PAUSE: "pause",
    SpanName.DOWN_TIME: "down_time",
    SpanName.RECORD: "record",
    SpanName.OTHER: "other",
}
_PER_MILLION = "USD/million useful tokens"
_ROUNDING_S = 1e-3  # spans and wall clock may differ by this much before a note says so


class BillLine(Frozen):
    """One purpose the wall clock served. `kind` is 'measured' for a span, 'derived' for a part of one."""

    name: str
    seconds: float
    usd: float
    share: float
    kind: Literal["measured", "derived"]


class Bill(Frozen):
    """A run's bill. `known` counts the run's measurements, and the price, by kind."""

    run: str
    name: str
    price: Price
    total_usd: float
    wall_s: float
    useful_tokens: float
    usd_per_million_useful_tokens: Measurement
    usd_per_million_useful_tokens_steady: Measurement
    lines: tuple[BillLine, ...]
    known: dict[str, int]
    notes: tuple[str, ...]


def make_bill(record: RunRecord, price: Price | None = None) -> Bill:
    """The run's bill at `price`, by default the one stored with it. InputError without a price above zero."""
    price = _checked(record, price or record.header.price)
    notes: list[str] = []
    wall_s = wall_seconds(record)
    seconds = _seconds_by_line(record, wall_s, notes)
    # From the lines, not from the wall clock: the two agree but for rounding, and a bill adds up exactly.
    total_s = fsum(seconds.values())
    usd_per_s = price.usd_per_hour / 3600
    useful_tokens = _value(record, "useful_tokens")
    if useful_tokens is None:
        useful_tokens = float(totals(record.steps).useful_tokens)
    notes += [event.message for event in record.events if event.kind == "contended_ceiling"][-1:]
    if seconds["down_time"]:
        notes.append("down time is billed as if the instance had been kept; subtract its line if it was not")
    if record.header.state == "running":
        notes.append("the run has not ended: this is its bill so far")
    return Bill(
        run=record.header.id,
        name=record.header.name,
        price=price,
        total_usd=total_s * usd_per_s,
        wall_s=total_s,
        useful_tokens=useful_tokens,
        usd_per_million_useful_tokens=_all_in(total_s * usd_per_s, useful_tokens, price),
        usd_per_million_useful_tokens_steady=_steady(record, price),
        lines=tuple(_line(name, seconds[name], total_s, usd_per_s) for name in LINE_NAMES if name in seconds),
        known=_known(record, price),
        notes=tuple(notes),
    )


def _checked(record: RunRecord, price: Price | None) -> Price:
    if price is None:
        raise InputError(
            f"run {record.header.id} has no price, so it has no bill: the recipe gives one by "
            "price.usd_per_hour with price.source, or by platform.instance from the catalog"
        )
    if not (math.isfinite(price.usd_per_hour) and price.usd_per_hour > 0):
        raise InputError(
            f"a price of {price.usd_per_hour} USD per hour cannot be billed: it must be above zero and finite"
        )
    return price


def _seconds_by_line(record: RunRecord, wall_s: float, notes: list[str]) -> dict[str, float]:
    """Every line's seconds; they add up to the wall clock."""
    seconds = dict.fromkeys(LINE_NAMES, 0.0)
    del seconds["compute"]
    step_s = 0.0
    for span in record.spans:
        if span.name == SpanName.STEP:
            step_s += span.seconds
        else:
            seconds[_LINE_OF_SPAN.get(span.name, "other")] += span.seconds
    unclaimed_s = max(0.0, wall_s - fsum(span.seconds for span in record.spans))
    if unclaimed_s > _ROUNDING_S:
        notes.append(f"{unclaimed_s:.3f} s of the wall clock are in no recorded span; they are in 'other'")
    seconds["other"] += unclaimed_s
    lost_s = min(step_s, totals(record.steps).lost_s)
    seconds["lost_work"] = lost_s
    return _with_steps_split(record, seconds, step_s - lost_s, notes)


def _with_steps_split(
    record: RunRecord, seconds: dict[str, float], step_s: float, notes: list[str]
) -> dict[str, float]:
    """The seconds of steps that stand, split into compute, padding and what is missing to the ceiling.

    Padding takes its share of the processed tokens; of the rest, what activation checkpointing computed again
    and then head rows without loss take their share of the FLOPs. Useful compute is what the useful FLOPs
    would take at the ceiling; below peak is what remains.
    """
    padding_s = step_s * _padding_share(record)
    again_s = (step_s - padding_s) * _share(record, "recompute_share")
    head_s = (step_s - padding_s - again_s) * _share(record, "head_padding_share")
    rest_s = max(0.0, step_s - padding_s - again_s - head_s)
    seconds["padding"], seconds["recompute"], seconds["head_padding"] = padding_s, again_s, head_s
    flop, ceiling = _value(record, "useful_model_flop"), _value(record, "matmul_ceiling_flops_per_s")
    if rest_s > 0 and (flop is None or ceiling is None or ceiling <= 0):
        name = "useful_model_flop" if flop is None else "matmul_ceiling_flops_per_s"
        notes.append(f"useful compute and below-peak kernels are one line: {_reason(record, name)}")
        del seconds["useful_compute"], seconds["below_peak"]
        seconds["compute"] = rest_s
        return seconds
    useful_s = (flop or 0.0) / ((ceiling or math.inf) * world_size(record))
    if useful_s > rest_s:
        notes.append(
            f"the steps ran at {useful_s / rest_s:.3f} of the measured ceiling, which was therefore too low; "
            "it is raised to the rate reached"
            if rest_s > 0
            else "FLOPs are recorded without a second of step time"
        )
        useful_s = rest_s
    seconds["useful_compute"], seconds["below_peak"] = useful_s, rest_s - useful_s
    return seconds


def _share(record: RunRecord, name: str) -> float:
    return min(1.0, max(0.0, _value(record, name) or 0.0))


def _padding_share(record: RunRecord) -> float:
    share = _value(record, "padding_share")
    if share is None:
        share = totals(record.steps).padding_share
    return min(1.0, max(0.0, share or 0.0))


def _line(name: str, seconds: float, total_s: float, usd_per_s: float) -> BillLine:
    spans = set(_LINE_OF_SPAN.values())
    return BillLine(
        name=name,
        seconds=seconds,
        usd=seconds * usd_per_s,
        share=seconds / total_s if total_s > 0 else 0.0,
        kind="measured" if name in spans else "derived",
    )


def _all_in(total_usd: float, useful_tokens: float, price: Price) -> Measurement:
    method = f"the whole bill over the useful tokens; price {price.kind}"
    if useful_tokens <= 0:
        return unavailable(_PER_MILLION, "the run trained no useful token", method=method)
    return Measurement(
        value=total_usd / useful_tokens * 1e6, unit=_PER_MILLION, kind="derived", method=method
    )


def _steady(record: RunRecord, price: Price) -> Measurement:
    """Price over the steady rate; a high rate is a low cost, so the interval's ends change places."""
    rate = record.measurements.get("useful_tokens_per_s_steady")
    method = f"price over useful tokens per second of the steady part; price {price.kind}"
    if rate is None or rate.value is None:
        return unavailable(_PER_MILLION, _reason(record, "useful_tokens_per_s_steady"), method=method)
    if rate.value <= 0:
        return unavailable(_PER_MILLION, "the steady part trained no useful token", method=method)
    usd_per_s = price.usd_per_hour / 3600
    ci = None
    if rate.ci is not None and rate.ci[0] > 0:
        ci = (usd_per_s / rate.ci[1] * 1e6, usd_per_s / rate.ci[0] * 1e6)
    return Measurement(
        value=usd_per_s / rate.value * 1e6,
        unit=_PER_MILLION,
        kind="derived",
        method=method,
        n=rate.n,
        ci=ci,
        ci_method=rate.ci_method if ci else None,
    )


def _known(record: RunRecord, price: Price) -> dict[str, int]:
    kinds = ("measured", "derived", "quoted", "estimated", "predicted", "unavailable")
    counted = Counter[str](one.kind for one in record.measurements.values())
    counted[price.kind] += 1
    return {kind: counted[kind] for kind in kinds}


def _value(record: RunRecord, name: str) -> float | None:
    found = record.measurements.get(name)
    return found.value if found is not None else None


def _reason(record: RunRecord, name: str) -> str:
    found = record.measurements.get(name)
    if found is None:
        return f"{name} was not recorded (a run that was cut off has no summary)"
    return found.reason or f"{name} is {found.value}"
