"""Sends a plan's requests: at their instants whatever the server does, or a number of them in flight.

An open load never waits for an answer before it sends the next request, and its times count from when a
request was due: a client, or a loop, that falls behind makes its latencies longer instead of hiding the load
(coordinated omission).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

from trueup.schema import RequestResult

from .arrivals import places
from .client import Ask, Clock, cancelled

Send = Callable[[Ask, float], Awaitable[RequestResult]]
Took = Callable[[RequestResult], None]


async def open_load(asks: Iterable[Ask], send: Send, took: Took, now: Clock) -> None:
    """Each request at its instant, `due_s` after this call began, in order. `took` gets every result as it
    comes; on cancellation what is in flight is given up and recorded."""
    began_s = now()
    flight = _Flight(send, took, now)
    try:
        for ask in asks:
            due_s = began_s + (ask.due_s or 0.0)
            if (wait_s := due_s - now()) > 0:
                await asyncio.sleep(wait_s)
            flight.launch(ask, due_s)
        await flight.landed()
    finally:
        await flight.give_up()


async def closed_load(
    asks: Iterable[Ask],
    send: Send,
    took: Took,
    now: Clock,
    in_flight: tuple[int, int],
    count: int | None,
    duration_s: float | None,
) -> None:
    """A number of requests in flight, at first and in the end: the next is due when a place is free. None is
    sent after `count`, nor after `duration_s`, of which there is one at least."""
    began_s = now()
    flight = _Flight(send, took, now)

    def progress() -> float:
        by_time = (now() - began_s) / duration_s if duration_s else 0.0
        return max(by_time, flight.done / count if count else 0.0)

    try:
        for ask in asks if count is None else islice(asks, count):
            while flight.count >= places(*in_flight, progress()):
                await flight.one_landed()
            if duration_s is not None and now() - began_s >= duration_s:
                break
            flight.launch(ask, now())
        await flight.landed()
    finally:
        await flight.give_up()


class _Flight:
    """The requests in flight."""

    def __init__(self, send: Send, took: Took, now: Clock) -> None:
        self._send = send
        self._took = took
        self._now = now
        self._tasks: set[asyncio.Task[None]] = set()
        self.done = 0

    @property
    def count(self) -> int:
        return len(self._tasks)

    def launch(self, ask: Ask, due_s: float) -> None:
        task = asyncio.create_task(self._fly(ask, due_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def one_landed(self) -> None:
        await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # let the callbacks take it off the list

    async def landed(self) -> None:
        while self._tasks:
            await self.one_landed()

    async def give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fly(self, ask: Ask, due_s: float) -> None:
        try:
            result = await self._send(ask, due_s)
        except asyncio.CancelledError:
            result = cancelled(ask, due_s, self._now())
        self.done += 1
        self._took(result)
