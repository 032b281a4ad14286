"""The shapes a row may have, how each is recognised, and how it becomes turns.

A format is one entry of FORMATS. To add one: a name, a test of a row's keys, and a reader that returns the
turns or raises RowError with the reason to count the row under. The order of FORMATS decides where a row fits
two. Other names of columns are mapped to these by `data.columns` (columns.py).

| format            | keys                                                                          |
|-------------------|-------------------------------------------------------------------------------|
| preference        | `chosen` and `rejected`; the question in `prompt` or the like, or in `chosen` |
| messages          | `messages`: a list of {role, content}                                         |
| sharegpt          | `conversations`: a list of {from, value}                                      |
| alpaca            | `instruction`, optional `input`; answer in `output`, or `response` (an alias) |
| prompt-completion | `prompt` and `completion`, each text or a list of messages                    |
| text              | `text`: plain text, for continued pre-training                                |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueup.schema import InputError

from .conversation import role_of
from .records import TEXT, RowError, Turn, excerpt

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
    """The text under a key; a missing key or another type drops the row. Numbers and objects are not written
    out as text: there is more than one way to, and only the owner of the data knows which is meant."""
    if key not in row:
        raise RowError("missing_field", f"no '{key}' in a row with {keys_of(row)}")
    value = row[key]
    if not isinstance(value, str):
        raise RowError("wrong_type", f"'{key}' is {type(value).__name__}, not text: {excerpt(repr(value))}")
    return value


def turns_of(value: Any, key: str, names: tuple[str, str] = ("role", "content")) -> list[Turn]:
    """The turns of a list of messages, or of the JSON text of one (as tables hold them). `names` are the keys
    of role and text; the other usual pair is taken where a message has that."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RowError("wrong_type", f"'{key}' is not JSON: {error}: {excerpt(value)}") from None
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise RowError("wrong_type", f"'{key}' is not a list of objects: {excerpt(repr(value))}")
    return [_turn(message, names) for message in value]


def _turn(message: Row, names: tuple[str, str]) -> Turn:
    if message.get("tool_calls") or message.get("function_call"):
        raise RowError("tool_call", "a turn that calls a tool; tool calls are not trained on")
    role, content = names
    if role not in message:
        role = next((key for key in ("role", "from") if key in message), role)
    if content not in message:
        content = next((key for key in ("content", "value") if key in message), content)
    speaker = role_of(text_of(message, role))
    if speaker == "assistant" and (message.get("weight") == 0 or message.get("train") is False):
        raise RowError(
            "unlearned_answer", "an answer marked not to be learned; all answers of a row would be"
        )
    parts = message.get(content)
    if isinstance(parts, list) and parts and all(_is_text_part(part) for part in parts):
        return Turn(speaker, "".join(part["text"] for part in parts))
    return Turn(speaker, text_of(message, content))


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _system(row: Row) -> list[Turn]:
    """The turn a `system` field makes; none where it is absent or blank."""
    if row.get("system") is None:
        return []
    text = text_of(row, "system")
    return [Turn("system", text)] if text.strip() else []


def _side(row: Row, key: str, role: str) -> list[Turn]:
    """One side of a pair: text spoken by `role`, a message, or a list of messages."""
    value = row.get(key)
    if isinstance(value, dict) and ("role" in value or "from" in value):
        value = [value]
    return turns_of(value, key) if isinstance(value, list) else [Turn(role, text_of(row, key))]


def _no_tools(row: Row) -> None:
    if row.get("tools") not in (None, "", [], "[]"):
        raise RowError("tool_call", "the row offers tools; tool calls are not trained on")


def read_messages(row: Row) -> list[Turn]:
    _no_tools(row)
    if "messages" not in row:
        raise RowError("missing_field", f"no 'messages' in a row with {keys_of(row)}")
    return [*_system(row), *turns_of(row["messages"], "messages")]


def read_sharegpt(row: Row) -> list[Turn]:
    _no_tools(row)
    key = "conversation" if "conversations" not in row and "conversation" in row else "conversations"
    if key not in row:
        raise RowError("missing_field", f"no 'conversations' in a row with {keys_of(row)}")
    return [*_system(row), *turns_of(row[key], key, ("from", "value"))]


def read_alpaca(row: Row) -> list[Turn]:
    turns = [*_system(row), *_history(row), Turn("user", _instruction(row))]
    return [*turns, Turn("assistant", text_of(row, _alpaca_answer(row)))]


def _alpaca_answer(row: Row) -> str:
    return "response" if "output" not in row and "response" in row else "output"


def _instruction(row: Row) -> str:
    question = text_of(row, "instruction")
    if row.get("input") is None:
        return question
    extra = text_of(row, "input")
    return f"{question}\n\n{extra}" if extra.strip() else question


def _history(row: Row) -> list[Turn]:
    """Earlier turns, as [question, answer] pairs; the last answer makes no sense without them."""
    pairs = row.get("history") or []
    if not isinstance(pairs, list):
        raise RowError("wrong_type", f"'history' is not a list of pairs: {excerpt(repr(pairs))}")
    turns: list[Turn] = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
            raise RowError("wrong_type", f"'history' is not a list of pairs: {excerpt(repr(pair))}")
        turns += [Turn("user", pair[0]), Turn("assistant", pair[1])]
    return turns


def read_prompt_completion(row: Row) -> list[Turn]:
    if row.get("label") is False:  # unpaired preferences: a completion that was judged bad
        raise RowError("unlearned_answer", "'label' is false: a completion that was judged bad")
    return [*_system(row), *_side(row, "prompt", "user"), *_side(row, "completion", "assistant")]


def read_preference(row: Row) -> list[Turn]:
    """The chosen side. Where that is a whole conversation the prompt is its beginning and not put twice."""
    chosen = _side(row, "chosen", "assistant")
    if any(turn.role == "user" for turn in chosen):
        return [*_system(row), *chosen]
    if "instruction" in row:
        return [*_system(row), *_history(row), Turn("user", _instruction(row)), *chosen]
    names = ("prompt", "question", "messages", "conversations")
    key = next((name for name in names if name in row), "prompt")
    return [*_system(row), *_side(row, key, "user"), *chosen]


def read_text(row: Row) -> list[Turn]:
    return [Turn(TEXT, text_of(row, "text"))]


FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        Format(
            "preference",
            "'chosen' and 'rejected'",
            lambda row: "chosen" in row and "rejected" in row,
            read_preference,
        ),
        Format("messages", "'messages'", lambda row: "messages" in row, read_messages),
        Format(
            "sharegpt",
            "'conversations'",
            lambda row: "conversations" in row or "conversation" in row,
            read_sharegpt,
        ),
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
        Format("text", "'text'", lambda row: "text" in row, read_text),
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
            keys_of(objects[0])
            if objects
            else f"no objects but {type(rows[0]).__name__ if rows else 'nothing'}"
        )
        known = "; ".join(f"{item.name}: {item.expected}" for item in FORMATS.values())
        raise InputError(
            f"{path}: no known format; the first rows have {found}. Known: {known}. Map other names with "
            "data.columns, such as {prompt: question, completion: answer}"
        )
    name, count = votes.most_common(1)[0]
    chosen = FORMATS[name]
    evidence = f"{count} of the first {len(rows)} rows have {chosen.expected}"
    others = [f"{n} look like {other}" for other, n in votes.most_common()[1:]]
    return Detection(chosen, "; ".join([evidence, *others]))


def keys_of(row: Row) -> str:
    return f"keys {', '.join(repr(str(key)) for key in list(row)[:8])}" if row else "no keys"
