"""An engine in a thread of its own, which opens it, takes in what was asked in the order it came, steps, and
turns tokens into text, so that a stop string ends its request before the next step."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol

from trueup.schema import TrueupError

from .admission import ServiceError
from .answer import AnswerText, Piece
from .codec import Codec
from .protocols import EngineLike, EngineStats, Finished, How, Observer
from .request import Output, Request, Sampling

TROUBLE_S = 60.0  # that a step which raised is told of, where none follows


@dataclass(frozen=True)
class Ask:
    """One answer that is wanted. `arrived` is by the service's clock, in seconds."""

    prompt: tuple[int, ...]
    sampling: Sampling
    stops: tuple[str, ...] = ()
    arrived: float = field(default_factory=time.perf_counter)


# What there is of the answer of this name: a piece, why there is none, or (None) that the engine took it.
Given = tuple[str, Piece | TrueupError | None]


class Listener(Protocol):
    """Who is told, in the event loop."""

    def opened(self) -> None: ...
    def deliver(self, given: Sequence[Given]) -> None: ...
    def failed(self, reason: str) -> None: ...


@dataclass
class _Live:
    """A request in the engine. Moments are in seconds, by the service's clock."""

    ask: Ask
    text: AnswerText
    added: float  # when the engine took it
    queued_s: float | None = None  # from its arrival until the engine began on it
    first: float | None = None  # when its first token came
    last: float = 0.0

    def finished(self, how: How, now: float) -> Finished:
        ask, count = self.ask, self.text.count
        decode_s = first_s = None
        if self.first is not None:
            decode_s, first_s = self.last - self.first, self.first - ask.arrived
        return Finished(
            how=how,
            prompt_tokens=len(ask.prompt),
            generated_tokens=count,
            max_tokens=ask.sampling.max_tokens,
            e2e_s=now - ask.arrived,
            decode_s=decode_s,
            per_token_s=decode_s / (count - 1) if decode_s is not None and count > 1 else None,
            queue_s=self.queued_s,
            prefill_s=None if first_s is None or self.queued_s is None else first_s - self.queued_s,
        )


class EngineThread:
    """Made within the event loop in which `listener` is told; what is given out is handed to it once a step.
    `stats` are as of the thread's last turn; None before the engine is open."""

    def __init__(
        self,
        open_engine: Callable[[], EngineLike],
        codec: Codec,
        observer: Observer,
        clock: Callable[[], float],
        listener: Listener,
    ) -> None:
        self.stats: EngineStats | None = None
        self.failure: BaseException | None = None  # what ended the thread
        self._open_engine = open_engine
        self._codec = codec
        self._observer = observer
        self._clock = clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[tuple[str, Ask | None] | None] = (
            SimpleQueue()
        )  # no Ask: cancelled; None: end
        self._left: set[str] = set()  # cancelled, and the engine was not told yet
        self._live: dict[str, _Live] = {}
        self._trouble: tuple[str, float] | None = None  # why the last step raised, and when
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # --- outside of the thread ------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def add(self, name: str, ask: Ask) -> None:
        self._inbox.put((name, ask))

    def cancel(self, name: str) -> None:
        self._left.add(name)
        self._inbox.put((name, None))

    async def end(self, patience_s: float) -> bool:
        """False where it did not end in time."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, patience_s)
        return not self._thread.is_alive()

    @property
    def trouble(self) -> str | None:
        """Why the last step raised. Not for ever: whoever is sent no requests for it shows no good step."""
        found = self._trouble
        return found[0] if found is not None and self._clock() - found[1] < TROUBLE_S else None

    # --- in the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            engine = self._open_engine()
            self.stats = engine.stats()
            self._tell(self._listener.opened)
            while self._take_in(engine):
                outputs = engine.step()
                given = [one for output in outputs for one in self._given(engine, output)]
                self._look_at(engine.stats(), outputs)
                if given:
                    self._tell(self._listener.deliver, given)
        except BaseException as error:  # whatever it is, nobody may be left waiting
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _take_in(self, engine: EngineLike) -> bool:
        """All that was asked since; waits where there is nothing to do. False: this is the end."""
        wait = not engine.has_work
        while wait or not self._inbox.empty():
            command = self._inbox.get()
            if command is None:
                return False
            name, ask = command
            if ask is not None:
                self._add(engine, name, ask)
            else:
                self._cancel(engine, name)
            self.stats = engine.stats()
            wait = not engine.has_work
        return True

    def _add(self, engine: EngineLike, name: str, ask: Ask) -> None:
        if name in self._left:  # before its turn came
            return
        end_ids = self._codec.end_ids | set(ask.sampling.stop_token_ids)
        text = AnswerText(self._codec.text_stream(), ask.stops, end_ids)
        added = self._clock()
        try:
            engine.add(Request(name, ask.prompt, ask.sampling))
        except TrueupError as error:
            self._tell(self._listener.deliver, [(name, error)])
            return
        self._live[name] = _Live(ask, text, added)
        self._tell(self._listener.deliver, [(name, None)])

    def _cancel(self, engine: EngineLike, name: str) -> None:
        self._left.discard(name)
        live = self._live.pop(name, None)
        if live is not None:
            engine.cancel(name)
            self._finished(live, "abort")

    def _given(self, engine: EngineLike, output: Output) -> list[Given]:
        name = output.request_id
        live = self._live.get(name)
        if live is None:  # cancelled, and it says so
            return []
        if output.finish in ("error", "cancelled"):
            del self._live[name]
            self._finished(live, "error")
            return [(name, ServiceError(f"the engine gave up: {output.reason or output.finish}"))]
        before = live.text.count
        piece = live.text.feed(output.tokens, output.finish, output.cached_tokens)
        if output.waited_s is not None:
            live.queued_s = live.added - live.ask.arrived + output.waited_s
        self._clocked(live, piece.count - before)
        if piece.finish is not None:
            del self._live[name]
            if output.finish is None:  # by a stop string, of which the engine knows nothing
                engine.cancel(name)
            self._finished(live, piece.finish)
        return [(name, piece)] if output.tokens or piece.finish is not None else []

    def _clocked(self, live: _Live, new: int) -> None:
        if new == 0:
            return
        now = self._clock()
        if live.first is None:
            live.first = now
            self._observer.first_token(now - live.ask.arrived, len(live.ask.prompt))
            self._observer.tokens(new, None)
        else:
            self._observer.tokens(new, now - live.last)
        live.last = now

    def _finished(self, live: _Live, how: How) -> None:
        self._observer.finished(live.finished(how, self._clock()))

    def _look_at(self, stats: EngineStats, outputs: Sequence[Output]) -> None:
        """After a step. Of one that raised everybody in it has the reason; one request without a token, as
        where its logits are not finite, is no trouble of the service's."""
        before, self.stats = self.stats or EngineStats(), stats
        if stats.failed_steps > before.failed_steps:
            reasons = [output.reason for output in outputs if output.finish == "error"]
            if reasons:  # else it is done again, smaller
                self._trouble = reasons[0] or "a step failed", self._clock()
        elif stats.steps > before.steps:
            self._trouble = None

    def _fail(self, error: BaseException) -> None:
        lines = str(error).strip().splitlines() or ["no message"]
        self.failure = error
        for live in self._live.values():
            self._finished(live, "error")
        self._live.clear()
        whose = "" if isinstance(error, TrueupError) else f"{type(error).__name__}: "  # ours says all
        self._tell(self._listener.failed, f"{whose}{lines[0]}")

    def _tell(self, tell: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(tell, *arguments)
        except RuntimeError:  # the loop has ended, and nobody waits any more
            self._inbox.put(None)
