"""The plots of a run, each as inline SVG, or None where the run left nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from trueup.analysis.sensors import LONGEST_GAP_S

from .svg import ACCENT, GRID, INK, MUTED, PAPER, SHAPES, SOFT, WARN, Canvas
from .wording import duration, number, quantity, words

if TYPE_CHECKING:
    from trueup.schema import Evaluation, RunRecord, Sample, Step

MOST_POINTS = 1000  # more points than this are binned: no screen shows them apart
_BINS = 240
_LABEL_CHARACTERS = 24
_DOTS_UP_TO = 120
_LOG_FROM = 12  # a slowest step this many times the median needs a logarithmic axis


def loss(record: RunRecord, prefix: str) -> str | None:
    """Training loss of each step and the evaluations, the best one ringed."""
    steps = [(s.step, s.loss) for s in record.steps if math.isfinite(s.loss)]
    held_out = [e for e in record.evaluations if math.isfinite(e.loss)]
    if not steps and not held_out:
        return None
    canvas = Canvas(f"{prefix}-loss")
    if steps:
        x, low, middle, high = binned(*zip(*steps, strict=True))
        if len(steps) > MOST_POINTS:
            canvas.between(x, low, high, SOFT)
        canvas.line(x, middle, MUTED, width=1.1, label="training")
    if held_out:
        x_eval, y_eval = [float(e.step) for e in held_out], [e.loss for e in held_out]
        canvas.line(x_eval, y_eval, ACCENT, dots=4.5, label="evaluation")
    for best in [e for e in held_out if e.best][-1:]:
        canvas.marks([best.step], [best.loss], ACCENT, size=11, fill="none", width=1.4, label="best")
    numbers = [step for step, _ in steps] + [e.step for e in held_out]
    _steps_axis(canvas, min(numbers), max(numbers))
    canvas.y_name = "loss, nats per token"
    return canvas.svg(_loss_words(steps, held_out))


def step_time(record: RunRecord, prefix: str) -> str | None:
    """Seconds of each step; labelled steps marked by what happened; the steady part shaded."""
    steps = [s for s in record.steps if math.isfinite(s.step_s)]
    if not steps:
        return None
    canvas = Canvas(f"{prefix}-steptime")
    span = steady_steps(record)
    if span is not None:
        canvas.span(span[0] - 0.5, span[1] + 0.5, SOFT, label="steady part")
    x, low, middle, high = binned([s.step for s in steps], [s.step_s for s in steps])
    if len(steps) > MOST_POINTS:
        canvas.between(x, low, high, GRID)
    canvas.line(x, middle, ACCENT, width=1.1, dots=2.6 if len(steps) <= _DOTS_UP_TO else None)
    for shape, (label, marked) in zip(SHAPES, by_label(steps).items(), strict=False):
        at, seconds = [float(s.step) for s in marked], [s.step_s for s in marked]
        canvas.marks(at, seconds, INK, shape=shape, size=5.5, fill=PAPER, label=words(label))
    if max(high) > _LOG_FROM * sorted(middle)[len(middle) // 2] > 0:
        canvas.y.log = True
    else:
        canvas.y.low, canvas.y.high = 0.0, 1.1 * max(high) or 1.0
    _steps_axis(canvas, steps[0].step, steps[-1].step)
    canvas.y_name = "seconds"
    median = sorted(s.step_s for s in steps)[len(steps) // 2]
    slowest = max(steps, key=lambda s: s.step_s)
    return canvas.svg(
        f"Step time over {len(steps):,} steps: median {duration(median)}, "
        f"slowest {duration(slowest.step_s)} at step {slowest.step}."
    )


def lengths(record: RunRecord, prefix: str) -> str | None:
    """The lengths of the run's data."""
    return histogram_of_lengths(
        record.header.dataset.length_histogram if record.header.dataset else [], prefix
    )


def histogram_of_lengths(histogram: Sequence[Sequence[int]], prefix: str) -> str | None:
    """Records by length in tokens; a bin is (from, to exclusive, count). Bins differ in width, so bars stand
    side by side and carry their edges."""
    if not histogram:
        return None
    canvas = Canvas(f"{prefix}-lengths")
    canvas.bars([count for _, _, count in histogram], ACCENT)
    every = max(1, math.ceil(len(histogram) / 9))
    edges = [(place - 0.5, number(low)) for place, (low, _, _) in enumerate(histogram)]
    canvas.x.named = tuple(edges[::every])
    canvas.x_name, canvas.y_name = "tokens in an example, from", "examples"
    total = sum(count for _, _, count in histogram)
    widest = max(histogram, key=lambda part: part[2])
    return canvas.svg(
        f"Lengths of {total:,} records, from {histogram[0][0]:,} to {histogram[-1][1] - 1:,} tokens; "
        f"most have {widest[0]:,} to {widest[1] - 1:,}."
    )


def memory(record: RunRecord, prefix: str) -> str | None:
    """Resident memory of the run's processes and memory of the device over the run."""
    gib = 2.0**30
    series = {
        "this run, resident": _series(record.samples, "host_rss_bytes", gib),
        "device, allocated": _series(record.samples, "device_allocated_bytes", gib),
        "device, reserved": _series(record.samples, "device_reserved_bytes", gib),
        "available on the host": _series(record.samples, "host_available_bytes", gib),
    }
    return _over_time(f"{prefix}-memory", series, "GiB", lambda peak: quantity(peak * gib, "bytes"))


def cpu(record: RunRecord, prefix: str) -> str | None:
    """Share of the CPU that this run and everything else used."""
    series = {
        "this run": _series(record.samples, "cpu_share", 0.01),
        "other processes": _series(record.samples, "others_cpu_share", 0.01),
    }
    return _over_time(f"{prefix}-cpu", series, "% of the CPU", lambda peak: f"{number(peak, 3)} %")


