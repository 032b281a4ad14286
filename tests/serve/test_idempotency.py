"""The keys that keep a request from being answered twice."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from trueup.serve.idempotency import MOST_ENTRIES, Head, KeptAnswers, fingerprint_of, key_of
from trueup.serve.openai_errors import ApiError

ASKED = fingerprint_of("POST", "/v1/completions", b"{}")
HEAD = Head(200, (("content-type", "application/json"),))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def answered(answers: KeptAnswers, key: str, answer: bytes = b"answer", owner: str = "") -> None:
    kept, new = answers.begin(owner, key, ASKED)
    assert new
    kept.begin(HEAD)
    kept.add(answer)
    answers.close(owner, key, kept, None)


def replayed(answers: KeptAnswers, key: str) -> bytes:
    async def read() -> bytes:
        kept, new = answers.begin("", key, ASKED)
        assert not new
        assert await kept.head() == HEAD
        return b"".join([chunk async for chunk in kept.chunks()])

    return asyncio.run(read())


def refusal(answers: KeptAnswers, key: str, asked: bytes = ASKED, owner: str = "") -> tuple[int, str | None]:
    with pytest.raises(ApiError) as refused:
        answers.begin(owner, key, asked)
    return refused.value.status, refused.value.code


def test_an_answer_that_is_done_is_given_again_byte_for_byte() -> None:
    answers = KeptAnswers()
    answered(answers, "k", b"data: 1\n\ndata: [DONE]\n\n")
    assert replayed(answers, "k") == b"data: 1\n\ndata: [DONE]\n\n"


def test_a_key_under_way_is_in_use() -> None:
    answers = KeptAnswers()
    answers.begin("", "k", ASKED)
    assert refusal(answers, "k") == (409, "idempotency_key_in_use")


def test_a_key_with_another_body_is_refused_under_way_and_done() -> None:
    answers, other = KeptAnswers(), fingerprint_of("POST", "/v1/completions", b"{ }")
    answers.begin("", "k", ASKED)
    answered(answers, "done")
    assert refusal(answers, "k", other) == (422, "idempotency_key_reused")
    assert refusal(answers, "done", other) == (422, "idempotency_key_reused")


def test_the_same_body_on_another_path_is_another_request() -> None:
    answers = KeptAnswers()
    answered(answers, "k")
    assert refusal(answers, "k", fingerprint_of("POST", "/v1/chat/completions", b"{}"))[0] == 422


def test_each_client_has_keys_of_its_own() -> None:
    answers = KeptAnswers()
    answered(answers, "k", owner="one")
    assert answers.begin("two", "k", ASKED)[1]


def test_a_request_that_came_to_nothing_frees_its_key() -> None:
    answers = KeptAnswers()
    kept, _ = answers.begin("", "k", ASKED)
    answers.close("", "k", kept, ApiError(503, "later"))
    with pytest.raises(ApiError, match="later"):
        asyncio.run(kept.head())
    assert answers.begin("", "k", ASKED)[1]


def test_answers_are_kept_for_a_day() -> None:
    clock = Clock()
    answers = KeptAnswers(clock=clock)
    answered(answers, "k")
    clock.now = 24 * 3600 - 1
    assert replayed(answers, "k") == b"answer"
    clock.now = 24 * 3600
    assert answers.begin("", "k", ASKED)[1]
    assert answers.held_bytes == 0


def test_the_number_of_keys_is_bounded_and_the_oldest_go_first() -> None:
    answers = KeptAnswers(entries=3)
    for key in "abcd":
        answered(answers, key)
    assert len(answers) == 3
    assert replayed(answers, "b") == b"answer"
    assert answers.begin("", "a", ASKED)[1]


def test_ten_thousand_live_keys_take_little_memory_and_the_eldest_goes_first() -> None:
    answers = KeptAnswers()
    tracemalloc.start()
    for number in range(MOST_ENTRIES + 1):
        answered(answers, str(number))
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(answers) == MOST_ENTRIES
    assert held_bytes < MOST_ENTRIES * 4096
    assert replayed(answers, "1") == b"answer"
    assert answers.begin("", "0", ASKED)[1]


def test_an_answer_that_is_whole_is_kept_in_one_piece() -> None:
    async def read() -> list[bytes]:
        answers = KeptAnswers()
        kept, _ = answers.begin("", "k", ASKED)
        kept.begin(HEAD)
        for piece in (b"1", b"2", b"3"):
            kept.add(piece)
        answers.close("", "k", kept, None)
        return [chunk async for chunk in answers.begin("", "k", ASKED)[0].chunks()]

    assert asyncio.run(read()) == [b"123"]


def test_beyond_its_bytes_an_old_answer_is_let_go_and_not_given_twice() -> None:
    answers = KeptAnswers(size=10)
    for key in "abc":
        answered(answers, key, b"12345")
    assert answers.held_bytes == 10
    assert refusal(answers, "a") == (409, "idempotency_answer_gone")
    assert replayed(answers, "c") == b"12345"


def test_an_answer_larger_than_all_bounds_is_not_given_twice() -> None:
    answers = KeptAnswers(size=10)
    answered(answers, "k", b"x" * 11)
    assert answers.held_bytes == 0
    assert refusal(answers, "k") == (409, "idempotency_answer_gone")


def test_keys_under_way_outlive_the_bounds() -> None:
    clock = Clock()
    answers = KeptAnswers(entries=2, clock=clock)
    answers.begin("", "k", ASKED)
    answered(answers, "a")
    answered(answers, "b")
    clock.now = 10**6
    assert refusal(answers, "k") == (409, "idempotency_key_in_use")


def test_an_answer_is_followed_while_it_comes() -> None:
    async def follow() -> list[bytes]:
        answers = KeptAnswers()
        kept, _ = answers.begin("", "k", ASKED)
        kept.begin(HEAD)
        kept.add(b"1")
        chunks = kept.chunks()
        found = [await anext(chunks)]
        kept.add(b"2")
        answers.close("", "k", kept, None)
        return [*found, *[chunk async for chunk in chunks]]

    assert asyncio.run(follow()) == [b"1", b"2"]


def test_an_answer_that_is_let_go_while_it_is_read_is_read_to_its_end() -> None:
    async def follow() -> list[bytes]:
        answers = KeptAnswers(size=1)
        kept, _ = answers.begin("", "k", ASKED)
        kept.begin(HEAD)
        kept.add(b"1")
        chunks = kept.chunks()
        kept.add(b"2")
        found = [await anext(chunks)]
        answers.close("", "k", kept, None)
        assert kept.let_go
        return [*found, *[chunk async for chunk in chunks]]

    assert asyncio.run(follow()) == [b"1", b"2"]


@pytest.mark.parametrize("header", ["8e03978e", '"8e03978e"', ' "8e03978e" '])
def test_a_key_is_a_structured_string_or_bare(header: str) -> None:
    assert key_of(header, required=True) == "8e03978e"


@pytest.mark.parametrize("header", ["", '""', "a" * 256, "nö", "a\tb"])
def test_what_can_be_no_key_is_refused(header: str) -> None:
    with pytest.raises(ApiError) as refused:
        key_of(header, required=False)
    assert (refused.value.status, refused.value.code) == (400, "idempotency_key_invalid")


def test_a_missing_key_is_refused_where_one_is_required() -> None:
    assert key_of(None, required=False) is None
    with pytest.raises(ApiError) as refused:
        key_of(None, required=True)
    assert (refused.value.status, refused.value.code) == (400, "idempotency_key_missing")
    assert 'rel="describedby"' in refused.value.headers["Link"]
