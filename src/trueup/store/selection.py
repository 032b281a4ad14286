"""Which runs a person means: an id, `last`, a name, a pattern of names, or conditions on what was recorded.

Conditions are KEY OPERATOR VALUE, joined by commas: all must hold. A key is a column of the list of runs,
`platform`, or the dotted key of a setting: of the recipe (`recipe.` may be left out), of `choices`,
`environment`, `price` or `dataset`.
"""

from __future__ import annotations

import json
import operator
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from trueup.schema import InputError

from .references import LAST_LETTER

_OPERATORS = r"!=|<=|>=|=|~|<|>"
_KEY = r"[A-Za-z_][\w.-]*"
_CONDITION = re.compile(rf"\s*({_KEY})\s*({_OPERATORS})\s*(.*?)\s*", re.DOTALL)
_COMMA = re.compile(rf",(?=\s*{_KEY}\s*(?:{_OPERATORS}))")
_WILD = re.compile(r"[*?\[]")
_COLUMNS = (
    *(
        "id",
        "kind",
        "name",
        "state",
        "reason",
        "started_at",
        "ended_at",
        "wall_s",
        "model",
        "device",
        "imported_at",
    ),
    "recipe_digest",
)
_SECTIONS = ("recipe", "environment", "choices", "price", "dataset")
_PLATFORM = (
    ("choices", "device", "value"),
    ("environment", "device", "name"),
    ("environment", "instance", "instanceType"),
    ("recipe", "platform", "instance"),
)
_ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


# By key: (id, the values that the key stands for) of every run.
Held = dict[str, list[tuple[str, list[Any]]]]


class Condition(NamedTuple):
    key: str
    operator: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{self.wanted}"


def selected(connection: sqlite3.Connection, text: str, read: Held | None = None) -> list[str] | None:
    """Ids of the runs that a pattern or conditions mean; None where the text is neither. InputError where no
    run is meant. What is in `read` is not read again, and what is read is put there."""
    if conditions := conditions_of(text):
        for condition in conditions:
            _must_be_meant(condition)
        found, what = meeting(connection, conditions, {} if read is None else read), "meets"
    elif is_pattern(text):
        found, what = named_like(connection, text), "has a name like"
    else:
        return None
    if not found:
        raise InputError(f"no run {what} '{text}'; `trueup runs list` shows all")
    return found


def conditions_of(text: str) -> list[Condition]:
    """The conditions a text consists of; empty where it is no query but a name."""
    found = [_CONDITION.fullmatch(part) for part in _COMMA.split(text)]
    return [Condition(*one.groups()) for one in found if one] if all(found) else []


def _must_be_meant(condition: Condition) -> None:
    """InputError for an operator that was written twice, or in another language's way, or has no value."""
    more = re.match(r"[=<>!~]*", condition.wanted)
    signs = more.group() if more and not condition.wanted.startswith("~/") else ""
    meant = {"=<": "<=", "=>": ">=", "=~": "~"}.get(condition.operator + signs, condition.operator)
    if signs:
        raise InputError(
            f"{condition}: there is no operator '{condition.operator}{signs}'; did you mean "
            f"{condition.key}{meant}{condition.wanted.removeprefix(signs)}?"
        )
    if not condition.wanted and condition.operator not in ("=", "!="):
        raise InputError(f"{condition}: a value is expected after '{condition.operator}'")


def is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[")


def named_like(connection: sqlite3.Connection, pattern: str) -> list[str]:
    """Ids of the runs whose name the pattern (*, ?, [abc]) matches; capitals count."""
    query, among = "SELECT id, name FROM runs", []
    if begins := _WILD.split(pattern, maxsplit=1)[0]:  # the index on names leads there
        query, among = f"{query} WHERE name >= ? AND name < ?", [begins, begins + LAST_LETTER]
    found = connection.execute(query, among)
    return [run_id for run_id, name in found if fnmatchcase(name, pattern)]


def meeting(connection: sqlite3.Connection, conditions: Sequence[Condition], read: Held) -> list[str]:
    """Ids of the runs that meet all conditions. InputError for a key that no run has."""
    left: set[str] | None = None
    for condition in conditions:
        if condition.key not in read:
            read[condition.key] = _values(connection, condition.key)
        values = [one for one in read[condition.key] if left is None or one[0] in left]
        if left is None and not any(value is not None for _, held in values for value in held):
            raise InputError(
                f"{condition}: no run has '{condition.key}'; a key is one of {', '.join(_COLUMNS)}, "
                "platform, or a setting such as tune.rank, choices.precision, environment.host.hostname"
            )
        left = {run_id for run_id, held in values if _holds(held, condition)}
    return sorted(left or ())


def _values(connection: sqlite3.Connection, key: str) -> list[tuple[str, list[Any]]]:
    """(id, the values that the key stands for) of every run."""
    if key in _COLUMNS:
        return [(row[0], [row[1]]) for row in connection.execute(f"SELECT id, {key} FROM runs")]
    query, places = _of_settings(_paths(key))
    read = cache(json.loads)  # most runs have what others have
    return [(row[0], [read(value) for value in row[1:]]) for row in connection.execute(query, places)]


def _of_settings(paths: Sequence[tuple[str, ...]]) -> tuple[str, list[str]]:
    """A query for what is at these places of every run's header, as JSON, and its parameters. Only the tables
    that hold them are read."""
    values, places, tables = ["runs.id"], [], set()
    for path in paths:
        table, column = ("recipes", "recipe") if path[0] == "recipe" else ("headers", "header")
        tables.add(table)
        values.append(f"json_quote(json_extract({column}, ?))")
        places.append("$" + "".join(f'."{key}"' for key in (path[1:] if table == "recipes" else path)))
    joins = "".join(f" JOIN {table} ON {table}.run_id = runs.id" for table in sorted(tables))
    return f"SELECT {', '.join(values)} FROM runs{joins}", places


def _paths(key: str) -> Sequence[tuple[str, ...]]:
    """Where in a header the key's values are."""
    if key == "platform":
        return _PLATFORM
    path = tuple(key.split("."))
    if path[0] not in _SECTIONS:
        path = ("recipe", *path)
    return [(*path, "value") if path[0] == "choices" and len(path) == 2 else path]


def _holds(values: Iterable[Any], condition: Condition) -> bool:
    """Whether any of the values meets it; for `!=`, whether none is the unwanted one."""
    if condition.operator == "!=":
        return not any(_meets(value, "=", condition.wanted) for value in values)
    return any(_meets(value, condition.operator, condition.wanted) for value in values)


def _meets(value: Any, by: str, wanted: str) -> bool:
    if by in _ORDERED:
        return _is_ordered(value, _ORDERED[by], wanted)
    text = _text(value)
    if by == "~":
        low, sought = text.lower(), wanted.lower()
        return fnmatchcase(low, sought) if is_pattern(sought) else sought in low
    return text == wanted or (_number(value) is not None and _number(value) == _number(wanted))


def _is_ordered(value: Any, compared: Callable[[Any, Any], bool], wanted: str) -> bool:
    """As numbers where both are; else as text, which orders dates."""
    if value is None:
        return False
    numbers = _number(value), _number(wanted)
    return compared(*numbers) if None not in numbers else compared(_text(value), wanted)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value)
