"""A JSON document read row by row: a list of rows, an object with one list of rows inside, or a single row.

The standard library's decoder reads one value at a time from a window on the text that grows until the value
is whole, and then moves on; a list of any length takes the memory of its longest row."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from trueup.schema import InputError

WINDOW_CHARACTERS = 1 << 20
LONGEST_VALUE = 1 << 26  # characters of one row; more is taken for a file that is not what it says
_SPACE = re.compile(r"[ \t\r\n]*")
_LIST_OF_OBJECTS = re.compile(r"\[[ \t\r\n]*\{")
_LONGEST_TOKEN = 16  # a number, a literal or an escape cut by the window ends this close to its end
_DECODER = json.JSONDecoder()


def document_rows(text: TextIO, name: str, row_keys: frozenset[str]) -> Iterator[tuple[int, Any]]:
    """Numbered rows, from 1. In an object the list under a key that is not one of `row_keys` (keys of a row
    that themselves hold lists) is the list of rows.

    Raises InputError, with the line, where the text is not JSON, goes on after the end, or holds two lists.
    """
    window = _Window(text, name)
    start = window.peek()
    if start == "[":
        yield from enumerate(window.items(), start=1)
    elif start == "{":
        yield from _object_rows(window, row_keys)
    elif start:
        yield 1, window.value()
    if window.peek():
        raise window.error("more text after the end of the document; one record a line is a .jsonl file")


def is_row_after_row(text: TextIO, name: str, row_keys: frozenset[str]) -> bool:
    """Whether a document is none but JSON lines: an object that is a row, and then another."""
    window = _Window(text, name)
    if window.peek() != "{":
        return False
    try:
        found = list(itertools.islice(_object_rows(window, row_keys), 2))
        return len(found) == 1 and window.peek() == "{"
    except InputError:  # said where the document is read
        return False


def _object_rows(window: _Window, row_keys: frozenset[str]) -> Iterator[tuple[int, Any]]:
    row: dict[str, Any] = {}
    rows_key: str | None = None
    window.take("{")
    while window.peek() != "}":
        key = window.value()
        if not isinstance(key, str):
            raise window.error("an object's key must be text")
        window.take(":")
        if key in row_keys or not window.opens_list_of_objects():
            row[key] = window.value()
        elif rows_key is not None:
            raise window.error(
                f"two lists of records ('{rows_key}', '{key}'); expected one: put each in a file"
            )
        else:
            rows_key = key
            yield from enumerate(window.items(), start=1)
        if window.peek() != "}":
            window.take(",")
    window.take("}")
    if rows_key is None:
        yield 1, row


class _Window:
    """The stretch of text at hand; `at` is where reading stands."""

    def __init__(self, text: TextIO, name: str) -> None:
        self._text, self._name = text, name
        self._held, self._at, self._ended = "", 0, False
        self._line, self._column = 1, 0  # where the held text begins

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            found = _SPACE.match(self._held, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._grow():
                return ""

    def take(self, character: str) -> None:
        found = self.peek()
        if found != character:
            raise self.error(
                f"expected '{character}', not {found!r}" if found else f"'{character}' is missing"
            )
        self._at += 1

    def opens_list_of_objects(self) -> bool:
        self.peek()
        if len(self._held) - self._at < WINDOW_CHARACTERS // 2:
            self._grow()
        return _LIST_OF_OBJECTS.match(self._held, self._at) is not None

    def items(self) -> Iterator[Any]:
        """The values of the list that begins here."""
        self.take("[")
        if self.peek() == "]":
            self.take("]")
            return
        while True:
            yield self.value()
            if self.peek() == "]":
                self.take("]")
                return
            self.take(",")

    def value(self) -> Any:
        """The value that begins here, whole."""
        self.peek()
        while True:
            try:
                found, end = _DECODER.raw_decode(self._held, self._at)
            except json.JSONDecodeError as error:
                if self._may_be_cut(error) and self._grow():
                    continue
                raise self.error(f"not JSON: {error.msg}", error.pos) from None
            except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of [
                raise self.error(f"cannot be read as JSON: {error}") from None
            near_end = end > len(self._held) - _LONGEST_TOKEN
            if near_end and isinstance(found, int | float) and self._grow():  # a number may go on
                continue
            self._at = end
            return found

    def error(self, message: str, position: int | None = None) -> InputError:
        before = self._held[: self._at if position is None else position]
        line = self._line + before.count("\n")
        column = len(before) - before.rfind("\n") + (self._column if "\n" not in before else 0)
        return InputError(
            f"{self._name}:{line}: {message} (column {column}); a .json file holds one list of records; one "
            "record a line is read too"
        )

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        near_end = error.pos >= len(self._held) - _LONGEST_TOKEN
        return not self._ended and (near_end or error.msg.startswith("Unterminated string"))

    def _grow(self) -> bool:
        """Let go of what was read and read as much again as is held; False at the end of the text."""
        if self._ended:
            return False
        left = len(self._held) - self._at
        if left > LONGEST_VALUE:
            raise self.error(f"a value of more than {LONGEST_VALUE} characters")
        more = self._text.read(max(WINDOW_CHARACTERS, left))
        self._ended = not more
        if self._ended:  # nothing moves: an error's position still holds
            return False
        read = self._held[: self._at]
        if "\n" in read:
            self._line += read.count("\n")
            self._column = len(read) - read.rfind("\n") - 1
        else:
            self._column += len(read)
        self._held, self._at = self._held[self._at :] + more, 0
        return True
