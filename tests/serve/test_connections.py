"""Connections that keep the server waiting for nothing are closed, and others are none the worse for it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest
import uvicorn
from api_server import MODEL, Running, serving
from fake_engine import FakeEngine
from uvicorn.server import ServerState

from trueup.serve.limits import ApiLimits
from trueup.serve.server import _Connection

SOON = ApiLimits(head_s=0.05, unread_s=0.05)
PLAIN: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 20}
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def connected(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_a_client_that_sends_nothing_is_let_go() -> None:
    with serving(limits=SOON) as server, connected(server) as raw:
        assert raw.recv(1) == b""
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_head_that_comes_by_the_byte_is_not_waited_for() -> None:
    with serving(limits=SOON) as server, connected(server) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nX-Slow: ")
        raw.settimeout(0.01)
        for _ in range(5000):  # far fewer bytes than a head may have
            try:
                raw.sendall(b"a")
                assert raw.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the server waits on")


def test_the_head_of_a_further_request_is_not_waited_for_either() -> None:
    with serving(limits=SOON) as server, connected(server) as raw:
        raw.sendall(HEALTH)
        assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")
        raw.sendall(HEALTH[:20])
        while part := raw.recv(4096):
            assert b"HTTP" not in part  # the rest of the first answer


def test_an_answer_may_take_longer_than_a_head() -> None:
    engine = FakeEngine(held=True)
    with serving(engine, limits=SOON) as server, connected(server) as asking, connected(server) as silent:
        body = b'{"model": "tiny", "prompt": "hi", "max_tokens": 20}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        asking.sendall(head % len(body) + body)
        assert silent.recv(1) == b""  # by now the time for a head is over
        engine.free()
        with asking.makefile("rb") as reader:
            assert reader.read().startswith(b"HTTP/1.1 200 ")


class Line(asyncio.Transport):
    """A client that reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = asyncio.Event()

    def abort(self) -> None:
        self.cut.set()

    def close(self) -> None:
        pass


def unread(line: Line) -> _Connection:
    """A connection whose buffers are full."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    connection = _Connection(SOON, uvicorn.Config(app, http=_Connection), ServerState(), {})
    connection.connection_made(line)
    connection.pause_writing()
    return connection


def test_a_client_that_reads_nothing_of_its_answer_is_let_go() -> None:
    async def main() -> None:
        reading, silent = Line(), Line()
        unread(reading).resume_writing()
        unread(silent)
        await asyncio.wait_for(silent.cut.wait(), 60)
        assert not reading.cut.is_set()

    asyncio.run(main())
