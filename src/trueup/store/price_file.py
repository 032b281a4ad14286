"""The home's own price rows: HOME/prices.jsonl, one `PriceEntry` a line, only ever added to.

A line is whole or it is not there: one that a killed process left half-written has no end and is dropped by
the next that writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from trueup.files.lock import take_lock
from trueup.schema import StorageError
from trueup.schema.price_row import Origin, PriceEntry, PriceRow

FILE = "prices.jsonl"


class PriceFile:
    """Raises StorageError where the file cannot be read or written, naming the line that is damaged."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE

    def entries(self) -> list[PriceEntry]:
        """Every line, in the order of their recording. Empty where there is no file."""
        try:
            return self._entries(self.path.read_bytes())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror or error}") from None

    def add(self, new: Callable[[list[PriceEntry]], list[PriceEntry]]) -> list[PriceEntry]:
        """Add what `new` makes of the entries that are there, all of it or nothing, and wait until it is on
        the disk. No other process adds in between."""
        try:
            with self.path.open("a+b", buffering=0) as file:
                take_lock(file)
                file.seek(0)
                content = file.read()
                entries = new(self._entries(content))
                if entries:
                    self._write(file, content.rfind(b"\n") + 1, entries)
                return entries
        except OSError as error:
            raise StorageError(f"{self.path} could not be written: {error.strerror or error}") from None

    def _write(self, file: IO[bytes], whole_to: int, entries: list[PriceEntry]) -> None:
        file.truncate(whole_to)
        try:
            left = b"".join(
                entry.model_dump_json(exclude_defaults=True).encode() + b"\n" for entry in entries
            )
            while left:
                left = left[
                    file.write(left) :
                ]  # unbuffered, so that a full disk leaves nothing to write later
            os.fsync(file.fileno())
        except OSError:
            file.truncate(whole_to)
            raise

    def _entries(self, content: bytes) -> list[PriceEntry]:
        lines = content.split(b"\n")[:-1]  # what follows the last line's end was never whole
        return [self._entry(number, line) for number, line in enumerate(lines, 1) if line.strip()]

    def _entry(self, number: int, line: bytes) -> PriceEntry:
        try:
            return PriceEntry.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            place = "".join(f"{part}: " for part in problem["loc"])
            raise StorageError(
                f"{self.path}:{number}: no price entry: {place}{problem['msg']}; mend or remove the line"
            ) from None


def standing(entries: Iterable[PriceEntry], origin: Origin) -> Sequence[PriceRow]:
    """The rows of one origin that no later entry replaces."""
    rows: list[PriceRow] = []
    for entry in entries:
        if entry.origin != origin:
            continue
        if entry.replaces:
            rows = [row for row in rows if (row.key, row.start) != (entry.row.key, entry.row.start)]
        rows.append(entry.row)
    return rows
