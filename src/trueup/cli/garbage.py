"""No search for garbage in commands that end at once."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """As a context or a decorator. Importing makes next to no garbage and reading records little, all of
    which goes when the command ends; to look for it takes a tenth of such a command's time, and as much again
    at its end, when Python looks through all that there is."""
    enabled = gc.isenabled()
    gc.disable()
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect_from_now_on() -> None:
    """In a command that may run for days."""
    atexit.unregister(gc.freeze)
    gc.enable()
