"""A session on the tiny model, opened in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from trueup.device import open_device
from trueup.recipe import load_recipe
from trueup.telemetry import MemorySink, Timeline, process_origin
from trueup.train.interruption import Interruption
from trueup.train.session import Places, Session, open_session
from trueup.train.world import World

OpenSession = Callable[..., Session]


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
            places=Places(home, home / "data", home / "weights"),
            say=lambda text: None,
            interruption=Interruption(),
        )
        if wide:
            from trueup.model.reference import widen

            session = replace(session, model=widen(session.model))
        return session

    return opened
