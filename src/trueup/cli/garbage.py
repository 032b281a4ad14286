"""No search for garbage in commands that end at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """As a context or a decorator. Importing makes next to no garbage and reading records little, all of
    which goes when the command ends; to look for it takes a tenth of such a command's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
