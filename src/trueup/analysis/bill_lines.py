"""Where a run's seconds went: every second of the wall clock on one line of the bill."""

from __future__ import annotations

import math
from math import fsum

from trueup.schema import RunRecord, SpanName

from .totals import totals_of, world_size

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
    "one_off",  # no time of the run's: its part of work done once, such as debugging
)
LINE_OF_SPAN = {
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
_ROUNDING_S = 1e-3  # spans and wall clock may differ by this much before a note says so


def seconds_by_line(record: RunRecord, wall_s: float, notes: list[str]) -> dict[str, float]:
    """Every line's seconds; they add up to the wall clock."""
    seconds = dict.fromkeys(LINE_NAMES, 0.0)
    del seconds["compute"], seconds["one_off"]
    step_s = 0.0
    for span in record.spans:
        if span.name == SpanName.STEP:
            step_s += span.seconds
        else:
            seconds[LINE_OF_SPAN.get(span.name, "other")] += span.seconds
    unclaimed_s = max(0.0, wall_s - fsum(span.seconds for span in record.spans))
    if unclaimed_s > _ROUNDING_S:
        notes.append(f"{unclaimed_s:.3f} s of the wall clock are in no recorded span; they are in 'other'")
    seconds["other"] += unclaimed_s
    lost_s = min(step_s, totals_of(record).lost_s)
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
    flop, ceiling = value_of(record, "useful_model_flop"), value_of(record, "matmul_ceiling_flops_per_s")
    if rest_s > 0 and (flop is None or ceiling is None or ceiling <= 0):
        name = "useful_model_flop" if flop is None else "matmul_ceiling_flops_per_s"
        notes.append(f"useful compute and below-peak kernels are one line: {reason_of(record, name)}")
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
    return min(1.0, max(0.0, value_of(record, name) or 0.0))


def _padding_share(record: RunRecord) -> float:
    share = value_of(record, "padding_share")
    if share is None:
        share = totals_of(record).padding_share
    return min(1.0, max(0.0, share or 0.0))


def value_of(record: RunRecord, name: str) -> float | None:
    found = record.measurements.get(name)
    return found.value if found is not None else None


def reason_of(record: RunRecord, name: str) -> str:
    found = record.measurements.get(name)
    if found is None:
        return f"{name} was not recorded (a run that was cut off has no summary)"
    return found.reason or f"{name} is {found.value}"
