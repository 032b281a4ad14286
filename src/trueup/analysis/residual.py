"""What was foretold against what was measured: the gap between simulation and power-on, line by line.

The prediction is the one made before the run's first step and stored with it, as an event: what would be
foretold today, with what was learnt since, is no prediction.
"""

from __future__ import annotations

from math import fsum
from typing import Any

from trueup.schema import Event, Frozen, Measurement, Prediction, RunRecord, Step, unavailable

from .names import figure, missing
from .predict_lines import LINES
from .totals import steps_of

EVENT = "prediction"
NO_PREDICTION = (
    "no prediction was made before this run: run `trueup calibrate` once on its machine, and the next ones "
    "are foretold"
)
PER_STEP = ("compute_s", "padding_s", "communication_s", "data_wait_s")  # these and compiling add up
FORETOLD = {
    "first_shape"
}  # labels of what a prediction has in it: a mean step of the plan meets new sizes, too
COMPARED = ("step_s", *PER_STEP, "compile_s", "step_p99_s", "peak_memory_bytes", "power_w")


class GapRow(Frozen):
    """One line. `difference`: measured less predicted; `of_run_s` the same over all steps of the run, of the
    lines that add up to its training and compiling."""

    name: str
    unit: str
    predicted: Measurement
    measured: Measurement
    difference: float | None = None
    share: float | None = None  # of what was predicted
    of_run_s: float | None = None


class Gap(Frozen):
    """`cause` is the line that holds most of the difference, in words; `note` says why there are no rows."""

    basis: str | None = None
    platform: str | None = None
    steps: int = 0
    rows: tuple[GapRow, ...] = ()
    cause: str | None = None
    note: str | None = None


def prediction_event(predictions: list[Prediction]) -> dict[str, Any]:
    """The data of the event that keeps them."""
    return {
        "predictions": [one.model_dump(mode="json", exclude_defaults=True) for one in predictions],
    }


def stored_prediction(record: RunRecord) -> Prediction | None:
    """The one made before the run's first step that tells most: from calibrated parts, else by datasheet."""
    event = next((event for event in record.events if event.kind == EVENT), None)
    found = [] if event is None else _read(event)
    known = [one for one in found if any(line.value is not None for line in one.lines.values())]
    known.sort(key=lambda one: (one.lines["step_s"].value is None, one.basis != "calibrated"))
    return known[0] if known else None


def gap_of(record: RunRecord) -> Gap:
    """The table of a run: every line that can be foretold, with what was measured."""
    foretold = stored_prediction(record)
    if foretold is None:
        return Gap(note=NO_PREDICTION)
    steps = _undisturbed(record) or steps_of(record)[0]
    rows = [_row(name, foretold, record, steps) for name in COMPARED]
    return Gap(
        basis=foretold.basis,
        platform=foretold.platform,
        steps=len(steps),
        rows=tuple(rows),
        cause=_cause(rows, len(steps)),
        note=None if steps else "the run did no training step: nothing to compare with",
    )


def of_prediction(record: RunRecord) -> dict[str, Measurement]:
    """The two measurements of a run: its foretold step time, and how far the measured one was from it."""
    foretold = stored_prediction(record)
    names = ("predicted_step_s", "predicted_step_residual_share")
    if foretold is None:
        return {name: missing(name, NO_PREDICTION) for name in names}
    step = foretold.lines["step_s"]
    if step.value is None:
        return {name: missing(name, step.reason or "step time was not foretold") for name in names}
    how = f"{foretold.basis} parts of {foretold.platform}, before the first step"
    found = {names[0]: figure(names[0], step.value, "predicted", how)}
    steps = _undisturbed(record)
    if not steps:
        return found | {names[1]: missing(names[1], "the run did no step with nothing else in it")}
    measured_s = fsum(one.step_s + one.communication_s for one in steps) / len(steps)
    text = "mean of the steps with nothing else in them, over the foretold one, less one"
    return found | {names[1]: figure(names[1], measured_s / step.value - 1, "derived", text, n=len(steps))}


def _undisturbed(record: RunRecord) -> list[Step]:
    """Steps that stand, in which nothing happened that was not foretold."""
    return [step for step in steps_of(record)[0] if not set(step.labels) - FORETOLD]


def _read(event: Event) -> list[Prediction]:
    """Predictions as stored; none where a later trueup wrote what this one cannot read."""
    try:
        found = [Prediction.model_validate(one) for one in event.data.get("predictions", [])]
    except (ValueError, TypeError, AttributeError):
        return []
    return [one for one in found if set(COMPARED) <= set(one.lines)]


def _row(name: str, foretold: Prediction, record: RunRecord, steps: list[Step]) -> GapRow:
    predicted = foretold.lines[name]
    measured = _measured(name, record, steps)
    row = GapRow(name=name, unit=LINES[name], predicted=predicted, measured=measured)
    if predicted.value is None or measured.value is None:
        return row
    difference = measured.value - predicted.value
    times = len(steps) if name in PER_STEP else 1 if name == "compile_s" else None
    return row.model_copy(
        update={
            "difference": difference,
            "share": difference / predicted.value if predicted.value else None,
            "of_run_s": None if times is None else difference * times,
        }
    )


def _measured(name: str, record: RunRecord, steps: list[Step]) -> Measurement:
    if name in ("step_s", *PER_STEP):
        return _of_steps(name, steps)
    if name == "peak_memory_bytes":
        device = record.measurements.get("peak_device_bytes")
        on_device = device is not None and device.value is not None
        return _of_record(record, "peak_device_bytes" if on_device else "peak_host_bytes", "bytes")
    stored = {"compile_s": "compile_s", "step_p99_s": "step_p99_s", "power_w": "power_mean_w"}[name]
    return _of_record(record, stored, LINES[name])


def _of_steps(name: str, steps: list[Step]) -> Measurement:
    """Of a mean step. Padding takes its share of the processed tokens, as on the bill."""
    if not steps:
        return unavailable("s", "the run did no training step")
    step_s, talk_s, wait_s = (
        fsum(getattr(one, key) for one in steps) / len(steps)
        for key in ("step_s", "communication_s", "data_wait_s")
    )
    processed = sum(one.processed_tokens for one in steps)
    padding = 1 - sum(one.useful_tokens for one in steps) / processed if processed else 0.0
    value = {
        "step_s": step_s + talk_s,
        "compute_s": (1 - padding) * step_s,
        "padding_s": padding * step_s,
        "communication_s": talk_s,
        "data_wait_s": wait_s,
    }[name]
    how = f"mean of {len(steps)} steps with nothing else in them"
    return Measurement(value=value, unit="s", kind="measured", method=how, n=len(steps))


def _of_record(record: RunRecord, name: str, unit: str) -> Measurement:
    found = record.measurements.get(name)
    return found or unavailable(unit, f"{name} was not recorded")


def _cause(rows: list[GapRow], steps: int) -> str | None:
    """Which line holds most of what the run took more or less than foretold."""
    differing = [row for row in rows if row.of_run_s]
    whole = fsum(abs(row.of_run_s or 0.0) for row in differing)
    if not differing or whole <= 0:
        return None
    largest = max(differing, key=lambda row: abs(row.of_run_s or 0.0))
    seconds = largest.of_run_s or 0.0
    words = largest.name.removesuffix("_s").replace("_", " ")
    more = "more" if seconds > 0 else "less"
    return (
        f"{words} holds {abs(seconds) / whole:.0%} of the difference: {abs(seconds):.3g} s {more} than "
        f"foretold over {steps} steps"
    )
