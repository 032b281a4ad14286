"""A server that is told to end: what it accepted is finished, what is new is refused, and it ends."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import openai
import pytest
from api_server import MODEL, Running, serving
from fake_engine import FakeEngine, without_end

from trueup.schema import InputError
from trueup.serve.admission import ServiceError
from trueup.serve.server import listen

PLAIN: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 20}


class Asking(threading.Thread):
    """A request whose answer is waited for elsewhere."""

    def __init__(self, server: Running, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.response: httpx.Response | None = None
        self._server = server
        self._body = body
        self.start()

    def run(self) -> None:
        self.response = httpx.post(f"{self._server.url}/v1/completions", json=self._body, timeout=30)

    def answer(self) -> httpx.Response:
        self.join(30)
        assert self.response is not None
        return self.response


def draining(server: Running) -> None:
    server.terminate()
    server.until(lambda: server.service.state == "draining")


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_accepted_is_finished_and_the_server_ends_by_itself(stream: bool) -> None:
    engine = FakeEngine(held=True)
    with serving(engine) as server:
        asking = Asking(server, {**PLAIN, "stream": stream})
        server.until(lambda: server.service.under_way == 1)
        draining(server)
        refused = httpx.post(f"{server.url}/v1/completions", json=PLAIN, timeout=30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert server.to_finish == [1]
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/health").status_code == 200
        engine.free()
        response = asking.answer()
        assert response.status_code == 200
        assert ("data: [DONE]" in response.text) == stream
        ended = server.result()
        assert (ended.cut, ended.whole) == (0, True)


def test_one_with_nothing_to_do_ends_at_once() -> None:
    with serving() as server:
        server.terminate()
        assert server.result().cut == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")


def test_an_idle_connection_keeps_no_server_alive() -> None:
    with serving() as server, httpx.Client() as client:
        client.get(f"{server.url}/health")
        server.terminate()
        assert server.result().cut == 0


def test_at_the_limit_clients_hear_an_error_and_the_server_ends() -> None:
    """vllm#24885: they were left hanging."""
    engine = FakeEngine(script=without_end, held=True)
    with serving(engine, drain_s=0.05) as server:
        whole = Asking(server, {**PLAIN, "max_tokens": 400})
        stream = Asking(server, {**PLAIN, "max_tokens": 400, "stream": True})
        server.until(lambda: server.service.under_way == 2)
        server.terminate()
        assert (whole.answer().status_code, whole.answer().json()["error"]["code"]) == (503, "draining")
        *_, error, done, _rest = stream.answer().text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "draining"
        assert done == "data: [DONE]"
        assert "has waited 0.05 s" in whole.answer().json()["error"]["message"]
        engine.free()
        ended = server.result()
        assert (ended.cut, ended.at_once) == (2, False)


def test_a_second_signal_waits_for_nobody() -> None:
    engine = FakeEngine(script=without_end, held=True)
    with serving(engine) as server:
        asking = Asking(server, {**PLAIN, "max_tokens": 400})
        server.until(lambda: server.service.under_way == 1)
        draining(server)
        server.terminate()
        assert asking.answer().status_code == 503
        assert "was told not to wait" in asking.answer().json()["error"]["message"]
        engine.free()
        ended = server.result()
        assert (ended.cut, ended.at_once) == (1, True)


def test_the_openai_package_sees_a_draining_server_as_one_to_retry() -> None:
    engine = FakeEngine(held=True)
    with serving(engine) as server:
        asking = Asking(server, PLAIN)
        server.until(lambda: server.service.under_way == 1)
        draining(server)
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.InternalServerError) as error:
            client.completions.create(**PLAIN)
        assert error.value.status_code == 503
        engine.free()
        asking.answer()


def test_a_server_told_to_end_while_it_loads_ends() -> None:
    go_on = threading.Event()

    def opened() -> FakeEngine:
        go_on.wait()
        return FakeEngine()

    with serving(open_engine=opened) as server:
        server.terminate()
        server.until(lambda: server.service.state == "closed")
        go_on.set()
        assert server.result().cut == 0


def test_an_engine_that_cannot_be_opened_ends_the_server() -> None:
    def opened() -> FakeEngine:
        raise MemoryError("no room for the weights")

    with serving(open_engine=opened) as server, pytest.raises(ServiceError, match="no room for the weights"):
        server.result()


def test_a_port_that_is_taken_is_refused_in_words() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(InputError, match="taken"):
        listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("host", ["\udcff", "a" * 64 + ".example", "a\0b", "a..b"])
def test_a_host_that_no_name_server_could_be_asked_for_is_refused_in_words(host: str) -> None:
    with pytest.raises(InputError, match="--host"):
        listen(host, 0)


def test_an_address_of_another_machine_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="--host"):
        listen("192.0.2.1", 0)
