"""The kept compile caches as a terminal table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from rich.table import Table
from rich.text import Text

from .wording import clean, duration, flat, quantity

if TYPE_CHECKING:
    from collections.abc import Mapping


class KeptFilesView(Protocol):
    @property
    def facts(self) -> Mapping[str, Any]: ...
    @property
    def files(self) -> Mapping[str, Any]: ...
    @property
    def size_bytes(self) -> int: ...


class CacheView(Protocol):
    """`problem`: why it will not be used; None where it will."""

    @property
    def key(self) -> str: ...
    @property
    def manifest(self) -> KeptFilesView | None: ...
    @property
    def last_used(self) -> datetime: ...
    @property
    def problem(self) -> str | None: ...


def caches_table(entries: Iterable[CacheView], now: datetime) -> Table:
    """One row a cache: key, size, how long ago it was used, whether it is signed, and what it holds for."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in ("key", "files", "size", "last used", "signed", "for"):
        table.add_column(column)
    for index in (0, 3):
        table.columns[index].no_wrap = True
    for entry in entries:
        kept = entry.manifest
        ago = max(0.0, (now - entry.last_used).total_seconds())
        table.add_row(
            Text(entry.key, style="bold"),
            Text(str(len(kept.files)) if kept else "–"),
            Text(quantity(kept.size_bytes, "bytes") if kept else "–"),
            Text(f"{duration(ago)} ago"),
            Text(f"no: {clean(entry.problem)}", style="red") if entry.problem else Text("yes", style="green"),
            Text(_facts(kept.facts) if kept else "–"),
        )
    return table


def _facts(facts: Mapping[str, Any]) -> str:
    return "; ".join(f"{clean(name)} {value}" for name, value in flat(facts))
