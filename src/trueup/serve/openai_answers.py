"""Answers in the shapes of OpenAI's API: whole, and as chunks of a stream. A `Writer` knows one of its two
kinds, chat and completion."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .answer import Piece, Placed
from .codec import Codec, shown

DONE = b"data: [DONE]\n\n"
# Ends of lines to clients that split text by Python's rules; JSON need not escape them, and an event may not
# have them.
_LINE_ENDS = str.maketrans({c: f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"})
IMPOSSIBLE = -9999.0  # OpenAI's word for a log-probability of minus infinity, which JSON has no word for

Json = dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """Tokens of one request, all of its choices. A prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def document(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True)
class Frame:
    """What every document of one answer has."""

    id: str
    created: int  # seconds since 1970
    model: str
    fingerprint: str


@dataclass(frozen=True)
class Choice:
    """One finished answer."""

    index: int
    text: str
    tokens: tuple[Placed, ...]
    finish: str


class Writer(Protocol):
    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes: ...

    def opening(self, index: int) -> bytes | None:
        """A chunk before a choice's first text."""

    def chunk(self, index: int, piece: Piece) -> list[bytes]: ...

    def usage(self, usage: Usage) -> bytes: ...


def json_bytes(document: Json) -> bytes:
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_LINE_ENDS).encode()


def event(document: Json) -> bytes:
    return b"data: " + json_bytes(document) + b"\n\n"


class _Documents(ABC):
    """What both kinds share. `kind` and `chunk_kind` are the words in `object`."""

    kind: str
    chunk_kind: str

    def __init__(self, frame: Frame, codec: Codec, *, logprobs: bool, with_usage: bool) -> None:
        self._frame = frame
        self._codec = codec
        self._logprobs = logprobs
        self._with_usage = with_usage

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        document = self._document(self.kind, [self._choice(choice) for choice in choices])
        return json_bytes({**document, "usage": usage.document})

    def usage(self, usage: Usage) -> bytes:
        return event({**self._document(self.chunk_kind, []), "usage": usage.document})

    @abstractmethod
    def _choice(self, choice: Choice) -> Json: ...

    def _event(self, choice: Json) -> bytes:
        document = self._document(self.chunk_kind, [choice])
        return event({**document, "usage": None} if self._with_usage else document)

    def _document(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self._frame.id,
            "object": kind,
            "created": self._frame.created,
            "model": self._frame.model,
            "system_fingerprint": self._frame.fingerprint,
            "choices": choices,
        }

    def _name(self, token: int) -> str:
        return shown(self._codec.bytes_of(token))


class ChatWriter(_Documents):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, index: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self._event({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})

    def chunk(self, index: int, piece: Piece) -> list[bytes]:
        """The text, where there is any, and the end in a chunk of its own, as OpenAI sends them."""
        events = []
        logprobs = self._tokens(piece.tokens)
        if piece.text or (logprobs and piece.tokens):
            delta = {"content": piece.text}
            part = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
            events.append(self._event(part))
        if piece.finish is not None:
            end = {"index": index, "delta": {}, "logprobs": None, "finish_reason": piece.finish}
            events.append(self._event(end))
        return events

    def _choice(self, choice: Choice) -> Json:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._tokens(choice.tokens),
            "finish_reason": choice.finish,
        }

    def _tokens(self, tokens: Iterable[Placed]) -> Json | None:
        if not self._logprobs:
            return None
        return {
            "content": [
                {
                    **self._token(placed.token.id, placed.token.logprob),
                    "top_logprobs": [self._token(token, logprob) for token, logprob in placed.token.top],
                }
                for placed in tokens
            ],
            "refusal": None,
        }

    def _token(self, token: int, logprob: float | None) -> Json:
        piece = self._codec.bytes_of(token)
        return {"token": shown(piece), "logprob": _sendable(logprob), "bytes": list(piece)}


class CompletionWriter(_Documents):
    kind = chunk_kind = "text_completion"

    def opening(self, index: int) -> None:
        return None

    def chunk(self, index: int, piece: Piece) -> list[bytes]:
        if not (piece.text or piece.finish or (self._logprobs and piece.tokens)):
            return []
        return [self._event(self._part(index, piece.text, piece.tokens, piece.finish))]

    def _choice(self, choice: Choice) -> Json:
        return self._part(choice.index, choice.text, choice.tokens, choice.finish)

    def _part(self, index: int, text: str, tokens: tuple[Placed, ...], finish: str | None) -> Json:
        logprobs = self._tokens(tokens) if self._logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _tokens(self, tokens: tuple[Placed, ...]) -> Json:
        names = [self._name(placed.token.id) for placed in tokens]
        return {
            "tokens": names,
            "token_logprobs": [_sendable(placed.token.logprob) for placed in tokens],
            "top_logprobs": [self._top(placed, name) for placed, name in zip(tokens, names, strict=True)],
            "text_offset": [placed.offset for placed in tokens],
        }

    def _top(self, placed: Placed, name: str) -> Json:
        """The likeliest, and the token itself where it is none of them."""
        top: Json = {self._name(token): _sendable(logprob) for token, logprob in placed.token.top}
        return top if name in top else {**top, name: _sendable(placed.token.logprob)}


def _sendable(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, IMPOSSIBLE)
