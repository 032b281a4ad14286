"""Redaction of personal data and credentials by kind: pure functions from text to text.

Each kind has a finder (redact_contact.py, redact_network.py, redact_numbers.py, redact_secrets.py) that
yields spans; this file chooses among overlapping ones, replaces them, and says what was found without
showing it. Precision before recall: what could as well be a version, a date, a hash or code is left alone.
docs/redaction.md says what is and is not caught.

Two properties hold by construction. Redacting twice is redacting once: the finders are asked again about
their own output until they have nothing more to say. And every span refers to the text that was given. A
finder's work on one candidate is bounded, so a pass takes time linear in the text; a text without a find
takes one pass, any other two, rarely three.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from .redact_contact import emails, phones
from .redact_network import ipv4_addresses, ipv6_addresses
from .redact_numbers import cn_ids, ibans, payment_cards
from .redact_secrets import public_prefix, secrets


class Kind(StrEnum):
    """What can be redacted. The more specific comes first: it wins where two spans of one length overlap."""

    SECRET = "secret"
    IBAN = "iban"
    CN_ID = "cn_id"
    PAYMENT_CARD = "payment_card"
    EMAIL = "email"
    IPV6 = "ipv6"
    IPV4 = "ipv4"
    PHONE = "phone"

    @property
    def placeholder(self) -> str:
        """What stands in the text instead, such as [EMAIL]. Holds no digit, no @ and no dash: see _detect."""
        return f"[{self.value.upper()}]"


Finder = Callable[[str], Iterator[tuple[int, int]]]
FINDERS: dict[Kind, Finder] = {
    Kind.SECRET: secrets,
    Kind.IBAN: ibans,
    Kind.CN_ID: cn_ids,
    Kind.PAYMENT_CARD: payment_cards,
    Kind.EMAIL: emails,
    Kind.IPV6: ipv6_addresses,
    Kind.IPV4: ipv4_addresses,
    Kind.PHONE: phones,
}
_RANK = {kind: rank for rank, kind in enumerate(Kind)}


@cache
def rules_digest() -> str:
    """Of the rules themselves: what other rules prepared is other data. Cheap, asked before any cache."""
    files = sorted(Path(__file__).parent.glob("redact*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Found:
    """One piece of the text, [start, end), that was replaced. `shown` is masked and safe to print."""

    kind: Kind
    start: int
    end: int
    shown: str


@dataclass(frozen=True, slots=True)
class Redacted:
    """The text with placeholders, and what they stand for in order of position. Nothing found: text as
    given."""

    text: str
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    kind: Kind
    start: int
    end: int


class Redactor:
    """Replaces the chosen kinds; None is all of them. Holds no state: one may serve many threads."""

    def __init__(self, kinds: frozenset[Kind] | None = None) -> None:
        self.kinds = frozenset(Kind) if kinds is None else frozenset(Kind(kind) for kind in kinds)
        self._finders = [(kind, FINDERS[kind]) for kind in Kind if kind in self.kinds]

    def redact(self, text: str) -> Redacted:
        """Each round sees what the last one wrote, and ends when it finds nothing. It does end: every find
        holds a digit, an @ or dashes, a placeholder holds none, so a round leaves fewer of them."""
        found: list[_Span] = []
        out = text
        while fresh := self._detect(out):
            found = _merge(found, fresh)
            out = _replaced(text, found)
        return Redacted(out, tuple(Found(s.kind, s.start, s.end, _shown(text, s)) for s in found))

    def _detect(self, text: str) -> list[_Span]:
        spans = [_Span(kind, start, end) for kind, finder in self._finders for start, end in finder(text)]
        return _without_overlaps(spans) if spans else []


def _without_overlaps(spans: list[_Span]) -> list[_Span]:
    """Of every group of spans that touch one another: the longest first, then the more specific kind, then
    the leftmost, each unless it overlaps one already taken. In order of position."""
    taken: list[_Span] = []
    group: list[_Span] = []
    reach = 0
    for span in sorted(spans, key=lambda s: s.start):
        if span.start >= reach:
            taken += _best(group)
            group = []
        group.append(span)
        reach = max(reach, span.end)
    return taken + _best(group)


def _best(group: list[_Span]) -> list[_Span]:
    if len(group) < 2:
        return group
    taken: list[_Span] = []
    for span in sorted(group, key=lambda s: (s.start - s.end, _RANK[s.kind], s.start)):
        at = bisect_left(taken, span.start, key=lambda s: s.start)
        free_before = at == 0 or taken[at - 1].end <= span.start
        if free_before and (at == len(taken) or taken[at].start >= span.end):
            taken.insert(at, span)
    return taken


def _merge(found: list[_Span], fresh: Iterable[_Span]) -> list[_Span]:
    """`fresh` is in positions of the text that `found` was already replaced in: bring it back to the
    original's. A fresh span that reaches into a placeholder takes over all that the placeholder stands
    for."""
    if not found:
        return list(fresh)
    starts: list[int] = []  # of each placeholder, in the replaced text
    ends: list[int] = []
    shift = 0
    for span in found:
        starts.append(span.start + shift)
        ends.append(starts[-1] + len(span.kind.placeholder))
        shift = ends[-1] - span.end
    kept = [True] * len(found)
    moved: list[_Span] = []
    for span in fresh:
        first, after = bisect_right(ends, span.start), bisect_left(starts, span.end)
        kept[first:after] = [False] * (after - first)
        start = span.start - (ends[first - 1] - found[first - 1].end if first else 0)
        end = span.end - (ends[after - 1] - found[after - 1].end if after else 0)
        if first < after:
            start, end = min(start, found[first].start), max(end, found[after - 1].end)
        moved.append(_Span(span.kind, start, end))
    still = [span for span, keep in zip(found, kept, strict=True) if keep]
    return sorted(still + moved, key=lambda s: s.start)


def _replaced(text: str, found: Iterable[_Span]) -> str:
    pieces: list[str] = []
    at = 0
    for span in found:
        pieces += (text[at : span.start], span.kind.placeholder)
        at = span.end
    return "".join((*pieces, text[at:]))


def _shown(text: str, span: _Span) -> str:
    """A few characters by which an owner knows it again and nobody else can use it."""
    value = text[span.start : span.end]
    match span.kind:
        case Kind.SECRET:
            return f"{public_prefix(value)}… ({len(value)} characters)"
        case Kind.EMAIL:
            return f"{value[0]}…@….{value.rsplit('.', 1)[-1]}"
        case Kind.IPV4:
            return f"{value.split('.', 1)[0]}.…"
        case Kind.IPV6:
            return f"{value[:3]}…"
        case Kind.PAYMENT_CARD:
            return f"…{value[-4:]}"
        case _:
            return f"{value[:2]}…{value[-2:]}"
