"""What a command did, and what a refusal must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str


Main = Callable[..., Done]


def refused(done: Done, code: int, *parts: str) -> None:
    """It ended with this code, in words that hold all `parts`, with nothing on stdout and no traceback."""
    assert done.code == code, done
    assert "Traceback" not in done.err
    for part in parts:
        assert part in done.err, done.err
    assert done.out == ""


def files_of(folder: Path) -> set[str]:
    """Every file below a folder, by its path from there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
