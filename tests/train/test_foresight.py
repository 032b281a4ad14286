"""A run is foretold before its first step, and what was foretold stays with it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from trueup.analysis.predict_terms import TERMS
from trueup.analysis.residual import gap_of
from trueup.checkpoint.folder import checkpoints_of, newest_whole
from trueup.device import open_device
from trueup.schema import Calibration, Measurement, ProductTime, StepRates
from trueup.telemetry import MemorySink
from trueup.train import foresight
from trueup.train.foresight import foretell, predicted
from trueup.train.resume import Resume
from trueup.train.run import Outcome
from trueup.train.session import Session


@pytest.fixture
def calibration() -> Calibration:
    device = open_device("cpu", threads=1)
    times = tuple(
        ProductTime(m=m, k=k, n=n, seconds=1e-6 + 1e-11 * m * k * n)
        for m, k, n in product((16, 1024), repeat=3)
    )
    rates = StepRates(
        attention="example",
        products=times,
        term_s=dict.fromkeys(TERMS, 1e-9) | {"products": 1.0, "steps": 1e-3},
        probes=20,
        error_median=0.1,
        error_worst=0.2,
    )
    return Calibration(
        name="here",
        device_kind="cpu",
        device_name=device.name,
        threads=1,
        trueup_version="0",
        torch_version="2",
        made_at="2026-11-29T00:00:00Z",
        seconds=1.0,
        measurements={
            "base_host_bytes": Measurement(value=6e8, unit="bytes", kind="measured", method="an example")
        },
        rates={"fp32": rates},
    )


def test_an_open_session_is_foretold_from_its_plan(
    open_tiny: Callable[..., Session], calibration: Calibration
) -> None:
    session = open_tiny("compile.mode=none")
    one = next(found for found in predicted(session, calibration) if found.basis == "calibrated")
    assert one.lines["step_s"].value is not None
    assert one.lines["step_s"].value > 1e-3
    assert one.lines["peak_memory_bytes"].value is not None
    assert one.lines["compile_s"].value == 0


def told(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Events of the session from now on."""
    events: list[tuple[str, str]] = []
    monkeypatch.setattr(session.timeline, "event", lambda kind, text, **_: events.append((kind, text)))
    return events


def test_without_a_calibration_a_cpu_is_not_foretold(
    open_tiny: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_tiny("compile.mode=none")
    assert all(one.lines["step_s"].value is None for one in predicted(session, None))
    events = told(session, monkeypatch)
    monkeypatch.setattr(foresight, "planned_work", lambda *_, **__: pytest.fail("counted for nothing"))
    foretell(session, None)
    assert events == []


def test_what_goes_wrong_in_foretelling_costs_no_run(
    open_tiny: Callable[..., Session], calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_tiny("compile.mode=none")

    def fail(*_: object) -> list[object]:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(foresight, "predicted", fail)
    events = told(session, monkeypatch)
    foretell(session, calibration)
    assert events == [("note", "the run was not foretold: a mistake of ours")]


def test_a_finished_run_is_held_against_what_was_foretold(
    run_tiny: Callable[..., tuple[Outcome, MemorySink]], calibration: Calibration
) -> None:
    outcome, _ = run_tiny("compile.mode=none", calibration=calibration)
    gap = gap_of(outcome.record)
    rows = {row.name: row for row in gap.rows}
    assert gap.basis == "calibrated"
    assert rows["step_s"].difference is not None
    assert rows["peak_memory_bytes"].difference is not None
    assert outcome.measurements["predicted_step_s"].value == rows["step_s"].predicted.value
    assert outcome.measurements["predicted_step_residual_share"].value == pytest.approx(rows["step_s"].share)


def test_a_run_that_goes_on_is_not_foretold(
    run_tiny: Callable[..., tuple[Outcome, MemorySink]],
    home: Path,
    calibration: Calibration,
) -> None:
    """It was calibrated since: such a prediction would know what came of the first steps."""
    short = ("compile.mode=none", "train.max_steps=2")
    first, _ = run_tiny(*short)
    found = newest_whole(checkpoints_of(home / "run"), print)
    assert found is not None
    resume = Resume(*found, first.record, ())
    outcome, _ = run_tiny(*short, calibration=calibration, resume=resume)
    assert [event.kind for event in outcome.record.events].count("resume") == 1
    assert outcome.measurements["predicted_step_s"].value is None


def test_foretelling_changes_nothing_that_is_trained(
    run_tiny: Callable[..., tuple[Outcome, MemorySink]], calibration: Calibration
) -> None:
    """Neither the order of the data nor what dropout leaves out."""
    short = ("compile.mode=none", "train.max_steps=3", "tune.dropout=0.2")
    told, untold = (run_tiny(*short, calibration=one)[1].steps for one in (calibration, None))
    assert [(one.loss, one.grad_norm) for one in told] == [(one.loss, one.grad_norm) for one in untold]


def test_what_is_made_ready_grows_with_the_micro_batch() -> None:
    from trueup.model import attention

    assert 0 < attention.ready_products(64) < attention.ready_products(256) < attention.ready_products(512)
