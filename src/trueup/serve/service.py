"""An engine in a thread of its own, and answers as they grow for asyncio outside.

Everything that touches the engine happens in the one thread: it opens the engine, takes in what was asked
in the order it arrived, steps, and turns tokens into text, so that a stop string ends its request before the
next step. What it gives out is handed to the event loop once a step.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Literal

from trueup.schema import TrueupError

from .answer import AnswerText, Piece
from .codec import Codec
from .engine_like import EngineLike, EngineStats
from .finishes import Finishes
from .observer import Finished, Observer, Quiet
from .refusals import BusyError, DrainingError, NotReadyError, ServiceError
from .request import Output, Request, Sampling

TROUBLE_S = 60.0  # that a step which raised is told of, where none follows
State = Literal["loading", "ready", "draining", "failed", "closed"]


@dataclass(frozen=True)
class Ask:
    """One answer that is wanted. `arrived` is by the service's clock, in seconds."""

    prompt: tuple[int, ...]
    sampling: Sampling
    stops: tuple[str, ...] = ()
    arrived: float = field(default_factory=time.perf_counter)


class Answer:
    """One answer on its way. Iterating gives its pieces up to the one with `finish`; it raises ServiceError
    where there will be none, and RefusedError or InputError where the engine does not take the request."""

    def __init__(self, service: Service, ask: Ask) -> None:
        self.id = uuid.uuid4().hex
        self.ask = ask
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._service = service
        self._pieces: asyncio.Queue[Piece | TrueupError] = asyncio.Queue()
        self.over = False

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while True:
            piece = await self._pieces.get()
            if isinstance(piece, TrueupError):
                raise piece
            yield piece
            if piece.finish is not None:
                return

    def cancel(self) -> None:
        """Ends it, where it has not ended; its blocks return at the engine's next turn."""
        self._service.cancel(self)

    def deliver(self, given: Piece | TrueupError | None) -> None:
        """In the event loop: a piece, the end without one, or (None) that the engine took the request."""
        if given is None:
            if not self.accepted.done():
                self.accepted.set_result(None)
            return
        if isinstance(given, TrueupError) and not self.accepted.done():
            self.accepted.set_exception(given)
            self.accepted.exception()  # whoever waited may be gone: no complaint about it
        self.over = self.over or isinstance(given, TrueupError) or given.finish is not None
        self._pieces.put_nowait(given)


@dataclass
class _Live:
    """A request in the engine. Only the engine's thread touches it."""

    answer: Answer
    text: AnswerText
    added: float  # when the engine took it
    queued_s: float | None = None  # from its arrival until the engine began on it
    first: float | None = None  # when its first token came
    last: float = 0.0
    prompt_tokens: int = 0


_Command = tuple[Literal["add", "cancel"], Answer] | None
_Given = tuple[Answer, Piece | TrueupError | None]


