"""Answers as they grow, for asyncio: who is accepted, who waits, and what all of them hear when it ends."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

from trueup.schema import InputError, TrueupError
from trueup.schema.counting import counted

from .admission import BusyError, DrainingError, Finishes, NotReadyError, ServiceError
from .answer import Piece
from .codec import Codec
from .engine_thread import Ask, EngineThread, Given
from .protocols import EngineLike, EngineStats, Observer, Quiet

State = Literal["loading", "ready", "draining", "failed", "closed"]


class Answer:
    """One answer on its way. Iterating gives its pieces up to the one with `finish`; it raises ServiceError
    where there will be none, and RefusedError or InputError where the engine does not take the request."""

    def __init__(self, service: Service) -> None:
        self.name = uuid.uuid4().hex
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._service = service
        self._pieces: asyncio.Queue[Piece | TrueupError] = asyncio.Queue()

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

    def deliver(self, piece: Piece | TrueupError | None) -> bool:
        """A piece, the end without one, or (None) that the engine took the request; whether it is over."""
        if piece is None:
            if not self.accepted.done():
                self.accepted.set_result(None)
            return False
        if isinstance(piece, TrueupError) and not self.accepted.done():
            self.accepted.set_exception(piece)
            self.accepted.exception()  # whoever waited may be gone: no complaint about it
        self._pieces.put_nowait(piece)
        return isinstance(piece, TrueupError) or piece.finish is not None


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
        self._open: dict[str, Answer] = {}
        self._finishes = Finishes()
        self._changed = asyncio.Event()
        self._engine = EngineThread(open_engine, codec, observer or Quiet(), clock, self)

    @property
    def stats(self) -> EngineStats | None:
        """As of the last turn of the engine's thread."""
        return self._engine.stats

    @property
    def trouble(self) -> str | None:
        """Why the last step raised, for a while."""
        return self._engine.trouble

    @property
    def under_way(self) -> int:
        return len(self._open)

    def start(self) -> None:
        self._engine.start()

    async def loaded(self) -> None:
        """Until the engine is open and warm. Raises InputError where it could not be opened because of
        what was asked for, and ServiceError where for any other reason."""
        await self._until(lambda: self.state != "loading")
        if self.state == "failed" and isinstance(self._engine.failure, InputError):
            raise InputError(self.reason)
        if self.state == "failed":
            raise ServiceError(f"the engine could not be opened: {self.reason}")

    async def submit(self, asks: Sequence[Ask]) -> list[Answer]:
        """All of them or none, in the order of the calls. Raises NotReadyError, DrainingError, BusyError,
        ServiceError, and what the engine says of a request that it refuses."""
        self.require_open(len(asks))
        answers = [Answer(self) for _ in asks]
        for answer, ask in zip(answers, asks, strict=True):
            self._open[answer.name] = answer
            self._engine.add(answer.name, ask)
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
                f"{counted(len(self._open), 'answer')} under way or waiting, of {self.room} taken at once; "
                "try again later",
                self._finishes.retry_after_s(len(self._open) + more - self.room),
            )

    def cancel(self, answer: Answer) -> None:
        if self._forget(answer):
            self._engine.cancel(answer.name)

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
            answer.cancel()
        return len(cut)

    async def close(self, patience_s: float) -> bool:
        """Ends the engine's thread; False where it did not end in time."""
        self._turn("closed")
        self.abandon("the server has ended")
        return await self._engine.end(patience_s)

    # --- what the engine's thread tells ---------------------------------------------------------------------

    def opened(self) -> None:
        if self.state == "loading":
            self._turn("ready")

    def deliver(self, given: Sequence[Given]) -> None:
        for name, piece in given:
            answer = self._open.get(name)
            if answer is not None and answer.deliver(piece):
                self._forget(answer)

    def failed(self, reason: str) -> None:
        """Everybody who waits hears of it."""
        self._turn("failed", reason)
        for answer in list(self._open.values()):
            answer.deliver(ServiceError(f"the engine has failed: {reason}"))
            self._forget(answer)

    # --------------------------------------------------------------------------------------------------------

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _turn(self, state: State, reason: str | None = None) -> None:
        if self.state not in ("failed", "closed"):
            self.state, self.reason = state, reason
        self._changed.set()

    def _forget(self, answer: Answer) -> bool:
        """Whether it was not over yet."""
        was_open = self._open.pop(answer.name, None) is not None
        if was_open:
            self._finishes.note(self.clock())
        self._changed.set()
        return was_open
