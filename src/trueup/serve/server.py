"""The server's life: it listens while the model is loaded, serves, finishes what it accepted, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from trueup.schema import InputError, TrueupError

from .admission import ServiceError
from .limits import ApiLimits
from .service import Service

KEEP_ALIVE_S = 5
FLUSH_S = 5  # for the last bytes of answers to reach their clients
PATIENCE_S = 5.0  # for the step under way to end
LOOK_EVERY_S = 1.0  # whether the parent is still there
UNUSABLE = {
    errno.EADDRINUSE: "is taken: another program listens there; choose another --port",
    errno.EACCES: "may not be used by this user; choose a port from 1024 on",
    errno.EADDRNOTAVAIL: "is no address of this machine; choose another --host",
}


@dataclass(frozen=True)
class Ended:
    """How it ended: answers that were cut off, whether the engine's thread ended too, and whether a second
    signal cut them off, or the limit."""

    cut: int
    whole: bool
    at_once: bool = False


class Shutdown:
    """The wish to end. The first one drains; the second one cuts off what is left."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        (self.at_once if self.asked.is_set() else self.asked).set()


class _Server(uvicorn.Server):
    """uvicorn, whose signals mean what ours do: it would take no connections from then on, and clients are to
    hear 503 while answers are being finished."""

    def __init__(self, config: uvicorn.Config, shutdown: Shutdown) -> None:
        super().__init__(config)
        self._shutdown = shutdown
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._shutdown.ask)


class _Connection(H11Protocol):
    """uvicorn's, with an end to its patience: it waits for ever for a request's head, and for a client that
    reads nothing of its answer."""

    def __init__(self, limits: ApiLimits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = _Timer(self._limits.head_s, transport.close)
        self._unread = _Timer(self._limits.unread_s, transport.abort)
        self._head.start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:  # a part of a head
            self._head.start()
        else:
            self._head.stop()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.stop()
        self._unread.stop()
        super().connection_lost(exc)


class _Timer:
    """Calls `late` where it is not stopped within so many seconds of its first start."""

    def __init__(self, after_s: float, late: Callable[[], None]) -> None:
        self._after_s = after_s
        self._late = late
        self._running: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._running is None:
            self._running = asyncio.get_running_loop().call_later(self._after_s, self._late)

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None


def listen(host: str, port: int) -> socket.socket:
    """Raises InputError where that is not to be had. Port 0 is any that is free."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        why = UNUSABLE.get(error.errno or 0, f"cannot be listened on: {error.strerror or error}")
        raise InputError(f"--host {host} --port {port}: it {why}") from None
    except OverflowError:
        raise InputError(f"--port {port}: a port is 0 to 65535") from None
    except (TypeError, ValueError) as error:  # of a host that cannot be encoded
        raise InputError(f"--host {host!r}: neither a name nor an address of a host: {error}") from None


async def serve(
    app: FastAPI,
    service: Service,
    listening: socket.socket,
    *,
    drain_s: float,
    shutdown: Shutdown,
    limits: ApiLimits,
    parent: int | None = None,
    orphaned: Callable[[], None] = lambda: None,
    loaded: Callable[[], None] = lambda: None,
    draining: Callable[[int], None] = lambda _: None,
) -> Ended:
    """Until it is told to stop, or its `parent`, a process id, is gone, and then for `drain_s` more at most.
    Raises ServiceError or InputError where the engine cannot be opened. `loaded` is told when it can,
    `orphaned` when the parent is gone, `draining` how many answers there are to finish when it is to end."""
    config = uvicorn.Config(
        app,
        http=partial(_Connection, limits),  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_S,
    )
    server = _Server(config, shutdown)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    watching = asyncio.create_task(_watch_parent(parent, shutdown, orphaned))
    service.start()
    failure: TrueupError | None = None
    cut = 0
    try:
        if await _first(service.loaded(), shutdown.asked.wait()):
            loaded()
            await _first(shutdown.asked.wait(), _ended(serving))
        draining(service.under_way)
        cut = await _drained(service, shutdown, drain_s)
    except (ServiceError, InputError) as error:
        failure = error
    finally:
        watching.cancel()
        server.should_exit = True
        await serving
        # What is still loading is not waited for: nobody has anything of it.
        whole = await service.close(PATIENCE_S if service.stats is not None else 0)
    if failure is not None:
        raise failure
    return Ended(cut, whole, shutdown.at_once.is_set())


async def _drained(service: Service, shutdown: Shutdown, drain_s: float) -> int:
    """Finishes what was accepted, within the limit; how many answers were cut off."""
    service.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await _first(service.idle(), shutdown.at_once.wait())
    waited = "was told not to wait" if shutdown.at_once.is_set() else f"has waited {drain_s:g} s"
    return service.abandon(f"the server is shutting down and {waited}; ask another")


async def _watch_parent(parent: int | None, shutdown: Shutdown, orphaned: Callable[[], None]) -> None:
    """Tells, and asks for the end, when the process that started this one is gone."""
    while parent is not None and os.getppid() == parent:
        await asyncio.sleep(LOOK_EVERY_S)
    if parent is not None:
        orphaned()
        shutdown.asked.set()  # and not a second time, where it was asked before


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


async def _first(wanted: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> bool:
    """Waits for either; whether it was the first one. What that raises is raised."""
    tasks = [asyncio.create_task(one) for one in (wanted, other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            return True
        return False
    finally:
        for task in tasks:
            task.cancel()
