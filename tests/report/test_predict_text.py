"""A prediction and the gap as people read them: both columns, signs, reasons, data never as markup."""

from __future__ import annotations

import io
from typing import Any

from report_samples import make_record
from rich.console import Console, RenderableType

from trueup.analysis.memory_plan import Fit
from trueup.analysis.predict_lines import LINES
from trueup.analysis.residual import EVENT, gap_of, prediction_event
from trueup.report.html import render
from trueup.report.predict import LINE_LABELS, fit_text, gap_text, predict_text
from trueup.report.terminal import run_text
from trueup.schema import Event, Measurement, Prediction, RunRecord, unavailable

KNOWN = {
    "step_s": 1.5,
    "compute_s": 1.4,
    "padding_s": 0.1,
    "communication_s": 0.0,
    "peak_memory_bytes": 1.5e9,
}


class About:
    title = "135 M parameters [red]on a CPU[/red]"
    lines = ("1 micro-batch of 1 x 512 a step",)


def prediction(basis: str = "calibrated", **known: float) -> Prediction:
    lines = {name: unavailable(unit, "no [red]datasheet[/red] says") for name, unit in LINES.items()}
    for name, value in (known or KNOWN).items():
        lines[name] = Measurement(value=value, unit=LINES[name], kind="predicted", method=f"how {name}")
    return Prediction(basis=basis, platform="some [b]CPU[/b]", lines=lines)  # type: ignore[arg-type]


def foretold(*predictions: Prediction, **changes: Any) -> RunRecord:
    record = make_record(**changes)
    event = Event(at_s=9.0, kind=EVENT, message="foretold", data=prediction_event(list(predictions)))
    return record.model_copy(update={"events": (*record.events, event)})


def shown(renderable: RenderableType, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_every_line_has_a_label() -> None:
    assert set(LINE_LABELS) == set(LINES)


def test_both_predictions_stand_side_by_side() -> None:
    text = shown(predict_text([prediction("datasheet", step_s=0.25), prediction()], about=About()))
    line = next(line for line in text.splitlines() if line.startswith("step "))
    assert "250 ms" in line
    assert "1.5 s" in line
    assert "how step_s" in line


def test_what_has_no_figure_says_why_once() -> None:
    text = shown(predict_text([prediction("datasheet", step_s=0.25)], about=About()), width=2000)
    assert text.count("no [red]datasheet[/red] says") == 1
    assert "datasheet, no compute, padding" in text


def test_the_gap_shows_signs_and_the_cause() -> None:
    text = shown(gap_text(gap_of(foretold(prediction()))))
    assert "predicted" in text
    assert "+" in text or "−" in text
    assert "of the difference" in text
    assert "some [b]CPU[/b]" in text


def test_a_run_that_was_not_foretold_says_so_in_the_terminal() -> None:
    assert "no prediction was made before this run" in shown(run_text(make_record()))


def test_the_gap_is_on_the_page_of_every_run() -> None:
    page = render([foretold(prediction()), make_record()])
    assert page.count("<h3>Foretold and measured</h3>") == 2
    assert "some [b]CPU[/b]" in page
    assert "no prediction was made before this run" in page


def test_the_page_does_not_repeat_the_predictions_record_among_the_events() -> None:
    assert "predictions.0" not in render([foretold(prediction())])


def test_what_fits_shows_its_arithmetic() -> None:
    fit = Fit(
        micro_batch_rows=12,
        width=512,
        longest_row=None,
        as_asked=True,
        asked_bytes=1e9,
        state_bytes=1e9,
        limit_bytes=2e9,
        why="weights take so much",
    )
    text = shown(fit_text(fit))
    assert "12 rows of 512 tokens" in text
    assert "longest single row: none" in text
    assert "weights take so much" in text
