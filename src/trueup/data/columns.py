"""Other names for the keys of a format: what the recipe's `data.columns` says.

A map decides the format: one with `completion` makes rows prompt-completion whatever else they hold. A mapped
key is read from the named column only, never from a column that happens to have the key's own name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueup.recipe.models import ColumnsSection
from trueup.schema import InputError

from .formats import FORMATS, Detection, Row, keys_of
from .records import RowError


def renamed(row: Row, columns: ColumnsSection) -> Row:
    """The row under its format's own keys. Raises RowError: missing_field (the system text may be absent)."""
    names = columns.named()
    if not names:
        return row
    found = {key: value for key, value in row.items() if key not in names}
    for key, column in names.items():
        if column in row:
            found[key] = row[column]
        elif key != "system":
            raise RowError(
                "missing_field", f"no '{column}' (data.columns.{key}) in a row with {keys_of(row)}"
            )
    return found


def detect_columns(rows: Sequence[Any], columns: ColumnsSection, path: str) -> Detection | None:
    """The format the map stands for, and how many of these rows have its columns; None where the map leaves
    the format open. Raises InputError when no row has them."""
    name = columns.format
    if name is None:
        return None
    needed = {key: column for key, column in columns.named().items() if key != "system"}
    objects = [row for row in rows if isinstance(row, dict)]
    count = sum(all(column in row for column in needed.values()) for row in objects)
    said = ", ".join(f"{key}: {column}" for key, column in needed.items())
    if not count:
        found = keys_of(objects[0]) if objects else f"no objects but {type(rows[0]).__name__}"
        raise InputError(
            f"{path}: none of the first {len(rows)} rows has the columns of data.columns ({said}); "
            f"the first rows have {found}"
        )
    return Detection(FORMATS[name], f"{count} of the first {len(rows)} rows have data.columns ({said})")
