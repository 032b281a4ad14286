"""What a load under way has come to, told every ten seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from trueup.schema import RequestResult
from trueup.schema.counting import counted

TELL_EVERY_S = 10.0

Tell = Callable[[str], None]


class Progress:
    """Requests by what became of them by now, of those sent `through` it."""

    def __init__(self) -> None:
        self._answered = 0
        self._failed = 0
        self._in_flight = 0

    async def through(self, request: Awaitable[RequestResult]) -> RequestResult:
        self._in_flight += 1
        try:
            result = await request
        finally:
            self._in_flight -= 1
        if result.error is None:
            self._answered += 1
        else:
            self._failed += 1
        return result

    @asynccontextmanager
    async def told(self, tell: Tell, what: str, planned: Callable[[], int | None]) -> AsyncIterator[None]:
        """A line each ten seconds for as long as the block lasts. `planned`: how many requests there will be,
        None where that is not known."""
        telling = asyncio.create_task(self._keep_telling(tell, what, planned))
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def _keep_telling(self, tell: Tell, what: str, planned: Callable[[], int | None]) -> None:
        now = asyncio.get_running_loop().time
        began_s = now()
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            tell(f"{what} for {now() - began_s:.0f} s: {self._words(planned())}")

    def _words(self, planned: int | None) -> str:
        of = (
            counted(self._answered, "request")
            if planned is None
            else (f"{self._answered} of {counted(planned, 'request')}")
        )
        return f"{of} answered, {self._in_flight} in flight, {self._failed} failed"
