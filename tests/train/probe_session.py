"""A session as a process of its own opens it: alone, or one of those that torchrun started."""

from __future__ import annotations

from pathlib import Path

from trueup.recipe import load_recipe
from trueup.telemetry import MemorySink, Timeline, process_origin
from trueup.train.interruption import Interruption
from trueup.train.session import Places, Session, find_device, open_session


def opened(recipe_path: str, home: str, *overrides: str) -> tuple[Session, MemorySink]:
    """This process's session in fp32, and where what it tells goes."""
    recipe = load_recipe(recipe_path, ["precision.policy=fp32", *overrides]).recipe
    world, device = find_device(recipe)
    sink = MemorySink()
    session = open_session(
        recipe,
        world=world,
        device=device,
        timeline=Timeline(sink, process_origin()[0]),
        price=None,
        places=Places(Path(home), Path(home) / "data", Path(home) / "run"),
        say=lambda text: None,
        interruption=Interruption(),
    )
    return session, sink
