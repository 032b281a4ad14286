"""A session on the demo's recipe, warmed up, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repeat import DEMO, HOME

if TYPE_CHECKING:
    from trueup.train.session import Session

# Nothing ends a benchmark but its own count.
SETTINGS = ("train.stop.usd=null", "evaluate.every=null", "evaluate.max_tokens=1", "platform.device=cpu")


def warmed_session(settings: list[str]) -> Session:
    """A session as a run has it after its warm-up, in this process."""
    from trueup.recipe import load_recipe
    from trueup.telemetry import MemorySink, Timeline, process_origin
    from trueup.train.interruption import Interruption
    from trueup.train.session import Places, find_device, open_session
    from trueup.train.warm_up import warmed_up

    recipe = load_recipe(str(DEMO), [*SETTINGS, *settings]).recipe
    world, device = find_device(recipe)
    session = open_session(
        recipe,
        world=world,
        device=device,
        timeline=Timeline(MemorySink(), process_origin()[0]),
        price=None,
        places=Places(HOME, HOME / "data", HOME / "run"),
        say=print,
        interruption=Interruption(),
    )
    if session.plan.compile != "none":
        from torch._inductor import config

        config.cpp.enable_kernel_profile = True  # compiled kernels tell the profiler their names
    return warmed_up(session, print)
