"""What a run's steps did and how long they took: tokens, rates, step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from trueup.schema import Measurement, RunRecord, Step
from trueup.schema.counting import counted

from . import statistics
from .names import P99_NEEDS, figure, missing
from .steady import steps_inside, unlabelled
from .totals import seconds_of, steps_of, totals, totals_of

Found = dict[str, Measurement]

NO_STEPS = "the run did no training step"
_TRAINING_S = "step, data wait and communication seconds of the whole training part"


def of_tokens(record: RunRecord, steady: Mapping[str, Any]) -> Found:
    """Token counts, rates over the training part, and the steady rate with its interval."""
    steps, sums = record.steps, totals_of(record)
    counts = {
        "useful": (sums.useful_tokens, sums.useful_tokens),
        "supervised": (sums.supervised_tokens, sums.supervised_tokens),
        "processed": (sums.all_processed_tokens, sums.all_processed_tokens),
    }
    found: Found = {}
    for which, (count, for_rate) in counts.items():
        found[f"{which}_tokens"] = figure(
            f"{which}_tokens", count, "measured", "counted in the batches", n=len(steps)
        )
        rate = f"{which}_tokens_per_s"
        if sums.training_s > 0:
            found[rate] = figure(
                rate,
                for_rate / sums.training_s,
                "derived",
                f"{which} tokens over {_TRAINING_S}",
                n=len(steps),
            )
        else:
            found[rate] = missing(rate, NO_STEPS)
    found["useful_tokens_per_s_steady"] = _steady_rate(steps_of(record)[0], steady)
    share = sums.padding_share
    found["padding_share"] = (
        missing("padding_share", "no token was processed, or more useful ones than processed")
        if share is None
        else figure(
            "padding_share", share, "derived", "processed less useful over processed tokens", n=len(steps)
        )
    )
    return found


def _steady_rate(steps: Sequence[Step], steady: Mapping[str, Any]) -> Measurement:
    name = "useful_tokens_per_s_steady"
    inside = steps_inside(steps, steady)
    seconds = [seconds_of(step) for step in inside]
    if not inside or fsum(seconds) <= 0:
        return missing(name, no_steady(steady))
    tokens = [float(step.useful_tokens) for step in inside]
    interval = statistics.ratio_interval_within_run(tokens, seconds)
    method = f"useful tokens over seconds of the steady steps ({steady['method']})"
    if interval.reason:
        method += f"; no interval: {interval.reason}"
    return figure(
        name,
        fsum(tokens) / fsum(seconds),
        "derived",
        method,
        n=len(inside),
        ci=interval.ci,
        ci_method=interval.method or None,
    )


def no_steady(steady: Mapping[str, Any]) -> str:
    """The verdict in words, for what has no value without a steady part."""
    return f"{steady['verdict']}: {steady['reason']}"


def of_step_times(record: RunRecord, steady: Mapping[str, Any]) -> Found:
    """Percentiles over all steps, jitter, time to steady state, and where training seconds went."""
    steps = record.steps
    stand, lost = steps_of(record)
    found: Found = {
        "steps_count": figure("steps_count", len(stand), "measured", "counted", n=len(steps)),
        "skipped_steps_count": figure(
            "skipped_steps_count", sum(step.skipped for step in steps), "measured", "counted", n=len(steps)
        ),
        "steady_steps_count": figure(
            "steady_steps_count", len(steps_inside(stand, steady)), "measured", str(steady["method"])
        ),
        "lost_work_s": figure(
            "lost_work_s",
            fsum(step.step_s for step in lost),
            "measured",
            "steps that were done again, given up, or left out",
            n=len(lost),
        ),
        "time_to_steady_s": _time_to_steady(stand, steady),
    }
    found |= _percentiles([step.step_s for step in stand])
    found["step_jitter_share"] = _jitter([step.step_s for step in unlabelled(stand)])
    found |= _shares(steps)
    return found


def _percentiles(times: Sequence[float]) -> Found:
    n = len(times)
    names = ("step_p50_s", "step_p90_s", "step_p99_s", "step_max_s")
    if n == 0:
        return {name: missing(name, NO_STEPS) for name in names}
    method = "over all steps, those with an event included"
    found = {
        "step_p50_s": figure("step_p50_s", statistics.percentile(times, 50), "measured", method, n=n),
        "step_p90_s": figure("step_p90_s", statistics.percentile(times, 90), "measured", method, n=n),
        "step_max_s": figure("step_max_s", max(times), "measured", method, n=n),
    }
    if n >= P99_NEEDS:
        found["step_p99_s"] = figure("step_p99_s", statistics.percentile(times, 99), "measured", method, n=n)
    else:
        reason = (
            f"{counted(n, 'step')}; a 99th percentile needs {P99_NEEDS} (the longest took {max(times):.4g} s)"
        )
        found["step_p99_s"] = missing("step_p99_s", reason, n=n)
    return found


def _jitter(times: Sequence[float]) -> Measurement:
    name = "step_jitter_share"
    if len(times) < 2 or fsum(times) <= 0:
        return missing(
            name, f"{counted(len(times), 'step')} without an event of its own; two are needed", n=len(times)
        )
    method = "sd over mean of the steps without an event of their own"
    return figure(name, statistics.jitter(times), "derived", method, n=len(times))


def _time_to_steady(steps: Sequence[Step], steady: Mapping[str, Any]) -> Measurement:
    inside = steps_inside(steps, steady)
    if not inside:
        return missing("time_to_steady_s", no_steady(steady))
    method = f"start of step {inside[0].step}, the first steady one ({steady['method']})"
    return figure("time_to_steady_s", inside[0].start_s, "measured", method)


def _shares(steps: Sequence[Step]) -> Found:
    total = totals(steps).training_s
    if total <= 0:
        return {name: missing(name, NO_STEPS) for name in ("data_wait_share", "communication_share")}
    wait = fsum(step.data_wait_s for step in steps)
    talk = fsum(step.communication_s for step in steps)
    method = f"over {_TRAINING_S}"
    return {
        "data_wait_share": figure("data_wait_share", wait / total, "measured", method, n=len(steps)),
        "communication_share": figure("communication_share", talk / total, "measured", method, n=len(steps)),
    }
