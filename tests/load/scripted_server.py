"""A server without a network: it answers each request by a script of pieces and the seconds before each, on
the clock of the event loop that it runs in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

OVERHEAD = 3  # tokens beside a prompt's words
MODEL = "scripted"


@dataclass(frozen=True)
class Script:
    """One answer: (seconds to wait, bytes to send) in order, and an error at the end where there is one."""

    pieces: Sequence[tuple[float, bytes]] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    error: Exception | None = None
    wait_s: float = 0.0  # before the status


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def text_chunk(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def chat_chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage_chunk(prompt: int, output: int, **more: Any) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **more}})


def answer_of(
    *, prompt: int, chunks: int, first_s: float, gap_s: float, tokens_per_chunk: int = 1, usage: bool = True
) -> Script:
    """So many chunks, the first after `first_s`, then one each `gap_s`; the end right after the last."""
    pieces = [(first_s if n == 0 else gap_s, text_chunk(f" w{n}")) for n in range(chunks)]
    pieces.append((0.0, text_chunk("", "length")))
    if usage:
        pieces.append((0.0, usage_chunk(prompt, chunks * tokens_per_chunk)))
    return Script([*pieces, (0.0, DONE)])


def words_in(body: dict[str, Any]) -> int:
    prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    return len(prompt.split())


def quick(n: int, body: dict[str, Any]) -> Script:
    """First token after 1 s, then one each 0.5 s."""
    tokens = body["max_tokens"]
    return answer_of(prompt=OVERHEAD + words_in(body), chunks=tokens, first_s=1.0, gap_s=0.5)


class ScriptedServer(httpx.AsyncBaseTransport):
    """`answers` gives the script of each request from its number, counted from 0 without the probes of one
    token, and its body. `metrics` gives the text of /metrics, or there is none."""

    def __init__(
        self,
        answers: Callable[[int, dict[str, Any]], Script],
        *,
        metrics: Callable[[], str] | None = None,
        context: int | None = 2048,
    ) -> None:
        self._answers = answers
        self._metrics = metrics
        self._context = context
        self.bodies: list[dict[str, Any]] = []
        self.arrived_s: list[float] = []
        self.in_flight = self.most_in_flight = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            listed = {"id": MODEL, **({"max_model_len": self._context} if self._context else {})}
            return httpx.Response(200, json={"data": [listed]})
        if request.url.path.endswith("/metrics"):
            return httpx.Response(200, text=self._metrics()) if self._metrics else httpx.Response(404)
        body = json.loads(await request.aread())
        if body.get("max_tokens") == 1:
            script = answer_of(prompt=OVERHEAD + words_in(body), chunks=1, first_s=0.0, gap_s=0.0)
        else:
            self.bodies.append(body)
            self.arrived_s.append(asyncio.get_running_loop().time())
            script = self._answers(len(self.bodies) - 1, body)
        await asyncio.sleep(script.wait_s)
        if script.error is not None and not script.pieces and script.status == 200:
            raise script.error
        return httpx.Response(script.status, headers=script.headers, stream=_Pieces(self, script))


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, server: ScriptedServer, script: Script) -> None:
        self._server = server
        self._script = script

    async def __aiter__(self) -> AsyncIterator[bytes]:
        server = self._server
        server.in_flight += 1
        server.most_in_flight = max(server.most_in_flight, server.in_flight)
        try:
            for wait_s, piece in self._script.pieces:
                if wait_s:
                    await asyncio.sleep(wait_s)
                yield piece
            if self._script.error is not None:
                raise self._script.error
        finally:
            server.in_flight -= 1