class Service:
    """`open_engine` loads and warms up, in the engine's thread. `room` counts the answers, under way or
    waiting, that are accepted at once. Made and used within one event loop."""

    def __init__(
        self,
        open_engine: Callable[[], EngineLike],
        codec: Codec,
        *,
        room: int,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.codec = codec
        self.room = room
        self.clock = clock
        self.state: State = "loading"
        self.reason: str | None = None  # of the state failed
        self.stats: EngineStats | None = None  # as of the last turn of the engine's thread
        self._open_engine = open_engine
        self._observer = observer if observer is not None else Quiet()
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, Answer] = {}
        self._live: dict[str, _Live] = {}
        self._finishes = Finishes()
        self._trouble: tuple[str, float] | None = None  # why the last step raised, and when
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # --- in the event loop ----------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    async def loaded(self) -> None:
        """Until the engine is open and warm. Raises ServiceError where it could not be opened."""
        await self._until(lambda: self.state != "loading")
        if self.state == "failed":
            raise ServiceError(f"the engine could not be opened: {self.reason}")

    async def submit(self, asks: Sequence[Ask]) -> list[Answer]:
        """All of them or none, in the order of the calls. Raises NotReadyError, DrainingError, BusyError,
        ServiceError, and what the engine says of a request that it refuses."""
        self.require_open(len(asks))
        answers = [Answer(self, ask) for ask in asks]
        for answer in answers:
            self._open[answer.id] = answer
            self._inbox.put(("add", answer))
        try:
            for answer in answers:
                await answer.accepted
        except BaseException:
            for answer in answers:
                answer.cancel()
            raise
        return answers

    def require_open(self, more: int = 1) -> None:
        """Raises what `submit` would at once."""
        if self.state == "loading":
            raise NotReadyError("the model is being loaded and warmed up; try again in a moment")
        if self.state in ("draining", "closed"):
            raise DrainingError("the server is shutting down and takes no new requests; ask another")
        if self.state == "failed":
            raise ServiceError(f"the engine has failed and answers nothing any more: {self.reason}")
        if len(self._open) + more > self.room:
            raise BusyError(
                f"{len(self._open)} answers are under way or waiting, and {self.room} are taken at once; "
                "try again later",
                self._finishes.retry_after_s(len(self._open) + more - self.room),
            )

    @property
    def trouble(self) -> str | None:
        """Why the last step raised. Not for ever: whoever is sent no requests for it shows no good step."""
        found = self._trouble
        return found[0] if found is not None and self.clock() - found[1] < TROUBLE_S else None

    @property
    def under_way(self) -> int:
        return len(self._open)

    def cancel(self, answer: Answer) -> None:
        if not answer.over:
            answer.over = True
            self._forget(answer)
            self._inbox.put(("cancel", answer))

    def drain(self) -> None:
        """From now on nothing new is taken."""
        if self.state in ("loading", "ready"):
            self._turn("draining")

    async def idle(self) -> None:
        """Until nothing is under way."""
        await self._until(lambda: not self._open)

    def abandon(self, why: str) -> int:
        """Ends everything under way with a DrainingError; how many answers that were."""
        cut = list(self._open.values())
        for answer in cut:
            answer.deliver(DrainingError(why))
            self._forget(answer)
            self._inbox.put(("cancel", answer))
        return len(cut)

    async def close(self, patience_s: float = 5.0) -> bool:
        """Ends the engine's thread; False where it did not end in time."""
        self._turn("closed")
        self.abandon("the server has ended")
        self._inbox.put(None)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, patience_s)
        return not self._thread.is_alive()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _turn(self, state: State, reason: str | None = None) -> None:
        if self.state not in ("failed", "closed"):
            if state == "ready" and self.state == "draining":
                return
            self.state, self.reason = state, reason
        self._changed.set()

    def _forget(self, answer: Answer) -> None:
        if self._open.pop(answer.id, None) is not None:
            self._finishes.note(self.clock())
        self._changed.set()

    def _deliver(self, given: Sequence[_Given]) -> None:
        for answer, piece in given:
            if not answer.over:
                answer.deliver(piece)
                if answer.over:
                    self._forget(answer)

    # --- in the engine's thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            engine = self._open_engine()
            self.stats = engine.stats()
            self._tell(self._turn, "ready")
            while self._take_in(engine):
                outputs = engine.step()
                given = [one for output in outputs for one in self._given(engine, output)]
                self._look_at(engine.stats(), outputs)
                if given:
                    self._tell(self._deliver, given)
        except BaseException as error:  # whatever it is, nobody may be left waiting
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _look_at(self, stats: EngineStats, outputs: Sequence[Output]) -> None:
        """After a step. Of one that raised everybody in it has the reason; one request without a token, as
        where its logits are not finite, is no trouble of the service's."""
        before, self.stats = self.stats or EngineStats(), stats
        if stats.failed_steps > before.failed_steps:
            reasons = [output.reason for output in outputs if output.finish == "error"]
            if reasons:  # else it is done again, smaller
                self._trouble = reasons[0] or "a step failed", self.clock()
        elif stats.steps > before.steps:
            self._trouble = None

    def _take_in(self, engine: EngineLike) -> bool:
        """All that was asked since; waits where there is nothing to do. False: this is the end."""
        wait = not engine.has_work
        while wait or not self._inbox.empty():
            command = self._inbox.get()
            if command is None:
                return False
            verb, answer = command
            if verb == "add":
                self._add(engine, answer)
            elif (live := self._live.pop(answer.id, None)) is not None:
                engine.cancel(answer.id)
                self._finished(live, "abort")
            self.stats = engine.stats()
            wait = not engine.has_work
        return True

    def _add(self, engine: EngineLike, answer: Answer) -> None:
        if answer.over:  # its client left before its turn came
            return
        ask = answer.ask
        end_ids = self.codec.end_ids | set(ask.sampling.stop_token_ids)
        text = AnswerText(self.codec.text_stream(), ask.stops, end_ids)
        added = self.clock()
        try:
            engine.add(Request(answer.id, ask.prompt, ask.sampling))
        except TrueupError as error:
            self._tell(self._deliver, [(answer, error)])
            return
        self._live[answer.id] = _Live(answer, text, added, prompt_tokens=len(ask.prompt))
        self._tell(self._deliver, [(answer, None)])

    def _given(self, engine: EngineLike, output: Output) -> list[_Given]:
        live = self._live.get(output.request_id)
        if live is None:  # cancelled, and it says so
            return []
        if output.finish in ("error", "cancelled"):
            del self._live[output.request_id]
            self._finished(live, "error")
            reason = output.reason or output.finish
            return [(live.answer, ServiceError(f"the engine gave up: {reason}"))]
        before = live.text.count
        piece = live.text.feed(output.tokens, output.finish, output.cached_tokens)
        if output.waited_s is not None:
            live.queued_s = live.added - live.answer.ask.arrived + output.waited_s
        self._clocked(live, piece.count - before)
        if piece.finish is not None:
            del self._live[output.request_id]
            if output.finish is None:  # by a stop string, of which the engine knows nothing
                engine.cancel(output.request_id)
            self._finished(live, piece.finish)
        return [(live.answer, piece)] if output.tokens or piece.finish is not None else []

    def _clocked(self, live: _Live, new: int) -> None:
        if new == 0:
            return
        now = self.clock()
        if live.first is None:
            live.first = now
            self._observer.first_token(now - live.answer.ask.arrived, live.prompt_tokens)
            self._observer.tokens(new, None)
        else:
            self._observer.tokens(new, now - live.last)
        live.last = now

    def _finished(self, live: _Live, how: Literal["stop", "length", "abort", "error"]) -> None:
        now, count = self.clock(), live.text.count
        decode_s = live.last - live.first if live.first is not None else None
        first_s = live.first - live.answer.ask.arrived if live.first is not None else None
        self._observer.finished(
            Finished(
                how=how,
                prompt_tokens=live.prompt_tokens,
                generated_tokens=count,
                max_tokens=live.answer.ask.sampling.max_tokens,
                e2e_s=now - live.answer.ask.arrived,
                decode_s=decode_s,
                per_token_s=decode_s / (count - 1) if decode_s is not None and count > 1 else None,
                queue_s=live.queued_s,
                prefill_s=None if first_s is None or live.queued_s is None else first_s - live.queued_s,
            )
        )

    def _fail(self, error: BaseException) -> None:
        lines = str(error).strip().splitlines() or ["no message"]
        reason = f"{type(error).__name__}: {lines[0]}"
        for live in self._live.values():
            self._finished(live, "error")
        self._live.clear()
        self._tell(self._failed, reason)

    def _failed(self, reason: str) -> None:
        """In the event loop: everybody who waits hears of it."""
        self._turn("failed", reason)
        for answer in list(self._open.values()):
            answer.deliver(ServiceError(f"the engine has failed: {reason}"))
            self._forget(answer)

    def _tell(self, tell: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(tell, *arguments)
        except RuntimeError:  # the loop has ended, and nobody waits any more
            self._inbox.put(None)
