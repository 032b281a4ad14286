"""Who may ask, how much, and for how long; and that who leaves takes nothing with them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from api_server import MODEL, Running, serving
from fake_engine import FakeEngine, without_end

from trueup.schema import InputError
from trueup.serve.app import Flow
from trueup.serve.idempotency import Head
from trueup.serve.limits import ApiKeys, ApiLimits, read_keys

PLAIN: dict[str, Any] = {"model": MODEL, "prompt": "hi"}
LONG = {**PLAIN, "max_tokens": 400}


def post(server: Running, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=30)


def endless(**options: Any) -> FakeEngine:
    return FakeEngine(script=without_end, **options)


# --- keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", "Basic right", "right", "Bearer rightx", "Bearer righ"]
)
def test_only_a_known_key_opens_the_api(header: str | None) -> None:
    keys = ApiKeys(["other", "right"])
    assert keys.owner_of(header) is None
    assert keys.owner_of("Bearer right") not in (None, "", keys.owner_of("Bearer other"))


def test_without_keys_the_api_is_open() -> None:
    assert ApiKeys([]).owner_of(None) == ""


def test_a_wrong_key_is_the_openai_packages_authentication_error() -> None:
    with serving(keys=ApiKeys(["right"])) as server:
        for path in ("/v1/models", "/v1/models/tiny"):
            assert httpx.get(server.url + path).status_code == 401
        wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError) as error:
            wrong.completions.create(**PLAIN)
        assert error.value.code == "invalid_api_key"
        right = openai.OpenAI(base_url=f"{server.url}/v1", api_key="right")
        assert right.completions.create(**PLAIN).choices[0].text == "Hello, world."
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_key_file_has_one_key_a_line(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# ours\n\n  one  \ntwo\n")
    keys = ApiKeys(read_keys(tmp_path / "keys"))
    assert keys.owner_of("Bearer one")
    assert keys.owner_of("Bearer two")
    assert keys.owner_of("Bearer # ours") is None


@pytest.mark.parametrize("content", [b"", b"# none\n", b"two words\n", "ключ\n".encode(), b"\xff\n"])
def test_a_key_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(InputError, match="keys"):
        read_keys(tmp_path / "keys")


def test_an_absent_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_keys(tmp_path / "keys")


# --- sizes and times ----------------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_refused() -> None:
    with serving(limits=ApiLimits(body_bytes=1000)) as server:
        large = post(server, {**PLAIN, "prompt": "x" * 2000})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
        chunks = iter([b"x" * 600] * 3)  # says no length beforehand
        chunked = httpx.post(f"{server.url}/v1/completions", content=chunks, timeout=30)
        assert chunked.status_code == 413
        assert post(server, PLAIN).status_code == 200


@pytest.mark.parametrize("told", [True, False])
def test_a_client_that_sends_all_before_it_reads_sees_why_it_was_too_much(told: bool) -> None:
    with serving(limits=ApiLimits(body_bytes=1 << 18)) as server:
        size = 1 << 22  # far more than the sockets hold
        length = f"Content-Length: {size}" if told else "Transfer-Encoding: chunked"
        body = b"x" * size if told else b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size)
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode() + body)
            with raw.makefile("rb") as reader:
                answer = reader.read()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"request_too_large" in answer


def test_a_client_that_asks_before_it_sends_too_much_is_told_at_once() -> None:
    with serving(limits=ApiLimits(body_bytes=1000)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            head = "Host: x\r\nExpect: 100-continue\r\nContent-Length: 1001"
            raw.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n".encode())
            assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with serving(limits=ApiLimits(body_s=0.05)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
            assert raw.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    engine = endless(held=True)
    with serving(engine, limits=ApiLimits(request_s=0.05)) as server:
        response = post(server, LONG)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        assert response.headers["x-should-retry"] == "false"
        engine.free()
        server.until(lambda: not engine.has_work)


def test_a_stream_that_takes_too_long_ends_in_an_error() -> None:
    engine = endless(held=True)
    with serving(engine, limits=ApiLimits(request_s=0.2)) as server:
        engine.let(2)
        response = post(server, {**LONG, "stream": True})
        *_, error, done, rest = response.text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "timeout"
        assert (done, rest) == ("data: [DONE]", "")
        engine.free()
        server.until(lambda: not engine.has_work)


def test_more_answers_than_there_is_room_for_are_refused_with_a_time_to_come_back() -> None:
    engine = endless(held=True)
    with serving(engine, room=1) as server, httpx.Client(timeout=30) as client:
        with client.stream("POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}):
            refused = post(server, PLAIN)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) >= 1
        engine.free()
        server.until(lambda: server.service.under_way == 0)
        assert post(server, {**PLAIN, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(("fields", "param"), [({"n": 3}, "n"), ({"prompt": ["a", "b", "c"]}, "prompt")])
def test_more_answers_than_are_ever_taken_are_no_matter_of_waiting(
    fields: dict[str, Any], param: str
) -> None:
    with serving(room=2) as server:
        refused = post(server, {**PLAIN, **fields})
        assert refused.status_code == 400
        assert (refused.json()["error"]["code"], refused.json()["error"]["param"]) == ("invalid_value", param)
        assert "retry-after" not in refused.headers
        assert post(server, {**PLAIN, "n": 2}).status_code == 200


# --- clients that leave -------------------------------------------------------------------------------------


def test_a_client_that_leaves_before_the_head_is_sent_ends_its_answers() -> None:
    ended: list[str] = []

    async def chunks() -> AsyncGenerator[bytes]:
        yield b"never begun"

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def stuck(message: MutableMapping[str, Any]) -> None:
        await asyncio.Event().wait()

    flow = Flow(Head(200, ()), chunks(), lambda: ended.append("ended"))
    asyncio.run(flow({}, gone, stuck))
    assert ended == ["ended"]


def test_a_client_that_leaves_its_stream_frees_its_blocks() -> None:
    engine = endless(held=True)
    with serving(engine) as server:
        with (
            httpx.Client(timeout=30) as client,
            client.stream("POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}) as response,
        ):
            engine.let(3)
            chunks = response.iter_raw()  # held: it closes the response when it is let go
            next(chunks)
            assert engine.stats().blocks_used > 0
        server.until(lambda: server.service.under_way == 0)
        engine.free()
        server.until(lambda: not engine.has_work)
        assert engine.stats().blocks_used == 0
        assert server.service.stats is not None
        assert server.service.stats.steps < 400


def test_a_client_that_leaves_before_its_answer_frees_its_blocks() -> None:
    engine = endless(held=True)
    with serving(engine) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps(LONG).encode()
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            raw.sendall(head.encode() + body)
            engine.let(2)
            server.until(lambda: engine.stats().running == 1)
        engine.let(2)
        server.until(lambda: server.service.under_way == 0)
        engine.free()
        server.until(lambda: not engine.has_work)


def test_a_client_that_leaves_in_its_body_harms_nobody() -> None:
    with serving() as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        assert post(server, PLAIN).status_code == 200
