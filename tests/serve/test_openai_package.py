"""The API as the openai package sees it, unchanged, and as raw requests do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from api_asking import ASK, PLAIN, client_of, events, post
from api_server import MODEL, Running, serving

from trueup.serve.request import Request


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(room=64) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return client_of(server)


# --- the openai package -------------------------------------------------------------------------------------


def test_a_chat_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, temperature=0)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello, world.")
    assert choice.finish_reason == "stop"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("Hello, world.") + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_an_answer_goes_on_as_it_came(server: Running, client: openai.OpenAI) -> None:
    said = client.chat.completions.create(**ASK).choices[0].message
    for sent_back in (said, said.model_dump(), said.to_dict()):
        messages: list[Any] = [*ASK["messages"], sent_back, {"role": "user", "content": "and?"}]
        client.chat.completions.create(model=MODEL, messages=messages)
        text = bytes(t for t in asked(server).prompt if t < 256)
        assert text == b"user\nhi\nassistant\nHello, world.\nuser\nand?\nassistant\n"


@pytest.mark.parametrize("content", [None, ""])
def test_a_refusal_is_what_the_assistant_said(server: Running, content: str | None) -> None:
    refused = {"role": "assistant", "content": content, "refusal": "No."}
    messages = [*ASK["messages"], refused, *ASK["messages"]]
    response = post(server, "chat/completions", {**ASK, "messages": messages})
    assert response.status_code == 200, response.text
    text = bytes(t for t in asked(server).prompt if t < 256)
    assert text == b"user\nhi\nassistant\nNo.\nuser\nhi\nassistant\n"


def test_a_streamed_chat_answer_is_the_whole_one(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(**ASK, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Hello, world."
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [*[None] * (len(chunks) - 1), "stop"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_streams_usage_comes_last_and_alone(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("Hello, world.") + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_completion_and_its_stream(client: openai.OpenAI) -> None:
    answer = client.completions.create(**PLAIN, max_tokens=5)
    assert answer.choices[0].text == "Hello"
    assert answer.choices[0].finish_reason == "length"
    chunks = client.completions.create(**PLAIN, max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4", messages=ASK["messages"])
    assert error.value.code == "model_not_found"
    assert error.value.param == "model"


def test_the_package_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**ASK, temperature=9)
    assert error.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**ASK, max_tokens=10_000)
    assert error.value.code == "context_length_exceeded"


def test_an_asynchronous_client_streams_too(server: Running) -> None:
    import asyncio

    async def text() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(**ASK, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(text()) == "Hello, world."


# --- what can be asked --------------------------------------------------------------------------------------


def asked(server: Running) -> Request:
    return server.engine.requests[-1]


def test_settings_reach_the_engine(server: Running) -> None:
    settings = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 11, "ignore_eos": True}
    post(server, "completions", {**PLAIN, **settings, "max_tokens": 9, "stop_token_ids": [0x6F]})
    sampling = asked(server).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 7, 11)
    assert (sampling.max_tokens, sampling.stop_token_ids, sampling.ignore_eos) == (9, (0x6F,), True)


def test_both_names_of_the_most_tokens_are_taken(server: Running) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        response = post(server, "chat/completions", {**ASK, field: 3})
        assert response.json()["choices"][0]["message"]["content"] == "Hel"
    both = post(server, "chat/completions", {**ASK, "max_tokens": 3, "max_completion_tokens": 3})
    assert both.status_code == 400


def test_a_chat_without_a_limit_has_the_rest_of_the_context(server: Running) -> None:
    post(server, "chat/completions", ASK)
    assert asked(server).sampling.max_tokens == 512 - len(asked(server).prompt)


@pytest.mark.parametrize("stop", [", ", [", "], ["zzz", ", "], ["o, w", ", "]])
def test_stop_strings_end_the_text_before_them(server: Running, stop: Any) -> None:
    choice = post(server, "completions", {**PLAIN, "max_tokens": 50, "stop": stop}).json()["choices"][0]
    assert choice["text"] == "Hello"
    assert choice["finish_reason"] == "stop"


def test_a_stop_token_is_not_part_of_the_text(server: Running) -> None:
    body = {**PLAIN, "max_tokens": 50, "stop_token_ids": [ord(",")]}
    assert post(server, "completions", body).json()["choices"][0]["text"] == "Hello"


def test_prompts_as_text_lists_and_tokens(server: Running) -> None:
    for prompt, sent in [("hi", [b"hi"]), (["a", "b"], [b"a", b"b"]), ([104, 105], [b"hi"])]:
        before = len(server.engine.requests)
        answer = post(server, "completions", {**PLAIN, "prompt": prompt}).json()
        assert [request.prompt for request in server.engine.requests[before:]] == list(map(tuple, sent))
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(sent)))
    several = {**PLAIN, "prompt": [[104], [105, 105]], "n": 2}
    assert len(post(server, "completions", several).json()["choices"]) == 4


def test_choices_have_seeds_of_their_own_and_the_first_is_told(server: Running) -> None:
    before = len(server.engine.requests)
    response = post(server, "chat/completions", {**ASK, "n": 3})
    seeds = [request.sampling.seed for request in server.engine.requests[before:]]
    assert len(set(seeds)) == 3
    assert int(response.headers["x-trueup-seed"]) == seeds[0]


def test_streamed_choices_are_told_apart(server: Running) -> None:
    texts = {0: "", 1: ""}
    for event in events(post(server, "chat/completions", {**ASK, "n": 2, "stream": True})):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "Hello, world.", 1: "Hello, world."}


def test_log_probabilities_of_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2, max_tokens=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(one.token, one.logprob, one.bytes) for one in logprobs.content] == [
        ("H", -0.25, [72]),
        ("e", -0.25, [101]),
    ]
    assert [top.token for top in logprobs.content[0].top_logprobs] == ["H", "I"]


def test_log_probabilities_of_a_completion(server: Running) -> None:
    body = {**PLAIN, "logprobs": 2, "max_tokens": 3}
    whole = post(server, "completions", body).json()["choices"][0]["logprobs"]
    assert whole["tokens"] == ["H", "e", "l"]
    assert whole["token_logprobs"] == [-0.25, -0.25, -0.25]
    assert whole["text_offset"] == [0, 1, 2]
    assert whole["top_logprobs"][0] == {"H": -0.25, "I": -1.5}
    parts = events(post(server, "completions", {**body, "stream": True}))
    streamed = [token for part in parts for token in part["choices"][0]["logprobs"]["tokens"]]
    assert streamed == whole["tokens"]


def test_contents_in_parts_and_the_newer_word_for_system(server: Running) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
    ]
    assert post(server, "chat/completions", {**ASK, "messages": messages}).status_code == 200
    assert bytes(t for t in asked(server).prompt if t < 256) == b"system\nbe brief\nuser\nhi\nassistant\n"


@pytest.mark.parametrize(
    "ignored",
    [{"user": "me"}, {"metadata": {"a": "b"}}, {"store": True}, {"tools": []}, {"stop": None}, {"n": None},
     {"presence_penalty": 0}, {"response_format": {"type": "text"}}, {"logit_bias": {}}],
)  # fmt: skip
def test_what_changes_nothing_is_taken(server: Running, ignored: dict[str, Any]) -> None:
    assert post(server, "chat/completions", {**ASK, **ignored}).status_code == 200


@pytest.mark.parametrize("ignored", [{"user": "me"}, {"metadata": {"a": "b"}}, {"store": True}])
def test_a_completion_takes_it_too(server: Running, ignored: dict[str, Any]) -> None:
    assert post(server, "completions", {**PLAIN, **ignored}).status_code == 200
