"""The server's life: it listens while the model is loaded, serves, finishes what it accepted, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from trueup.schema import InputError

from .refusals import ServiceError
from .service import Service

KEEP_ALIVE_S = 5
FLUSH_S = 5  # for the last bytes of answers to reach their clients
UNUSABLE = {
    errno.EADDRINUSE: "is taken: another program listens there; choose another --port",
    errno.EACCES: "may not be used by this user; choose a port from 1024 on",
    errno.EADDRNOTAVAIL: "is no address of this machine; choose another --host",
}


@dataclass(frozen=True)
class Ended:
    """How it ended: answers that were cut off at the limit, and whether the engine's thread ended too."""

    cut: int
    whole: bool


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


async def serve(
    app: FastAPI,
    service: Service,
    listening: socket.socket,
    *,
    drain_s: float,
    shutdown: Shutdown,
    loaded: Callable[[], None] = lambda: None,
) -> Ended:
    """Until it is told to stop, and then for `drain_s` more at most. Raises ServiceError where the engine
    cannot be opened. `loaded` is told when it can."""
    config = uvicorn.Config(
        app,
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
    service.start()
    failure: ServiceError | None = None
    cut = 0
    try:
        if await _first(service.loaded(), shutdown.asked.wait()):
            loaded()
            await _first(shutdown.asked.wait(), _ended(serving))
        cut = await _drained(service, shutdown, drain_s)
    except ServiceError as error:
        failure = error
    finally:
        server.should_exit = True
        await serving
        whole = await service.close()
    if failure is not None:
        raise failure
    return Ended(cut, whole)


async def _drained(service: Service, shutdown: Shutdown, drain_s: float) -> int:
    """Finishes what was accepted, within the limit; how many answers were cut off."""
    service.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await _first(service.idle(), shutdown.at_once.wait())
    return service.abandon(f"the server is shutting down and has waited {drain_s:g} s; ask another")


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
