"""Values of options that typer cannot check: numbers from 1, and names of which some library has the list."""

from __future__ import annotations

import difflib

from trueup.schema import InputError


def positive(option: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{option} {value}: at least 1 is expected")
    return value


def one_of(option: str, value: str, choices: tuple[str, ...]) -> str:
    """In lower case. InputError, with the nearest, for another."""
    asked = value.strip().lower()
    if asked not in choices:
        close = difflib.get_close_matches(asked, choices, n=1, cutoff=0.3)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"{option} {value}: one of {', '.join(choices)} is expected{hint}")
    return asked
