"""An engine without a model: what it answers is written down beforehand, and it steps when it is let."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from trueup.serve.protocols import EngineStats
from trueup.serve.request import FinishReason, Output, RefusedError, Request, Token

END = 258  # <|im_end|> of the tiny tokenizer, whose bytes are its tokens
BLOCK_SIZE = 4
PAUSE_S = 0.001  # between looks whether a held engine may step


@dataclass
class _Running:
    request: Request
    answer: list[int]
    given: int = 0


def says(text: str) -> Callable[[Request], list[int]]:
    """The same answer to everybody, with its end."""
    return lambda request: [*text.encode(), END]


def without_end(request: Request) -> list[int]:
    return list(b"ab") * request.sampling.max_tokens


@dataclass
class FakeEngine:
    """One token for each of `rows` requests a step. `held`: only as many steps as `let` allows."""

    script: Callable[[Request], Sequence[int]] = field(default_factory=lambda: says("Hello, world."))
    rows: int = 4
    blocks: int = 64
    context: int = 512
    held: bool = False
    broken: Exception | None = None  # what every step raises
    fails: str | None = None  # what every step that raises says of its requests
    spoilt: str | None = None  # what every step that goes well says of them
    requests: list[Request] = field(default_factory=list)
    waiting: list[_Running] = field(default_factory=list)
    running: list[_Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._gate = threading.Semaphore(0)
        self._stats = EngineStats(blocks=self.blocks)

    def let(self, steps: int) -> None:
        self._gate.release(steps)

    def free(self) -> None:
        self.held = False
        self._gate.release(1000)

    def add(self, request: Request) -> None:
        needs = len(request.prompt) + request.sampling.max_tokens
        if needs > self.context:
            raise RefusedError("it can never fit", needs=needs, has=self.context, unit="tokens")
        self.requests.append(request)
        self.waiting.append(_Running(request, list(self.script(request))))

    def cancel(self, request_id: str) -> None:
        self.waiting = [one for one in self.waiting if one.request.id != request_id]
        self.running = [one for one in self.running if one.request.id != request_id]

    def step(self) -> list[Output]:
        if self.held and not self._gate.acquire(timeout=PAUSE_S):
            return []
        if self.broken is not None:
            raise self.broken
        failed = self._stats.failed_steps + (self.fails is not None)
        self._stats = replace(self._stats, steps=self._stats.steps + 1, failed_steps=failed)
        while self.waiting and len(self.running) < self.rows:
            self.running.append(self.waiting.pop(0))
        outputs = [self._next(one) for one in self.running]
        over = {output.request_id for output in outputs if output.finish is not None}
        self.running = [one for one in self.running if one.request.id not in over]
        return outputs

    def _next(self, one: _Running) -> Output:
        request, prompt = one.request, len(one.request.prompt)
        if reason := self.fails or self.spoilt:
            return Output(request.id, (), "error", prompt, 0, reason)
        token = one.answer[one.given]
        one.given += 1
        finish: FinishReason | None = "length" if one.given == request.sampling.max_tokens else None
        if (token == END and not request.sampling.ignore_eos) or token in request.sampling.stop_token_ids:
            finish = "stop"
        top = ((token, -0.25), (token + 1, -1.5)) if request.sampling.logprobs else ()
        logprob = None if request.sampling.logprobs is None else -0.25
        return Output(request.id, (Token(token, logprob, top),), finish, prompt, 0)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def stats(self) -> EngineStats:
        used = sum(math.ceil((len(one.request.prompt) + one.given) / BLOCK_SIZE) for one in self.running)
        return replace(self._stats, waiting=len(self.waiting), running=len(self.running), blocks_used=used)
