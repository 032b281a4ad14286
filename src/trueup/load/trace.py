"""A recorded trace of requests: when each came and how long its prompt and its answer were.

The columns are those of the Azure LLM inference traces (Patel et al. 2024, "Splitwise"): TIMESTAMP,
ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trueup.schema import InputError
from trueup.schema.counting import counted

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_ROWS = 1_000_000
MOST_TOKENS = 100_000_000  # of one request: beyond it a number is a mistake
LONGEST_CELL = 1000  # characters; an instant has some thirty


@dataclass(frozen=True)
class TraceRow:
    """One request: seconds since the trace's first, tokens of its prompt and of its answer."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Trace:
    """Rows in order of time. `digest` is of the file."""

    rows: tuple[TraceRow, ...]
    digest: str
    name: str


def read_trace(path: Path, first: int | None = None) -> Trace:
    """The trace of a CSV file, or its first rows. InputError, naming the line, for anything else."""
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"--trace {path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--trace {path}: cannot be read: {error}") from None
    rows: list[TraceRow] = []
    began: datetime | None = None
    lines = _cells(text, path)
    places = _columns(next(lines, []), path)
    for number, cells in enumerate(lines, start=2):
        if not cells:
            continue
        if len(rows) == (first or MOST_ROWS):
            break
        where = f"{path}:{number}"
        if len(cells) <= max(places):
            raise InputError(f"{where}: {len(cells)} columns; expected {', '.join(COLUMNS)}")
        at, prompt, output = (cells[place] for place in places)
        instant = _instant(at, where)
        began = began or instant
        at_s = (instant - began).total_seconds()
        if at_s < (rows[-1].at_s if rows else 0.0):
            raise InputError(f"{where}: {at} is before the request above it; a trace is in order of time")
        rows.append(TraceRow(at_s, _tokens(prompt, where), _tokens(output, where)))
    if not rows:
        raise InputError(f"--trace {path}: it holds no request")
    return Trace(tuple(rows), hashlib.sha256(raw).hexdigest(), path.name)


def length_scale(rows: Sequence[TraceRow], context: int, reserve: int) -> float:
    """The factor, 1 at most, by which all lengths are multiplied so that the longest request, prompt and
    answer together, fits a context of which `reserve` tokens are spoken for (a chat template)."""
    longest = max(row.prompt_tokens + row.output_tokens for row in rows)
    room = context - reserve
    if room < 2:
        tokens = counted(context, "token")
        raise InputError(f"a context of {tokens} leaves no room for a prompt and an answer")
    return min(1.0, room / longest)


def scaled(tokens: int, scale: float, least: int = 1) -> int:
    """A length times the scale, rounded down so that what fits goes on fitting, and at least `least`."""
    return max(least, int(tokens * scale))


def _cells(text: str, path: Path) -> Iterator[list[str]]:
    lines = csv.reader(text.splitlines())
    try:
        for cells in lines:
            # The csv module's own bound is the whole process's, and whoever reads data raises it.
            if max(map(len, cells), default=0) > LONGEST_CELL:
                raise InputError(f"{path}:{lines.line_num}: a cell of over {LONGEST_CELL} characters")
            yield cells
    except csv.Error as error:
        raise InputError(f"{path}:{lines.line_num}: no CSV: {error}") from None


def _columns(head: list[str], path: Path) -> tuple[int, int, int]:
    try:
        timestamp, prompt, output = (head.index(name) for name in COLUMNS)
    except ValueError:
        raise InputError(
            f"{path}:1: columns {', '.join(head)[:200] or 'none'}; a trace has {', '.join(COLUMNS)}"
        ) from None
    return timestamp, prompt, output


def _instant(text: str, where: str) -> datetime:
    """In UTC, which is also what an instant without an offset is taken for."""
    try:
        found = datetime.fromisoformat(text.strip())
        return found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {text!r} is no instant such as 2023-11-16 18:15:46.68") from None


def _tokens(text: str, where: str) -> int:
    try:
        found = int(text)
    except ValueError:
        raise InputError(f"{where}: {text!r} is no number of tokens") from None
    if not 0 <= found <= MOST_TOKENS:
        raise InputError(f"{where}: {found} tokens; expected 0 to {MOST_TOKENS}")
    return found
