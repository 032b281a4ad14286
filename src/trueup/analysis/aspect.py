"""Something that runs must agree in to be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from trueup.schema import RunHeader


class Aspect(NamedTuple):
    """What it is in words, its value of a run, and the recipe's keys that decide it."""

    meaning: str
    value: Callable[[RunHeader], Any]
    settings: tuple[str, ...]
