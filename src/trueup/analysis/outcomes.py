"""What came of a run: loss, perplexity, compiles, and where its wall clock went."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from trueup.schema import Evaluation, Event, Measurement, RunRecord, SpanName, SpanTotal, Step

from .names import figure, missing
from .totals import steps_of

Found = dict[str, Measurement]

COMPILE_EVENT = "compile"


def span_seconds(spans: Sequence[SpanTotal], name: str) -> float:
    """Seconds of all spans of that name."""
    return fsum(span.seconds for span in spans if span.name == name)


def wall_seconds(record: RunRecord) -> float:
    """Wall clock of the run as recorded at its end, never less than its spans; a running one's so far."""
    return max(record.header.wall_s or 0.0, fsum(span.seconds for span in record.spans))


def of_learning(record: RunRecord) -> Found:
    """First and last loss, largest gradient norm, and perplexity on held-out data."""
    stand, _ = steps_of(record)
    found: Found = {}
    if stand:
        first, last = stand[0], stand[-1]
        largest = max(stand, key=lambda step: step.grad_norm if step.grad_norm == step.grad_norm else -1.0)
        found["loss_first"] = figure(
            "loss_first", first.loss, "measured", f"step {first.step}, before its update"
        )
        found["loss_last"] = figure(
            "loss_last", last.loss, "measured", f"step {last.step}, before its update"
        )
        found["grad_norm_max"] = figure(
            "grad_norm_max",
            largest.grad_norm,
            "measured",
            f"step {largest.step}, before clipping",
            n=len(stand),
        )
    else:
        names = ("loss_first", "loss_last", "grad_norm_max")
        found |= {name: missing(name, "the run did no training step") for name in names}
    return found | {"loss_scale": _loss_scale(stand)} | _perplexity(record.evaluations)


def _loss_scale(steps: Sequence[Step]) -> Measurement:
    """A run that does not scale its loss has a scale of 1 at every step."""
    if all(step.loss_scale == 1 for step in steps):
        return missing("loss_scale", "no loss scaling was used")
    scales = [step.loss_scale for step in steps]
    method = f"step {steps[-1].step}; lowest of the run {min(scales):g}, highest {max(scales):g}"
    return figure("loss_scale", steps[-1].loss_scale, "measured", method, n=len(steps))


def _perplexity(evaluations: Sequence[Evaluation]) -> Found:
    """Over one split: validation where there is one, else the split that was evaluated first."""
    names = ("eval_perplexity_first", "eval_perplexity_best", "eval_perplexity_last", "eval_tokens")
    if not evaluations:
        return {name: missing(name, "the run made no evaluation") for name in names}
    splits = [one.split for one in evaluations]
    split = "validation" if "validation" in splits else splits[0]
    ours = [one for one in evaluations if one.split == split]
    first, last = ours[0], ours[-1]
    # A perplexity that is not a number compares false with everything and would win or lose by its place.
    best = min(ours, key=lambda one: one.perplexity if one.perplexity == one.perplexity else float("inf"))
    found = {
        name: figure(name, one.perplexity, "measured", f"{split} split after step {one.step}", n=one.tokens)
        for name, one in zip(names, (first, best, last), strict=False)
    }
    found["eval_tokens"] = figure(
        "eval_tokens", last.tokens, "measured", f"{split} split, counted", n=len(ours)
    )
    return found


def of_compiling(record: RunRecord) -> Found:
    """Compiles from the compile log: their seconds are the span's, and those of events outside of it."""
    compiles = [event for event in record.events if event.kind == COMPILE_EVENT]
    in_span_s = span_seconds(record.spans, SpanName.COMPILE)
    outside_s = fsum(
        _number(event, "seconds") for event in compiles if not event.data.get("in_span", in_span_s > 0)
    )
    method = (
        "span 'compile', and compile events outside of it"
        if compiles or in_span_s
        else "nothing was compiled"
    )
    return {
        "compile_s": figure("compile_s", in_span_s + outside_s, "measured", method, n=len(compiles)),
        "compile_count": figure("compile_count", len(compiles), "measured", "compile events counted"),
        "compile_cache_hits_count": _cache_hits(compiles),
        "compile_after_warm_up_count": _after_warm_up(record.steps, compiles),
    }


def _after_warm_up(steps: Sequence[Step], compiles: Sequence[Event]) -> Measurement:
    """As the log itself told it: a resumed run warms up again, later than steps it has done."""
    name = "compile_after_warm_up_count"
    if not steps:
        return missing(name, "the run did no training step")
    if any("after_warm_up" not in event.data for event in compiles):
        return missing(name, "the compile log does not tell")
    late = sum(bool(event.data["after_warm_up"]) for event in compiles)
    return figure(name, late, "measured", "compile events after the warm-up")


def _cache_hits(compiles: Sequence[Event]) -> Measurement:
    name = "compile_cache_hits_count"
    told = [event for event in compiles if "cache_hits" in event.data]
    if not told:
        return missing(name, "the compile log does not tell" if compiles else "nothing was compiled")
    hits = fsum(_number(event, "cache_hits") for event in told)
    return figure(name, hits, "measured", "compile events", n=len(told))


def of_wall_clock(record: RunRecord) -> Found:
    """The wall clock and the part of it that no span claims."""
    wall = wall_seconds(record)
    if wall <= 0:
        return {
            name: missing(name, "the run's end and spans are not recorded")
            for name in ("wall_s", "other_share")
        }
    method = "end less start of the process" if record.header.wall_s else "sum of the spans so far"
    other = span_seconds(record.spans, SpanName.OTHER)
    return {
        "wall_s": figure("wall_s", wall, "measured", method),
        "other_share": figure("other_share", other / wall, "measured", "span 'other' over the wall clock"),
    }


def _number(event: Event, key: str) -> float:
    value = event.data.get(key)
    return float(value) if isinstance(value, (int, float)) and value > 0 else 0.0
