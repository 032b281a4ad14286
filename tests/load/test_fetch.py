"""What a server tells of itself is read within a time and a size, whatever the server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from virtual_time import VirtualLoop

from trueup.load.address import Address, served_model
from trueup.load.client import open_client
from trueup.load.fetch import Document, NoDocumentError, fetch
from trueup.load.scrape import scrape
from trueup.schema import TrueupError


class Endless(httpx.AsyncBaseTransport):
    """A kilobyte each `gap_s` seconds, for ever."""

    def __init__(self, gap_s: float) -> None:
        self.gap_s = gap_s
        self.sent = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        transport = self

        class Pieces(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                while True:
                    await asyncio.sleep(transport.gap_s)
                    transport.sent += 1
                    yield b"x" * 1024

        return httpx.Response(200, stream=Pieces())


async def _fetched(transport: httpx.AsyncBaseTransport, **bounds: float) -> Document:
    async with open_client(transport) as http:
        return await fetch(
            http, "http://s/x", within_s=bounds["within_s"], most_bytes=int(bounds["most_bytes"])
        )


def run(transport: httpx.AsyncBaseTransport, **bounds: float) -> Document:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_fetched(transport, **bounds))


def test_a_document_comes_with_its_status() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(404, text="nothing"))
    assert run(transport, within_s=5.0, most_bytes=100) == Document(404, b"nothing")


def test_one_that_drips_is_given_up_after_the_time_though_each_piece_comes_in_time() -> None:
    endless = Endless(gap_s=1.0)
    with pytest.raises(NoDocumentError, match=r"no whole answer in 5 s"):
        run(endless, within_s=5.0, most_bytes=1e9)
    assert endless.sent <= 5


def test_one_without_end_is_given_up_at_the_size() -> None:
    endless = Endless(gap_s=0.0)
    with pytest.raises(NoDocumentError, match="more than 10000 bytes, and no whole answer"):
        run(endless, within_s=5.0, most_bytes=10_000)
    assert endless.sent == 10


def test_metrics_that_never_end_are_none_and_say_so() -> None:
    async def look() -> object:
        async with open_client(Endless(gap_s=1.0)) as http:
            return await scrape(http, "http://s/metrics")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(look()) == "http://s/metrics did not answer: no whole answer in 5 s"


def test_a_list_of_models_that_never_ends_is_no_server() -> None:
    async def ask() -> object:
        async with open_client(Endless(gap_s=1.0)) as http:
            return await served_model(http, Address("http://s"), None, {})

    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(TrueupError, match="in 10 s"):
        runner.run(ask())
