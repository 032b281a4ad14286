"""One answer as it grows: tokens in, pieces of text with their tokens out, up to its end or a stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from .request import FinishReason, Token
from .text import TextStream

Ending = Literal["stop", "length"]


@dataclass(frozen=True)
class Placed:
    """A token and where in the answer its text begins, in characters."""

    token: Token
    offset: int


@dataclass(frozen=True)
class Piece:
    """What a step added to an answer. `tokens` are those whose text is now given out whole; a token that ends
    the answer, or lies wholly in a stop string, is in none. `count` is of all tokens generated so far."""

    text: str
    tokens: tuple[Placed, ...]
    count: int
    cached_tokens: int = 0
    finish: Ending | None = None


class AnswerText:
    """The text of one answer. `end_ids` are the tokens that end it and are not part of it."""

    def __init__(self, stream: TextStream, stops: Sequence[str], end_ids: AbstractSet[int]) -> None:
        self._stream = stream
        self._stops = StopStrings(stops)
        self._end_ids = end_ids
        self._decoded = 0  # characters out of the stream
        self._given = 0  # characters given out
        self._waiting: deque[tuple[int, Placed]] = deque()  # end of its text, token
        self.count = 0

    def feed(self, tokens: Sequence[Token], finish: FinishReason | None, cached_tokens: int = 0) -> Piece:
        """The step's piece. Its `finish` is set where a stop string ends the answer too, earlier than the
        engine would."""
        text = ""
        for n, token in enumerate(tokens):
            self.count += 1
            if finish == "stop" and n == len(tokens) - 1 and token.id in self._end_ids:
                break
            text += self._take(token)
            if self._stops.stopped:
                break
        if finish is not None and not self._stops.stopped:
            text += self._stops.feed(self._stream.finish())
            if not self._stops.stopped:
                text += self._stops.finish()
        self._given += len(text)
        ending: Ending | None = "stop" if self._stops.stopped else _ending(finish)
        return Piece(text, self._certain(whole=ending is not None), self.count, cached_tokens, ending)

    def _take(self, token: Token) -> str:
        start = self._decoded
        text = self._stream.feed(token.id)
        self._decoded += len(text)
        self._waiting.append((self._decoded, Placed(token, start)))
        return self._stops.feed(text)

    def _certain(self, *, whole: bool) -> tuple[Placed, ...]:
        """Tokens whose text is out. At the end of an answer also one that was cut, and none behind it."""
        tokens = []
        while self._waiting and self._waiting[0][0] <= self._given:
            tokens.append(self._waiting.popleft()[1])
        if whole:
            cut = self._stops.stopped
            tokens += [one for _, one in self._waiting if not cut or one.offset < self._given]
            self._waiting.clear()
        return tuple(tokens)


def _ending(finish: FinishReason | None) -> Ending | None:
    return finish if finish in ("stop", "length") else None


class StopStrings:
    """Looks for the stop string that is whole first; of those that end at one place, the longest.

    Text that could be the beginning of one is held back until it is certain, so that no part of a stop string
    is ever given out. `stopped` says that one was found: what follows is dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What is certain now. Empty for ever after a stop string."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text, self._held = self._held + text, ""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return text[: min(found)[1]]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back: no more text comes, so it begins no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Characters at the text's end that could begin the stop string: the most, and never all of it."""
    most = min(len(text), len(stop) - 1)
    return next((length for length in range(most, 0, -1) if text.endswith(stop[:length])), 0)
