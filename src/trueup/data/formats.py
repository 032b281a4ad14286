"""The shapes a row may have, how each is recognised, and how it becomes a conversation.

A format is one entry of FORMATS. To add one: a name, a test of a row's keys, and a reader that returns the
turns or raises RowError with the reason to count the row under. The order of FORMATS decides where a row fits
two.

| format            | keys                                                                         |
|-------------------|------------------------------------------------------------------------------|
| messages          | `messages`: a list of {role: system, user or assistant; content: text}       |
| alpaca            | `instruction`, optional `input`; answer in `output`, or `response` (an alias) |
| prompt-completion | `prompt` and `completion`, both text                                         |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueup.schema import InputError

from .records import ROLES, RowError, Turn, excerpt

Row = Mapping[str, Any]

DETECT_ROWS = 50  # rows looked at before a format is chosen


@dataclass(frozen=True)
class Format:
    name: str
    expected: str
    fits: Callable[[Row], bool]
    read: Callable[[Row], list[Turn]]


@dataclass(frozen=True)
class Detection:
    format: Format
    evidence: str


def text_of(row: Row, key: str) -> str:
    """The text under a key; a missing key or another type drops the row."""
    if key not in row:
        raise RowError("missing_field", f"no '{key}' in a row with {_keys(row)}")
    value = row[key]
    if not isinstance(value, str):
        raise RowError("wrong_type", f"'{key}' is {type(value).__name__}, not text: {excerpt(repr(value))}")
    return value


def read_messages(row: Row) -> list[Turn]:
    if "messages" not in row:
        raise RowError("missing_field", f"no 'messages' in a row with {_keys(row)}")
    messages = row["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise RowError("wrong_type", f"'messages' is not a list of objects: {excerpt(repr(messages))}")
    return [Turn(text_of(message, "role"), text_of(message, "content")) for message in messages]


def read_alpaca(row: Row) -> list[Turn]:
    question = text_of(row, "instruction")
    if row.get("input") is not None:
        extra = text_of(row, "input")
        question = f"{question}\n\n{extra}" if extra.strip() else question
    answer = text_of(row, "response" if "output" not in row and "response" in row else "output")
    return [Turn("user", question), Turn("assistant", answer)]


def read_prompt_completion(row: Row) -> list[Turn]:
    return [Turn("user", text_of(row, "prompt")), Turn("assistant", text_of(row, "completion"))]


FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        Format("messages", "'messages'", lambda row: "messages" in row, read_messages),
        Format(
            "alpaca",
            "'instruction' with 'output' or 'response'",
            lambda row: "instruction" in row and ("output" in row or "response" in row),
            read_alpaca,
        ),
        Format(
            "prompt-completion",
            "'prompt' and 'completion'",
            lambda row: "prompt" in row and "completion" in row,
            read_prompt_completion,
        ),
    )
}


def detect(rows: Sequence[Any], path: str) -> Detection:
    """The format most of these first rows fit, and how many did.

    Raises InputError when no row fits any format, naming the keys that were found.
    """
    objects = [row for row in rows if isinstance(row, dict)]
    votes: Counter[str] = Counter()
    for row in objects:
        votes.update(next(([item.name] for item in FORMATS.values() if item.fits(row)), []))
    if not votes:
        found = (
            _keys(objects[0])
            if objects
            else f"no objects but {type(rows[0]).__name__ if rows else 'nothing'}"
        )
        known = "; ".join(f"{item.name}: {item.expected}" for item in FORMATS.values())
        raise InputError(
            f"{path}: no known format; the first rows have {found}. Known: {known}. "
            "Rename the fields, or set data.format"
        )
    name, count = votes.most_common(1)[0]
    chosen = FORMATS[name]
    evidence = f"{count} of the first {len(rows)} rows have {chosen.expected}"
    others = [f"{n} look like {other}" for other, n in votes.most_common()[1:]]
    return Detection(chosen, "; ".join([evidence, *others]))


def conversation(turns: list[Turn]) -> tuple[tuple[Turn, ...], int]:
    """The turns up to the last answer, and how many after it were left off (nothing there carries loss).

    Raises RowError: unknown_role, no_answer, empty_answer (any assistant turn without text), invalid_text
    (half of a surrogate pair, which no encoder accepts).
    """
    for turn in turns:
        if turn.role not in ROLES:
            raise RowError("unknown_role", f"role '{excerpt(turn.role)}'; known are {', '.join(ROLES)}")
        try:
            turn.content.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RowError("invalid_text", f"{turn.role} turn is not valid Unicode: {error.reason}") from None
    last = max((i for i, turn in enumerate(turns) if turn.role == "assistant"), default=None)
    if last is None:
        raise RowError("no_answer", f"no assistant turn among {len(turns)} turns")
    kept = tuple(turns[: last + 1])
    if any(turn.role == "assistant" and not turn.content.strip() for turn in kept):
        question = next((turn.content for turn in kept if turn.role == "user"), "")
        raise RowError("empty_answer", f"an answer without text, after: {excerpt(question)}")
    return kept, len(turns) - len(kept)


def _keys(row: Row) -> str:
    return f"keys {', '.join(repr(str(key)) for key in list(row)[:8])}" if row else "no keys"
