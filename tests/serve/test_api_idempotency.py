"""A request with an Idempotency-Key is carried out once, whatever becomes of its client and its retries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from api_server import MODEL, Running, serving
from fake_engine import FakeEngine, without_end

from trueup.serve.idempotency import KeptAnswers
from trueup.serve.limits import ApiKeys

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}


class _Watching(openai.DefaultHttpxClient):
    """Says when it was told that its key is in use."""

    def __init__(self, on_conflict: Callable[[], None]) -> None:
        super().__init__()
        self._on_conflict = on_conflict

    def send(self, *arguments: Any, **options: Any) -> Any:
        response = super().send(*arguments, **options)
        if response.status_code == 409:
            self._on_conflict()
        return response


def post(server: Running, body: Any, key: str | None = "k", **headers: str) -> httpx.Response:
    more = {} if key is None else {"Idempotency-Key": key}
    content = body if isinstance(body, bytes) else json.dumps(body)
    url = f"{server.url}/v1/chat/completions"
    return httpx.post(url, content=content, headers={**headers, **more}, timeout=30)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_sent_again_is_answered_with_the_same_bytes(stream: bool) -> None:
    with serving() as server:
        first, again = (post(server, {**CHAT, "stream": stream, "temperature": 1}) for _ in range(2))
        assert first.status_code == again.status_code == 200
        assert again.content == first.content
        same = ("content-type", "x-trueup-seed")
        assert [again.headers[name] for name in same] == [first.headers[name] for name in same]
        assert len(server.engine.requests) == 1
        page = httpx.get(f"{server.url}/metrics").text
    kept = re.search(r"^trueup:idempotent_answers_bytes\{.*\} (\S+)$", page, re.MULTILINE)
    assert kept is not None
    assert float(kept[1]) == len(again.content)


def test_two_keys_that_differ_are_refused_and_one_key_twice_is_one() -> None:
    with serving() as server:
        statuses = []
        for second in ("b", "a"):
            headers = [("Idempotency-Key", "a"), ("Idempotency-Key", second)]
            response = httpx.post(
                f"{server.url}/v1/completions",
                json={"model": MODEL, "prompt": "hi"},
                headers=headers,
                timeout=30,
            )
            statuses.append((response.status_code, response.json().get("error", {}).get("code")))
    assert statuses == [(400, "idempotency_key_invalid"), (200, None)]


def test_without_a_key_each_request_is_its_own() -> None:
    with serving() as server:
        first, again = (post(server, CHAT, key=None) for _ in range(2))
        assert first.json()["id"] != again.json()["id"]
        assert len(server.engine.requests) == 2


def test_a_key_with_another_body_is_refused() -> None:
    with serving() as server:
        post(server, CHAT)
        other = post(server, {**CHAT, "max_tokens": 1})
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
        assert "idempotency" in other.headers["link"]
        assert len(server.engine.requests) == 1


def test_a_key_under_way_is_in_use_and_its_retry_gets_the_answer() -> None:
    engine = FakeEngine(held=True)
    with serving(engine) as server, httpx.Client(timeout=30) as client:
        url, headers = f"{server.url}/v1/chat/completions", {"Idempotency-Key": "k"}
        body = json.dumps({**CHAT, "stream": True})
        with client.stream("POST", url, content=body, headers=headers) as first:
            busy = post(server, body.encode())
            assert (busy.status_code, busy.json()["error"]["code"]) == (409, "idempotency_key_in_use")
            assert int(busy.headers["retry-after"]) >= 1
            engine.free()
            whole = first.read()
        assert post(server, body.encode()).content == whole
        assert len(engine.requests) == 1


def test_an_answer_goes_on_without_its_client_and_is_there_for_the_retry() -> None:
    """llumnix-ray 18: after a failover the request was made again beside the first, and both answered."""
    engine = FakeEngine(held=True)
    with serving(engine) as server:
        body = json.dumps({**CHAT, "stream": True}).encode()
        with (
            httpx.Client(timeout=30) as client,
            client.stream(
                "POST", f"{server.url}/v1/chat/completions", content=body, headers={"Idempotency-Key": "k"}
            ) as response,
        ):
            engine.let(2)
            chunks = response.iter_raw()
            begun = next(chunks)
        engine.free()
        server.until(lambda: server.service.under_way == 0)
        server.until(lambda: post(server, body).status_code == 200)
        again = post(server, body)
        assert again.content.startswith(begun)
        assert again.text.endswith("data: [DONE]\n\n")
        assert len(engine.requests) == 1


def test_the_openai_package_gets_one_answer_through_its_own_retries() -> None:
    """It gives up waiting, sends the request again while the first is under way, and is answered by what was
    computed for that."""
    engine = FakeEngine(held=True)
    with serving(engine) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=9, timeout=0.2)
        client = client.with_options(http_client=_Watching(on_conflict=engine.free))
        answer = client.chat.completions.create(**CHAT, extra_headers={"Idempotency-Key": "once"})
        assert answer.choices[0].message.content == "Hello, world."
        assert len(engine.requests) == 1


def test_a_refused_request_does_not_use_up_its_key() -> None:
    with serving() as server:
        assert post(server, {**CHAT, "temperature": 9}).status_code == 400
        assert post(server, CHAT).status_code == 200


def test_a_request_that_found_no_room_can_be_sent_again() -> None:
    engine = FakeEngine(script=without_end, held=True)
    with serving(engine, room=1) as server, httpx.Client(timeout=30) as client:
        body = {**CHAT, "stream": True}
        with client.stream("POST", f"{server.url}/v1/chat/completions", json=body):
            assert post(server, CHAT).status_code == 429
        engine.free()
        server.until(lambda: server.service.under_way == 0)
        assert post(server, CHAT).status_code == 200


def test_an_answer_that_broke_off_can_be_asked_for_again() -> None:
    engine = FakeEngine(fails="out of memory")
    with serving(engine) as server:
        broken = post(server, {**CHAT, "stream": True})
        assert "out of memory" in broken.text
        assert broken.text.endswith("data: [DONE]\n\n")
        engine.fails = None
        assert '"finish_reason":"stop"' in post(server, {**CHAT, "stream": True}).text


def test_a_server_can_require_a_key() -> None:
    with serving(require_key=True) as server:
        missing = post(server, CHAT, key=None)
        assert (missing.status_code, missing.json()["error"]["code"]) == (400, "idempotency_key_missing")
        assert post(server, CHAT).status_code == 200


def test_two_clients_may_have_the_same_key() -> None:
    with serving(keys=ApiKeys(["one", "two"])) as server:
        answers = [post(server, CHAT, Authorization=f"Bearer {owner}").json() for owner in ("one", "two")]
        assert answers[0]["id"] != answers[1]["id"]


def test_an_answer_no_longer_kept_is_not_given_twice() -> None:
    with serving(answers=lambda: KeptAnswers(size=1)) as server:
        assert post(server, CHAT).json()["choices"][0]["message"]["content"] == "Hello, world."
        gone = post(server, CHAT)
        assert (gone.status_code, gone.json()["error"]["code"]) == (409, "idempotency_answer_gone")
        assert gone.headers["x-should-retry"] == "false"
        assert len(server.engine.requests) == 1
