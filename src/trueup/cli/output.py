"""What goes where: one JSON document or the answer on stdout, everything else for humans on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from trueup.schema import Frozen

JSON_OPTION = typer.Option(False, "--json", help="Print exactly one JSON document on stdout.")


def print_json(document: Any) -> None:
    """Print one JSON document; a value JSON has no word for is a bug and raises."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(text + "\n")


def print_json_list(records: Iterable[Frozen]) -> None:
    """Print records as one JSON list. pydantic writes ten thousand of them in a tenth of json's time."""
    items = ",\n".join(record.model_dump_json(indent=2) for record in records)
    sys.stdout.write(f"[\n{items}\n]\n")


def say(text: str) -> None:
    """A line for the human at the terminal."""
    print(text, file=sys.stderr)


@contextmanager
def stdout_reserved() -> Iterator[None]:
    """While the work goes on, send everything that libraries print, C code included, to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    python_stdout: TextIO = sys.stdout
    try:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        yield
    finally:
        sys.stdout = python_stdout
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


def print_rich(renderable: Any) -> None:
    """Print a table or text from `trueup.report` on stdout, plain where stdout is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    console.print(renderable)
