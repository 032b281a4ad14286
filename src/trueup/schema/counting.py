"""Numbers of things in words."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """1 row, 2 rows, 1,234 rows; `several` where it is not `one` with an s."""
    return counted_as(f"{number:,}", one, several)


def counted_as(number: str, one: str, several: str | None = None) -> str:
    """The same of a number as it is written: 1 run, 1.5 runs."""
    return f"{number} {one if number == '1' else several or one + 's'}"
