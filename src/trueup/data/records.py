"""A record: one conversation, as every format is read into. And the tally of what was left out, and why."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

ROLES = ("system", "user", "assistant")
TEXT = "text"  # the only turn's role where a record is plain text instead of a conversation
FIRST_SHOWN = 5  # examples kept of each reason
TOUCHED_SHOWN = 1000  # of records with personal data: someone must look at each
TOUCHED_REASONS = frozenset({"personal_data", "personal_data_replaced"})
EXCERPT_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Turn:
    role: str  # one of ROLES, or TEXT
    content: str


@dataclass(frozen=True, slots=True)
class Record:
    """One conversation that ends with an assistant turn, or one turn of plain text (`is_text`). `origin` says
    where it was read ("file.jsonl:7")."""

    turns: tuple[Turn, ...]
    origin: str

    @property
    def is_text(self) -> bool:
        """Plain text for continued pre-training: no template, and all of it carries loss."""
        return self.turns[0].role == TEXT

    def messages(self) -> list[dict[str, str]]:
        """As chat templates take them."""
        return [{"role": turn.role, "content": turn.content} for turn in self.turns]

    def content_hash(self) -> bytes:
        """16 bytes of BLAKE2b over roles and contents; the origin plays no part."""
        text = json.dumps([[turn.role, turn.content] for turn in self.turns], ensure_ascii=False)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


class RowError(Exception):
    """One row cannot be used. `reason` is the name it is counted under; the message says what was wrong."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class Tally:
    """Rows dropped and rows changed, by reason, with the first few of each."""

    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    first: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    masked: Callable[[str], str] = field(default=str, repr=False)  # what a message goes through to be shown

    def drop(self, reason: str, origin: str, message: str) -> None:
        self.dropped[reason] += 1
        self._show(reason, origin, message)

    def change(self, reason: str, origin: str, message: str) -> None:
        self.changed[reason] += 1
        self._show(reason, origin, message)

    def _show(self, reason: str, origin: str, message: str) -> None:
        shown = self.first.setdefault(reason, [])
        if len(shown) < shown_of(reason):
            shown.append({"where": origin, "what": self.masked(message)})

    def summary(self) -> str:
        """'3 empty_answer, 1 too_long', most frequent first."""
        return ", ".join(f"{n} {reason}" for reason, n in self.dropped.most_common()) or "nothing dropped"


def shown_of(reason: str) -> int:
    """How many of the rows dropped or changed for a reason are kept to be shown."""
    return TOUCHED_SHOWN if reason in TOUCHED_REASONS else FIRST_SHOWN


def excerpt(text: str) -> str:
    """A piece of the data short enough for a message, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= EXCERPT_CHARACTERS else flat[: EXCERPT_CHARACTERS - 1] + "…"
