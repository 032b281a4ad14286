"""Numbers of things in words."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """1 row, 2 rows, 1,234 rows; `several` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