def power(record: RunRecord, prefix: str) -> str | None:
    series = {"power": _series(record.samples, "power_w")}
    return _over_time(f"{prefix}-power", series, "watts", lambda peak: f"{number(peak, 3)} W")


def temperature(record: RunRecord, prefix: str) -> str | None:
    series = {"temperature": _series(record.samples, "temperature_c")}
    return _over_time(f"{prefix}-temperature", series, "°C", lambda peak: f"{number(peak, 3)} °C")


def by_label(steps: Sequence[Step]) -> dict[str, list[Step]]:
    """Steps by what happened at them; past a legend's worth of labels, the rest together as `other`."""
    found: dict[str, list[Step]] = {}
    for step in steps:
        for label in (label[:_LABEL_CHARACTERS] for label in step.labels):
            known = label in found or len(found) < len(SHAPES) - 1
            found.setdefault(label if known else "other", []).append(step)
    return found


def steady_steps(record: RunRecord) -> tuple[float, float] | None:
    """First and last step of the steady part, where the detector found one."""
    verdict = record.header.steady or {}
    first, last = verdict.get("start_step"), verdict.get("end_step")
    if isinstance(first, (int, float)) and isinstance(last, (int, float)) and first <= last:
        return float(first), float(last)
    return None


Floats = Sequence[float]


def binned(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """(x, low, mean, high): as they are up to `MOST_POINTS` points, else of bins of equal count."""
    if len(x) <= MOST_POINTS:
        return x, y, y, y
    return _means(x, y, [len(x) * n // _BINS for n in range(_BINS + 1)])


def binned_apart(
    x: Floats, y: Floats, gaps: Sequence[int]
) -> tuple[tuple[Floats, Floats, Floats, Floats], list[int]]:
    """`binned`, with no bin across one of `gaps` (places of points); and the places of bins after them."""
    if len(x) <= MOST_POINTS:
        return (x, y, y, y), list(gaps)
    edges, after = [0], []
    for start, end in pairwise((0, *gaps, len(x))):
        if start:
            after.append(len(edges) - 1)
        bins = min(end - start, math.ceil(_BINS * (end - start) / len(x)))
        edges += [start + (end - start) * n // bins for n in range(1, bins + 1)]
    return _means(x, y, edges), after


def _means(x: Floats, y: Floats, edges: Sequence[int]) -> tuple[Floats, Floats, Floats, Floats]:
    bins = list(pairwise(edges))
    parts = [y[start:end] for start, end in bins]
    middle = [math.fsum(x[start:end]) / (end - start) for start, end in bins]
    mean = [math.fsum(part) / len(part) for part in parts]
    return middle, [min(part) for part in parts], mean, [max(part) for part in parts]


def gaps_in(times_s: Floats) -> list[int]:
    """Places of readings that came so long after the one before that nobody knows what was between: what
    integrals leave out, no line is drawn across."""
    return [n for n, (a, b) in enumerate(pairwise(times_s), start=1) if b - a > LONGEST_GAP_S]


def _series(samples: Sequence[Sample], sensor: str, unit: float = 1.0) -> list[tuple[float, float]]:
    return [
        (sample.at_s, sample.values[sensor] / unit)
        for sample in samples
        if sensor in sample.values and math.isfinite(sample.values[sensor])
    ]


def _over_time(
    name: str, series: dict[str, list[tuple[float, float]]], unit: str, peak_text: Callable[[float], str]
) -> str | None:
    """Series over the run's minutes or hours, none of them across a gap in its readings; `peak_text` words
    the largest value for the description."""
    drawn = {label: points for label, points in series.items() if points}
    if not drawn:
        return None
    end = max(points[-1][0] for points in drawn.values())
    scale, time_unit = (60.0, "minutes") if end < 3 * 3600 else (3600.0, "hours")
    said = []
    canvas = Canvas(name)
    for colour, dotted, (label, points) in zip(
        (ACCENT, MUTED, WARN, MUTED), (False, False, False, True), drawn.items(), strict=False
    ):
        (x, low, mean, high), gaps = binned_apart(
            [at / scale for at, _ in points],
            [value for _, value in points],
            gaps_in([at for at, _ in points]),
        )
        if len(points) > MOST_POINTS:
            canvas.between(x, low, high, colour, opacity=0.16, gaps=gaps)
        canvas.line(x, mean, colour, width=1.4, dotted=dotted, gaps=gaps, label=label)
        said.append(f"{label} at most {peak_text(max(value for _, value in points))}")
    canvas.y.hold((0.0,))
    canvas.y.low = min(0.0, *(value for points in drawn.values() for _, value in points))
    canvas.x.low = 0.0
    canvas.x_name, canvas.y_name = f"{time_unit} since the start", unit
    return canvas.svg(f"Over {duration(end)}: {'; '.join(said)}.")


def _steps_axis(canvas: Canvas, first: int, last: int) -> None:
    """Whole steps only, and room for at least a few where there is just one."""
    pad = max(0.6, 0.02 * (last - first))
    canvas.x.low, canvas.x.high = first - pad, max(last, first + 4) + pad
    canvas.x.whole = True
    canvas.x_name = "step"


def _loss_words(steps: Sequence[tuple[int, float]], held_out: Sequence[Evaluation]) -> str:
    said = []
    if steps:
        (first, start), (last, end) = steps[0], steps[-1]
        said.append(f"Training loss from {start:.3f} at step {first} to {end:.3f} at {last}.")
    if held_out:
        best = min(held_out, key=lambda e: e.loss)
        said.append(f"Evaluation loss from {held_out[0].loss:.3f}, best {best.loss:.3f} at step {best.step}.")
    return " ".join(said)
