"""One request of a load run, as the client saw it."""

from __future__ import annotations

from typing import Literal

from .measurement import Frozen

RunKind = Literal["train", "load"]

# Why a request brought no whole answer. `connect`: no connection, or it was lost before the first byte of an
# answer; `disconnected`: the stream ended before the answer did; `malformed`: what came is not the protocol;
# `encoding`: it is not UTF-8; `server_error`: the stream held an error; `empty`: an answer without a token.
RequestError = Literal[
    "connect",
    "timeout",
    "too_many_requests",
    "client_error",
    "server_error",
    "disconnected",
    "malformed",
    "encoding",
    "empty",
    "cancelled",
]


class RequestResult(Frozen):
    """Times are seconds since the run's origin on the client's clock.

    `due_s` is when the request was to be sent by the schedule (with a fixed number in flight: when its place
    became free), `sent_s` when it was, `first_s` and `last_s` when the first and the last text came, `done_s`
    when the answer ended, or failed. `gaps_s` are the times between chunks that held text, of which there
    were `chunks`; a chunk may hold several tokens. Token counts are the server's own, or None: it told none,
    or one that cannot be, and then `doubt` says why.
    """

    index: int
    due_s: float
    sent_s: float
    first_s: float | None = None
    last_s: float | None = None
    done_s: float
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, answered from the server's prefix cache
    output_tokens: int | None = None
    chunks: int = 0
    text_bytes: int | None = None  # of the answer's text in UTF-8, however it was encoded on its way
    gaps_s: tuple[float, ...] = ()
    finish: str | None = None
    status: int | None = None  # HTTP
    error: RequestError | None = None
    reason: str | None = None
    doubt: str | None = None
    warm_up: bool = False  # kept out of every figure
