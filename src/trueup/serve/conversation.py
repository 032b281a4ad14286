"""One answer after the other, for a person at a terminal: from an engine in this process, or a server."""

from __future__ import annotations

import http.client
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from trueup.schema import InputError, TrueupError
from trueup.schema.counting import counted

from .answer import AnswerText
from .codec import Codec
from .protocols import EngineLike
from .request import Request, Sampling

TIMEOUT_S = 600.0
Messages = list[dict[str, str]]


class Talk(Protocol):
    def answer(
        self, messages: Messages, *, max_tokens: int, temperature: float, seed: int | None
    ) -> Iterator[tuple[str, int]]:
        """Pieces of text, each with the number of tokens so far."""


class Local:
    """`most_tokens`: of a conversation."""

    def __init__(self, engine: EngineLike, codec: Codec, most_tokens: int) -> None:
        self._engine = engine
        self._codec = codec
        self._most_tokens = most_tokens
        self._ids = itertools.count()

    def answer(
        self, messages: Messages, *, max_tokens: int, temperature: float, seed: int | None
    ) -> Iterator[tuple[str, int]]:
        prompt = self._codec.chat(messages)
        room = self._most_tokens - len(prompt)
        if room < 1:
            raise InputError(
                f"the conversation has {counted(len(prompt), 'token')}, and the model's context is "
                f"{self._most_tokens}: begin a new one"
            )
        sampling = Sampling(min(max_tokens, room), temperature=temperature, seed=seed)
        text = AnswerText(self._codec.text_stream(), (), self._codec.end_ids)
        self._engine.add(Request(str(next(self._ids)), prompt, sampling))
        while self._engine.has_work:
            for output in self._engine.step():
                if output.finish in ("error", "cancelled"):
                    raise TrueupError(f"the engine gave up: {output.reason or output.finish}")
                piece = text.feed(output.tokens, output.finish)
                if output.tokens:
                    yield piece.text, piece.count


class Remote:
    """An OpenAI-compatible server. `address`: with or without /v1. `model`: None is the first it has."""

    def __init__(self, address: str, model: str | None, key: str | None) -> None:
        self._root = address.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._model = model or self._first_model()

    def answer(
        self, messages: Messages, *, max_tokens: int, temperature: float, seed: int | None
    ) -> Iterator[tuple[str, int]]:
        asked = {
            "model": self._model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if seed is None else {"seed": seed}),
        }
        tokens, finished = 0, False
        for event in self._events(json.dumps(asked).encode()):
            if event is None:
                return
            if event.get("error"):
                raise TrueupError(f"{self._root}: {_said(event)}")
            told = _object(event.get("usage")).get("completion_tokens")
            if isinstance(told, int):
                tokens = told
                yield "", tokens
            for choice in event.get("choices") or ():
                finished = finished or _object(choice).get("finish_reason") is not None
                piece = _object(_object(choice).get("delta")).get("content")
                if isinstance(piece, str) and piece:
                    tokens += 1  # one a chunk, until the server says how many there were
                    yield piece.encode("utf-8", "replace").decode(), tokens
        if not finished:
            raise TrueupError(f"{self._root}: the answer broke off after {counted(tokens, 'token')}")

    def _first_model(self) -> str:
        url = f"{self._root}/models"
        with self._opened(url, None) as response, _answering(url):
            body = response.read()
        try:
            return str(json.loads(body)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise InputError(f"{self._root}/models names no model; give --model") from None

    def _events(self, body: bytes) -> Iterator[dict[str, Any] | None]:
        """The stream's documents, and None for its end: without one it broke off."""
        url = f"{self._root}/chat/completions"
        with self._opened(url, body) as response, _answering(url):
            for line in response:
                data = line.strip().removeprefix(b"data:").strip()
                if not line.startswith(b"data:"):
                    continue
                yield None if data == b"[DONE]" else _chunk(url, data)

    def _opened(self, url: str, body: bytes | None) -> Any:
        try:
            request = urllib.request.Request(url, data=body, headers=self._headers)
            return urllib.request.urlopen(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            raise TrueupError(f"{url}: {error.code}: {_message(error.read())}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise InputError(f"{url}: no server answers there: {reason}") from None


@contextmanager
def _answering(url: str) -> Iterator[None]:
    """A connection that breaks is the server's end, and no fault of ours."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise TrueupError(f"{url}: the answer broke off: {error or type(error).__name__}") from None


def _chunk(url: str, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        shown = data[:80].decode("utf-8", "replace")
        raise TrueupError(f"{url}: a chunk is no JSON object: {shown!r}; is this an OpenAI server?")
    return found


def _object(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _said(document: dict[str, Any]) -> str:
    error = document["error"]
    return str(_object(error).get("message", error)).encode("utf-8", "replace").decode()


def _message(body: bytes) -> str:
    try:
        return _said(json.loads(body))
    except (ValueError, KeyError, TypeError, RecursionError):
        return body[:200].decode("utf-8", "replace")
