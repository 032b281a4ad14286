"""The gap between what was foretold and what was measured: of the run as it was, signed, with its cause."""

from __future__ import annotations

import pytest
from prediction_samples import calibrated, calibration, datasheet, foretold_event, job
from run_records import make_record, make_step

from trueup.analysis.measure import summarize
from trueup.analysis.residual import COMPARED, Gap, GapRow, gap_of, stored_prediction
from trueup.schema import Event, Measurement, Prediction


def rows(gap: Gap) -> dict[str, GapRow]:
    return {row.name: row for row in gap.rows}


def with_lines(**values: float) -> Prediction:
    one = calibrated()
    lines = dict(one.lines)
    for name, value in values.items():
        lines[name] = lines[name].model_copy(
            update={"value": value, "kind": "predicted", "method": "set here", "reason": None}
        )
    return one.model_copy(update={"lines": lines})


def test_a_run_without_a_prediction_says_so() -> None:
    gap = gap_of(make_record())
    assert gap.rows == ()
    assert "no prediction was made before this run" in (gap.note or "")


def test_every_line_that_can_be_foretold_is_there() -> None:
    gap = gap_of(make_record(events=[foretold_event(calibrated())]))
    assert [row.name for row in gap.rows] == list(COMPARED)


def test_the_difference_is_measured_less_predicted() -> None:
    steps = [make_step(n, step_s=2.0, useful_tokens=512) for n in range(1, 6)]
    gap = gap_of(make_record(steps=steps, events=[foretold_event(with_lines(step_s=1.6, compute_s=1.6))]))
    row = rows(gap)["step_s"]
    assert row.difference == pytest.approx(0.4)
    assert row.share == pytest.approx(0.25)


def test_the_largest_difference_over_the_run_is_the_cause() -> None:
    steps = [make_step(n, step_s=2.0, useful_tokens=512, data_wait_s=0.5) for n in range(1, 11)]
    foretold = with_lines(compute_s=1.9, padding_s=0.0, data_wait_s=0.01, communication_s=0.0)
    gap = gap_of(make_record(steps=steps, events=[foretold_event(foretold)]))
    assert "data wait holds 83% of the difference: 4.9 s more than foretold over 10 steps" in (
        gap.cause or ""
    )


def test_steps_beside_which_something_else_happened_are_left_out() -> None:
    steps = [make_step(n, step_s=2.0) for n in range(1, 6)]
    steps.append(make_step(6, step_s=60.0, labels=("after_checkpoint",)))
    gap = gap_of(make_record(steps=steps, events=[foretold_event(calibrated())]))
    assert rows(gap)["step_s"].measured.value == pytest.approx(2.0)
    assert gap.steps == 5


def test_steps_of_a_new_shape_count_since_they_are_foretold() -> None:
    """A mean step of the plan meets new shapes, too: what they take is in the prediction."""
    steps = [make_step(1, step_s=4.0, labels=("first_shape",)), make_step(2, step_s=2.0)]
    gap = gap_of(make_record(steps=steps, events=[foretold_event(calibrated())]))
    assert rows(gap)["step_s"].measured.value == pytest.approx(3.0)


def test_what_the_first_process_foretold_counts_not_what_a_later_one_did() -> None:
    events = [foretold_event(with_lines(step_s=1.0)), foretold_event(with_lines(step_s=9.0))]
    assert rows(gap_of(make_record(events=events)))["step_s"].predicted.value == 1.0


def test_a_calibrated_prediction_goes_before_the_datasheets() -> None:
    record = make_record(events=[foretold_event(datasheet(), calibrated())])
    found = stored_prediction(record)
    assert found is not None
    assert found.basis == "calibrated"


def test_a_datasheets_step_goes_before_a_calibration_that_has_none() -> None:
    without = calibrated(of=calibration(rates={}))
    found = stored_prediction(make_record(events=[foretold_event(without, datasheet())]))
    assert found is not None
    assert found.basis == "datasheet"


def test_what_was_not_measured_has_no_difference() -> None:
    row = rows(gap_of(make_record(events=[foretold_event(calibrated())])))["power_w"]
    assert row.difference is None
    assert row.measured.value is None


@pytest.mark.parametrize("data", [{}, {"predictions": "none"}, {"predictions": [{"basis": "stars"}]}])
def test_a_prediction_that_cannot_be_read_is_none(data: dict[str, object]) -> None:
    event = Event(at_s=1.0, kind="prediction", message="", data=data)
    assert gap_of(make_record(events=[event])).rows == ()


def test_a_run_that_did_no_step_has_nothing_to_compare() -> None:
    gap = gap_of(make_record(steps=[], events=[foretold_event(calibrated())]))
    assert "no training step" in (gap.note or "")
    assert gap.cause is None


def test_a_runs_measurements_have_its_foretold_step_and_the_residual() -> None:
    steps = [make_step(n, step_s=2.0) for n in range(1, 6)]
    found, _ = summarize(make_record(steps=steps, events=[foretold_event(with_lines(step_s=1.6))]))
    assert found["predicted_step_s"].value == 1.6
    assert found["predicted_step_s"].kind == "predicted"
    assert found["predicted_step_residual_share"].value == pytest.approx(0.25)


def test_without_a_prediction_the_residual_says_why() -> None:
    found, _ = summarize(make_record())
    assert "no prediction was made" in (found["predicted_step_residual_share"].reason or "")


def test_the_parts_of_the_measured_step_add_up() -> None:
    found = rows(gap_of(make_record(events=[foretold_event(calibrated(job()))])))
    parts: list[Measurement] = [
        found[name].measured for name in ("compute_s", "padding_s", "communication_s")
    ]
    assert sum(one.value or 0.0 for one in parts) == pytest.approx(found["step_s"].measured.value)
