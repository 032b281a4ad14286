"""The HTTP API: routes, who may ask, and one way from a request to its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from .completions import Completions, Made, Served
from .idempotency import Head, KeptAnswer, KeptAnswers, fingerprint_of, key_of
from .limits import ApiKeys, ApiLimits
from .metrics import CONTENT_TYPE, ServingMetrics
from .openai_errors import SOON_S, ApiError, not_found
from .service import Service

READ_ON = 16  # times the most bytes of a body: what is too large is read so far, and forgotten

Make = Callable[[bytes, float], Awaitable[Made]]


@dataclass(frozen=True)
class Api:
    """What the routes need. Made within the event loop that serves them."""

    service: Service
    served: Served
    metrics: ServingMetrics
    limits: ApiLimits
    keys: ApiKeys
    answers: KeptAnswers
    require_key: bool = False  # refuse requests without an Idempotency-Key


def make_app(api: Api) -> FastAPI:
    tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
    completions = Completions(api.service, api.served, api.limits, tokenizing)
    app = FastAPI(title="trueup", docs_url=None, redoc_url=None, openapi_url=None)
    recording: set[asyncio.Task[None]] = set()

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        words = f"{request.method} {request.url.path}: {error.detail}"
        return _refusal(api, ApiError(error.status_code, words), dict(error.headers or {}))

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return _refusal(api, error)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        """A fault of ours; the server logs it and lives on."""
        return _refusal(api, ApiError(500, f"the server failed on this request: {type(error).__name__}"))

    @app.get("/health")
    async def health() -> Response:
        reason = api.service.reason if api.service.state == "failed" else api.service.trouble
        if reason is not None:
            return JSONResponse({"status": "failed", "reason": reason}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        state = api.service.state
        if state == "ready":
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": state}, 503, {"Retry-After": str(SOON_S)})

    @app.get("/metrics")
    async def metrics() -> Response:
        api.metrics.keeps(api.answers.held_bytes)
        return Response(api.metrics.page(), media_type=CONTENT_TYPE)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        _owner(api, request)
        return JSONResponse({"object": "list", "data": [_model(api.served)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str, request: Request) -> Response:
        _owner(api, request)
        if name != api.served.name:
            raise not_found(name, api.served.name)
        return JSONResponse(_model(api.served))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _answered(api, request, completions.chat, recording)

    @app.post("/v1/completions")
    async def completion(request: Request) -> Response:
        return await _answered(api, request, completions.plain, recording)

    return app


async def _answered(api: Api, request: Request, make: Make, recording: set[asyncio.Task[None]]) -> Response:
    arrived = api.service.clock()
    owner = _owner(api, request)
    key = _key(api, request)
    body = await _body(request, api.limits)
    if key is None:
        made = await _while_wanted(request, make(body, arrived))
        return _counted(api, Flow(made.head, made.chunks, made.end))
    kept, new = api.answers.begin(owner, key, fingerprint_of(request.method, request.url.path, body))
    if new:
        task = asyncio.create_task(_record(api.answers, owner, key, kept, make(body, arrived)))
        recording.add(task)  # the loop itself keeps no hold of it
        task.add_done_callback(recording.discard)
    else:
        api.metrics.replayed()
    chunks = kept.chunks()  # before the head, with which an answer can be done and let go
    return _counted(api, Flow(await kept.head(), chunks))


async def _record(
    answers: KeptAnswers, owner: str, key: str, kept: KeptAnswer, making: Awaitable[Made]
) -> None:
    """Makes the answer whether or not its client stays; a key whose request came to nothing is free again."""
    error: Exception | None = None
    try:
        made = await making
        kept.begin(made.head)
        async for chunk in made.chunks:
            kept.add(chunk)
        error = made.broken
    except Exception as raised:
        error = raised
    except BaseException:
        answers.close(owner, key, kept, ApiError(503, "the server has ended", code="draining"))
        raise
    answers.close(owner, key, kept, error)


async def _while_wanted(request: Request, making: Awaitable[Made]) -> Made:
    """Given up where the client leaves: nothing of it goes on."""
    task, gone = asyncio.ensure_future(making), asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            raise _gone()
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


def _gone() -> ApiError:
    """Read by nobody; 499 is the number that nginx gave it."""
    return ApiError(499, "the client left before the answer")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Flow(Response):
    """Sends chunks as they come, and closes their source where the client leaves. `end` is called at last."""

    def __init__(
        self, head: Head, chunks: AsyncIterator[bytes], end: Callable[[], None] = lambda: None
    ) -> None:
        self.status_code = head.status
        self.background = None
        self.raw_headers = [(name.encode(), value.encode()) for name, value in head.headers]
        self._chunks = chunks
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()  # a fault of ours shows
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            if isinstance(self._chunks, AsyncGenerator):
                await self._chunks.aclose()
            self._end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)  # chunks that are there already leave time to hear that the client left
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _body(request: Request, limits: ApiLimits) -> bytes:
    """Raises ApiError 413 and 408. A client that is still sending when the connection closes may never see
    why, so a body that is too large is read on for a while; one that asks beforehand is told at once."""
    too_large = ApiError(
        413,
        f"the body is larger than {limits.body_bytes} bytes",
        code="request_too_large",
        headers={"Connection": "close"},  # what is left of it is not read
    )
    most = limits.body_bytes * READ_ON
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > (limits.body_bytes if "expect" in request.headers else most):
        raise too_large
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(limits.body_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise too_large
                if size <= limits.body_bytes:
                    body += chunk
    except TimeoutError:
        raise ApiError(
            408,
            f"the body did not come within {limits.body_s:g} s",
            code="timeout",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise _gone() from None
    if size > limits.body_bytes:
        raise too_large
    return bytes(body)


def _key(api: Api, request: Request) -> str | None:
    sent = set(request.headers.getlist("idempotency-key"))
    if len(sent) > 1:
        raise ApiError.of_key(
            400,
            "idempotency_key_invalid",
            "several headers Idempotency-Key that differ; a request has one key",
        )
    return key_of(next(iter(sent), None), required=api.require_key)


def _owner(api: Api, request: Request) -> str:
    owner = api.keys.owner_of(request.headers.get("authorization"))
    if owner is None:
        raise ApiError(
            401,
            "no valid API key was given; send one as the header `Authorization: Bearer KEY`",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return owner


def _model(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "trueup",
        "max_model_len": served.most_tokens,
    }


def _refusal(api: Api, error: ApiError, more: dict[str, str] | None = None) -> Response:
    headers = {"content-type": "application/json", **(more or {}), **error.headers}
    return _counted(api, Response(error.body, error.status, headers))


def _counted(api: Api, response: Response) -> Response:
    api.metrics.responded(response.status_code)
    return response
