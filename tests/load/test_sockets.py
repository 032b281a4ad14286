"""What real sockets do: connections refused, closed before an answer, and torn in the middle of one."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

import pytest
from scripted_server import text_chunk

from trueup.load.address import address_of, listeners
from trueup.load.client import Ask, Target, open_client, send
from trueup.load.server import free_port
from trueup.schema import RequestResult

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def piece(raw: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(raw), raw)


def asked_of(answer: Answer) -> RequestResult:
    """What the client makes of a server that reads one request and then does this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer(writer)

    async def ask() -> RequestResult:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, open_client() as http:
            return await _send(http, port)

    return asyncio.run(ask())


async def _send(http: object, port: int) -> RequestResult:
    target = Target(f"http://127.0.0.1:{port}/v1", "m", False, 60.0)
    loop = asyncio.get_running_loop()
    return await send(http, target, Ask(0, "x", 1, 4), loop.time(), loop.time)  # type: ignore[arg-type]


async def torn(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + piece(text_chunk(" a")))
    await writer.drain()
    writer.transport.abort()


async def closed_before_its_answer(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def not_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    writer.close()


async def ended_too_soon(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + piece(text_chunk(" a")) + piece(text_chunk(" b")) + b"0\r\n\r\n")
    writer.close()


async def garbage_for_a_chunk(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + piece(text_chunk(" a")) + b"zz\r\nnot a size\r\n")
    writer.close()


async def half_a_chunk(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + piece(text_chunk(" a")) + b"400\r\ndata: {")
    writer.close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (torn, "disconnected"),
        (closed_before_its_answer, "connect"),
        (not_http, "connect"),
        (ended_too_soon, "disconnected"),
        (garbage_for_a_chunk, "disconnected"),
        (half_a_chunk, "disconnected"),
    ],
)
def test_a_connection_that_breaks_is_an_error_of_its_kind(answer: Answer, kind: str) -> None:
    found = asked_of(answer)
    assert found.error == kind
    assert found.reason


def test_a_port_where_nobody_listens_is_an_error_of_connection() -> None:
    async def ask() -> RequestResult:
        async with open_client() as http:
            return await _send(http, free_port())

    assert asyncio.run(ask()).error == "connect"


def test_requests_at_once_wait_for_none_of_each_other() -> None:
    """All are on the server before the first is answered: no pool of connections holds one back."""
    count, waiting = 200, 0
    everybody = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        await reader.readuntil(b"\r\n\r\n")
        waiting += 1
        if waiting == count:
            everybody.set()
        await everybody.wait()
        writer.write(HEAD + piece(text_chunk(" a", "stop")) + piece(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        writer.close()

    async def ask() -> list[RequestResult]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=count)
        port = server.sockets[0].getsockname()[1]
        async with server, open_client() as http:
            return await asyncio.gather(*(_send(http, port) for _ in range(count)))

    assert {one.error for one in asyncio.run(ask())} == {None}


def test_the_process_that_listens_at_an_address_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listeners(address_of(f"http://127.0.0.1:{port}/v1")) == {os.getpid()}
    assert listeners(address_of(f"http://127.0.0.1:{port}")) == set()
