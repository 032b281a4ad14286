"""One request over HTTP, answered as a stream, and what came of it. Retries are off: a retried request would
hide the failure and add its wait to another's time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trueup.schema import MissingExtraError, RequestError, RequestResult
from trueup.schema.counting import counted

from .answer import Answer, BrokenAnswerError, reason_of
from .sse import EventReader, EventTooLongError
from .usage import Expected, believed

if TYPE_CHECKING:
    import httpx

CONNECT_WITHIN_S = 10.0
# Below the five seconds after which common servers close an idle connection: one that is being closed while
# it is taken up again would be an error of the load's own making.
IDLE_CONNECTION_S = 3.0
MOST_ERROR_BYTES = 64 << 10

Clock = Callable[[], float]


@dataclass(frozen=True)
class Target:
    """Where requests go, and what they all say."""

    base_url: str  # up to and with /v1
    model: str
    chat: bool
    timeout_s: float
    ignore_eos: bool = True
    api_key: str | None = field(default=None, repr=False)
    temperature: float = 0.0

    @property
    def url(self) -> str:
        return f"{self.base_url}/{'chat/completions' if self.chat else 'completions'}"

    def body(self, prompt: str, output_tokens: int | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": self.temperature,
        }
        body |= {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        if output_tokens is not None:
            body["max_tokens"] = output_tokens
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body

    @property
    def headers(self) -> dict[str, str]:
        return key_header(self.api_key)


def key_header(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


@dataclass(frozen=True)
class Ask:
    """One request to send. `due_s` is filled in by the clock where it is None. `counted_tokens` are the
    prompt's by the server's own counts of others of the same words, None where those do not tell."""

    index: int
    prompt: str
    prompt_tokens: int | None
    output_tokens: int | None
    due_s: float | None = None
    warm_up: bool = False
    counted_tokens: int | None = None


def open_client(transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """A client without a limit on connections (none waits for another), retries, redirects or proxies."""
    try:
        import httpx
    except ImportError:
        raise MissingExtraError("httpx", "load", "a load") from None
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_CONNECTION_S
    )
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=CONNECT_WITHIN_S),
        limits=limits,
        follow_redirects=False,
        trust_env=False,
        transport=transport,
    )


async def send(http: httpx.AsyncClient, target: Target, ask: Ask, due_s: float, now: Clock) -> RequestResult:
    """Send the request and read its answer to the end. Whatever becomes of it is the result; only a
    cancellation is raised, and is to be recorded by `cancelled`."""
    answer, sent_s, status = Answer(), now(), _Status()
    try:
        async with asyncio.timeout(target.timeout_s):
            await _exchange(http, target, ask, answer, status, now)
        answer.require_whole()
    except TimeoutError:
        error: tuple[RequestError, str] | None = ("timeout", f"no whole answer in {target.timeout_s:g} s")
    except BrokenAnswerError as broken:
        error = (broken.kind, str(broken))
    else:
        error = None
    return _result(ask, due_s, sent_s, now(), answer, status.code, error)


def cancelled(ask: Ask, due_s: float, at_s: float) -> RequestResult:
    """A request that the load itself gave up."""
    error: tuple[RequestError, str] = ("cancelled", "the load was ended before its answer")
    return _result(ask, due_s, min(due_s, at_s), at_s, Answer(), None, error)


class _Status:
    """The answer's HTTP status, known before its body."""

    code: int | None = None


async def _exchange(
    http: httpx.AsyncClient, target: Target, ask: Ask, answer: Answer, status: _Status, now: Clock
) -> None:
    import httpx

    body = target.body(ask.prompt, ask.output_tokens)
    try:
        async with http.stream("POST", target.url, json=body, headers=target.headers) as response:
            status.code = response.status_code
            if response.status_code != 200:
                raise await _refusal(response)
            await _read(response, answer, now)
    except httpx.DecodingError as error:
        raise BrokenAnswerError("encoding", f"the body's encoding is broken: {error}") from None
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        if status.code is None:
            raise BrokenAnswerError("connect", why) from None
        raise BrokenAnswerError("disconnected", f"after {counted(answer.chunks, 'chunk')}: {why}") from None


async def _read(response: httpx.Response, answer: Answer, now: Clock) -> None:
    reader = EventReader()
    try:
        async for raw in response.aiter_bytes():
            at_s = now()
            for data in reader.feed(raw):
                answer.take(data, at_s)
    except EventTooLongError as error:
        raise BrokenAnswerError("malformed", str(error)) from None
    if reader.rest().strip() == b"[DONE]":
        answer.ended = True
    kind = response.headers.get("content-type", "")
    if not answer.chunks and not answer.ended and not kind.startswith("text/event-stream"):
        raise BrokenAnswerError("malformed", f"the answer is {kind or 'of no type'}, not text/event-stream")


async def _refusal(response: httpx.Response) -> BrokenAnswerError:
    """An answer that is no 200, with what its body says."""
    raw = b""
    async for part in response.aiter_bytes():
        raw += part
        if len(raw) > MOST_ERROR_BYTES:
            break
    text = raw.decode("utf-8", "replace")
    try:
        said = reason_of(json.loads(text))
    except (ValueError, RecursionError):
        said = reason_of(text)
    code = response.status_code
    why = f"HTTP {code}: {said or response.reason_phrase}"
    if response.has_redirect_location:
        there = reason_of(response.headers["location"])
        why += f"; it sends on to {there}, which is not followed: give the server's own address"
    if after := response.headers.get("retry-after"):
        why += f"; it says to try again after {reason_of(after)[:40]} s, and retries are off"
    kind: RequestError = "server_error" if code >= 500 else "client_error"
    return BrokenAnswerError("too_many_requests" if code == 429 else kind, why)


def _result(
    ask: Ask,
    due_s: float,
    sent_s: float,
    done_s: float,
    answer: Answer,
    status: int | None,
    error: tuple[RequestError, str] | None,
) -> RequestResult:
    kind, reason = error or (None, None)
    counts = believed(answer.usage, Expected(ask.counted_tokens, ask.output_tokens, answer.chunks > 0))
    return RequestResult(
        index=ask.index,
        due_s=due_s,
        sent_s=sent_s,
        first_s=answer.first_s,
        last_s=answer.last_s,
        done_s=done_s,
        asked_prompt_tokens=ask.prompt_tokens,
        asked_output_tokens=ask.output_tokens,
        prompt_tokens=counts.prompt,
        cached_tokens=counts.cached,
        output_tokens=counts.output,
        chunks=answer.chunks,
        text_bytes=answer.text_bytes,
        gaps_s=tuple(round(gap, 7) for gap in answer.gaps_s),
        finish=answer.finish,
        status=status,
        error=kind,
        reason=reason,
        doubt=counts.doubt,
        warm_up=ask.warm_up,
    )
