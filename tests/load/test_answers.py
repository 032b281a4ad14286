"""One request and what became of it: whole answers, and every way in which one is none."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import httpx
import pytest
from scripted_server import (
    DONE,
    Script,
    ScriptedServer,
    answer_of,
    chat_chunk,
    event,
    text_chunk,
    usage_chunk,
)
from virtual_time import VirtualLoop

from trueup.load import answer as one_answer
from trueup.load.client import Ask, Target, open_client, send
from trueup.load.sse import MOST_BYTES
from trueup.schema import RequestResult

WHOLE = [(1.0, text_chunk(" a")), (0.5, text_chunk(" b", "stop")), (0.0, usage_chunk(7, 2)), (0.25, DONE)]


def result_of(script: Script, **target: Any) -> RequestResult:
    """What the client makes of the answer; the request was due at 0 and is sent at 2."""
    server = ScriptedServer(lambda n, body: script)
    settings = {"base_url": "http://s/v1", "model": "m", "chat": False, "timeout_s": 60.0} | target

    async def ask() -> RequestResult:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(2.0)
        async with open_client(server) as http:
            return await send(http, Target(**settings), Ask(0, "x y", 7, 2), 0.0, loop.time)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(ask())


def test_a_whole_answer_has_its_times_its_tokens_and_no_error() -> None:
    found = result_of(Script(WHOLE))
    assert found == RequestResult(
        index=0, due_s=0.0, sent_s=2.0, first_s=3.0, last_s=3.5, done_s=3.75, asked_prompt_tokens=7,
        asked_output_tokens=2, prompt_tokens=7, output_tokens=2, chunks=2, text_bytes=4, gaps_s=(0.5,),
        finish="stop", status=200,
    )  # fmt: skip


def test_a_chunk_with_a_role_and_no_text_is_no_token() -> None:
    pieces = [
        (1.0, chat_chunk({"role": "assistant", "content": ""})),
        (1.0, chat_chunk({"content": "hello"})),
        (1.0, chat_chunk({"content": None}, "stop")),
        (0.0, DONE),
    ]
    found = result_of(Script(pieces), chat=True)
    assert (found.first_s, found.last_s, found.chunks) == (4.0, 4.0, 1)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "tool_calls", "refusal"])
def test_text_under_other_keys_is_text(key: str) -> None:
    found = result_of(Script([(1.0, chat_chunk({key: "so"})), (0.0, DONE)]), chat=True)
    assert (found.first_s, found.error, found.text_bytes) == (3.0, None, len("so"))


@pytest.mark.parametrize("number", [5, 0, 1.5, True])
def test_a_number_is_no_text(number: Any) -> None:
    for chat, chunk in ((True, chat_chunk({"content": number})), (False, text_chunk(number))):
        found = result_of(Script([(1.0, chunk), (0.0, DONE)]), chat=chat)
        assert found.error == "malformed"


def test_the_last_usage_counts_where_every_chunk_has_one() -> None:
    usages = [{"prompt_tokens": 7, "completion_tokens": n} for n in (9, 1, 2)]
    pieces = [(0.1, event({"choices": [{"text": "x"}], "usage": usage})) for usage in usages]
    assert result_of(Script([*pieces, (0.0, DONE)])).output_tokens == 2


def test_cached_tokens_are_read_where_the_server_tells_them() -> None:
    usage = usage_chunk(7, 1, prompt_tokens_details={"cached_tokens": 4})
    assert result_of(Script([(0.1, text_chunk("x")), (0.0, usage), (0.0, DONE)])).cached_tokens == 4


def test_an_answer_without_usage_is_whole_and_has_no_counts() -> None:
    found = result_of(Script([WHOLE[0], WHOLE[1], WHOLE[3]]))
    assert found.error is None
    assert (found.prompt_tokens, found.output_tokens, found.chunks) == (None, None, 2)


def test_an_answer_that_ends_with_a_reason_and_without_done_is_whole() -> None:
    assert result_of(Script(WHOLE[:3])).error is None


def test_done_without_its_last_blank_line_is_done() -> None:
    assert result_of(Script([(1.0, text_chunk("x")), (0.0, b"data: [DONE]")])).error is None


READ_ERROR = httpx.ReadError("connection reset by peer")


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (Script(error=httpx.ConnectError("refused")), "connect", "refused"),
        (Script(error=httpx.RemoteProtocolError("closed without an answer")), "connect", "closed without"),
        (Script(WHOLE[:1]), "disconnected", "after 1 chunk, before the answer did"),
        (Script(WHOLE[:1], error=READ_ERROR), "disconnected", "after 1 chunk: connection reset"),
        (Script([(0.1, b'data: {"choices": [\n\n')]), "malformed", "not JSON"),
        (Script([(0.1, b"data: [1, 2]\n\n")]), "malformed", "no JSON object"),
        (Script([(0.1, event({"choices": "x"}))]), "malformed", "no list of objects"),
        (Script([(0.1, b"data: \xff\xfe\n\n")]), "encoding", "not UTF-8"),
        (Script([(0.1, b'data: {"error": "half \\ud800"}\n\n')]), "server_error", "half ?"),
        (Script([(0.0, b'{"error": {"message": "\\ud800"}}')], status=500), "server_error", "500: ?"),
        (Script([(0.1, event({"error": {"message": "out of memory"}}))]), "server_error", "out of memory"),
        (Script([(0.1, text_chunk("")), (0.1, DONE)]), "empty", "without text"),
        (Script([(0.1, b"<html>")], headers={"content-type": "text/html"}), "malformed", "text/html"),
        (Script(WHOLE, status=307), "client_error", "HTTP 307"),
        (
            Script(WHOLE, status=308, headers={"location": "https://elsewhere/v1"}),
            "client_error",
            "sends on to https://elsewhere/v1, which is not followed",
        ),
        (Script([(0.1, b"data: " + b"x" * MOST_BYTES + b"\n\n")]), "malformed", "more than 4194304 bytes"),
        (Script([(0.0, b'{"error": {"message": "too long"}}')], status=400), "client_error", "400: too long"),
        (Script([(0.0, b"bad gateway")], status=502), "server_error", "HTTP 502: bad gateway"),
    ],
)
def test_an_answer_that_is_none_says_why(script: Script, kind: str, words: str) -> None:
    found = result_of(script)
    assert found.error == kind
    assert words in (found.reason or "")


def test_a_reason_to_end_with_half_a_character_can_be_recorded() -> None:
    found = result_of(Script([(0.1, text_chunk(" a", "\ud800")), (0.1, DONE)]))
    assert found.finish == "?"
    assert found.model_dump_json()


def test_a_server_that_asks_to_come_again_is_told_of_and_not_asked_again() -> None:
    asked = 0

    def answers(n: int, body: dict[str, Any]) -> Script:
        nonlocal asked
        asked += 1
        return Script([(0.0, b"{}")], status=429, headers={"retry-after": "7"})

    server = ScriptedServer(answers)

    async def ask() -> RequestResult:
        async with open_client(server) as http:
            target = Target("http://s/v1", "m", False, 60.0)
            return await send(http, target, Ask(0, "x", 1, 2), 0.0, asyncio.get_running_loop().time)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(ask())
    assert (found.error, asked) == ("too_many_requests", 1)
    assert "try again after 7 s, and retries are off" in (found.reason or "")


def test_an_answer_that_takes_too_long_is_given_up_at_that_instant() -> None:
    found = result_of(Script([(1.0, text_chunk("x")), (500.0, DONE)]), timeout_s=30.0)
    assert (found.error, found.done_s, found.chunks) == ("timeout", 32.0, 1)


def test_a_gzip_body_that_is_broken_is_an_error_of_encoding() -> None:
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    assert result_of(Script([(0.1, b"not gzip")], headers=headers)).error == "encoding"


def test_the_request_asks_for_usage_and_for_exactly_its_tokens() -> None:
    body = Target("http://s/v1", "m", False, 60.0).body("x", 5)
    assert body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"]) == (5, True, 0.0)
    plain = Target("http://s/v1", "m", True, 60.0, ignore_eos=False).body("x", None)
    assert plain["messages"] == [{"role": "user", "content": "x"}]
    assert not {"ignore_eos", "max_tokens", "prompt"} & set(plain)


def test_the_key_is_sent_and_never_shown() -> None:
    target = Target("http://s/v1", "m", False, 60.0, api_key="sk-secret")
    assert target.headers == {"Authorization": "Bearer sk-secret"}
    assert "sk-secret" not in repr(target)


def test_tokens_per_chunk_do_not_change_the_chunks_counted() -> None:
    found = result_of(answer_of(prompt=7, chunks=2, first_s=1.0, gap_s=0.5, tokens_per_chunk=1))
    more = result_of(answer_of(prompt=7, chunks=1, first_s=1.0, gap_s=0.5, tokens_per_chunk=2))
    assert (found.chunks, found.output_tokens, found.gaps_s) == (2, 2, (0.5,))
    assert (more.chunks, more.output_tokens, more.gaps_s) == (1, 2, ())


def test_a_body_in_gzip_is_read_as_it_comes() -> None:
    pack = zlib.compressobj(wbits=31)
    pieces = [(wait_s, pack.compress(raw) + pack.flush(zlib.Z_SYNC_FLUSH)) for wait_s, raw in WHOLE]
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    assert result_of(Script(pieces, headers=headers)) == result_of(Script(WHOLE))


def test_a_body_in_gzip_that_is_cut_off_is_no_answer() -> None:
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    packed = zlib.compress(WHOLE[0][1], wbits=31)[:-12]
    assert result_of(Script([(1.0, packed)], headers=headers)).error == "disconnected"


def test_a_stream_of_chunks_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_answer, "MOST_CHUNKS", 5)
    found = result_of(Script([(0.1, text_chunk("x"))] * 50))
    assert (found.error, found.chunks) == ("malformed", 6)
