"""A session on the tiny model, or a whole run, in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from trueup.device import open_device
from trueup.recipe import load_recipe
from trueup.schema import Calibration, Price
from trueup.telemetry import MemorySink, Timeline, process_origin
from trueup.train.interruption import Interruption
from trueup.train.resume import Resume
from trueup.train.run import Outcome, execute
from trueup.train.session import Places, Session, open_session
from trueup.train.world import World

OpenSession = Callable[..., Session]
Run = Callable[..., tuple[Outcome, MemorySink]]


@pytest.fixture(autouse=True)
def short_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the best matmul is matters to no test here; looking for it takes a second of each session."""
    monkeypatch.setattr("trueup.train.session.CEILING_BUDGET_S", 0.02)
    monkeypatch.setattr("trueup.train.session.BUSY_NEIGHBOURS", 1.0)  # other tests run beside this one


@pytest.fixture
def open_tiny(home: Path, recipe_file: Path) -> Iterator[OpenSession]:
    """`open_tiny("key=value", ..., wide=True)`: a session; `wide` makes the model fp64 throughout."""

    def opened(*overrides: str, wide: bool = False) -> Session:
        recipe = load_recipe(recipe_file, ["precision.policy=fp32", *overrides]).recipe
        session = open_session(
            recipe,
            world=World(),
            device=open_device("cpu", threads=1),
            timeline=Timeline(MemorySink(), process_origin()[0]),
            price=None,
            places=Places(home, home / "data", home / "run"),
            say=lambda text: None,
            interruption=Interruption(),
        )
        if wide:
            from trueup.model.reference import widen

            session = replace(session, model=widen(session.model))
        return session

    return opened


@pytest.fixture
def run_tiny(home: Path, recipe_file: Path) -> Run:
    def run(
        *overrides: str,
        strict_shapes: bool = False,
        calibration: Calibration | None = None,
        resume: Resume | None = None,
        stream: TextIO | None = None,
    ) -> tuple[Outcome, MemorySink]:
        sink = MemorySink()
        if resume is None:
            shutil.rmtree(home / "run", ignore_errors=True)
            (home / "run").mkdir()
        outcome = execute(
            load_recipe(recipe_file, ["precision.policy=fp32", *overrides]),
            run_id="cafe0001",
            name="tiny",
            price=Price(usd_per_hour=3.6, source="a test"),
            world=World(),
            device=open_device("cpu", threads=1),
            places=Places(home, home / "data", home / "run"),
            sink=sink,
            stream=stream,
            calibration=calibration,
            strict_shapes=strict_shapes,
            resume=resume,
        )
        return outcome, sink

    return run
