"""The API over the real engine and the tiny model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from api_server import MODEL, Running, serving, tokenizer

from trueup.data.template import ChatTemplate
from trueup.device import open_device
from trueup.model.tiny import write_tiny
from trueup.serve.opening import Opening, codec_of, end_ids_of
from trueup.serve.plan import plan_serving

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import mixed_load

CONTEXT = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    codec = codec_of(folder, tokenizer(), ChatTemplate(tokenizer()))
    plan = plan_serving(
        max_context=CONTEXT, blocks=24, concurrency=4, block_size=8, prefill_chunk=32, most_shapes=40
    )
    opening = Opening(folder, "fp32", "fp32", plan, codec.end_ids)

    def opened() -> Any:
        return opening.open(open_device("cpu", threads=1)).engine

    with serving(open_engine=opened, codec=codec, context=CONTEXT, room=8) as running:
        running.until(lambda: running.service.state != "loading")
        assert running.service.state == "ready", running.service.reason
        yield running


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def generated(model: Any, prompt: str, count: int) -> str:
    """What transformers generates, greedily."""
    tokens = torch.tensor([tokenizer()(prompt)["input_ids"]])
    out = model.generate(tokens, max_new_tokens=count, do_sample=False, pad_token_id=256)
    text: str = tokenizer().decode(out[0, tokens.shape[1] :], skip_special_tokens=True)
    return text


@pytest.mark.parametrize("prompt", ["Hello", "é🌶 x", "a much longer prompt, of more than one block " * 2])
def test_greedy_text_is_that_of_transformers_whole_and_streamed(
    server: Running, model: Any, prompt: str
) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    asked: Any = {"model": MODEL, "prompt": prompt, "max_tokens": 20, "temperature": 0}
    expected = generated(model, prompt, 20)
    assert client.completions.create(**asked).choices[0].text == expected
    chunks = client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected


def test_a_seed_gives_the_same_answer_again(server: Running) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
    first, again, other = (
        client.chat.completions.create(**asked, seed=seed).choices[0].message.content for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_a_seed_that_was_drawn_and_told_gives_the_same_answer(server: Running) -> None:
    asked = {"model": MODEL, "prompt": "hi", "max_tokens": 20}
    first = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60)
    told = {**asked, "seed": int(first.headers["x-trueup-seed"])}
    again = httpx.post(f"{server.url}/v1/completions", json=told, timeout=60)
    assert again.json()["choices"] == first.json()["choices"]


def test_the_likeliest_tokens_are_told(server: Running) -> None:
    asked = {"model": MODEL, "prompt": "hi", "max_tokens": 3, "temperature": 0, "logprobs": 4}
    logprobs = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60).json()["choices"][0][
        "logprobs"
    ]
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == pytest.approx(logprob, abs=1e-5)
        assert max(top.values()) == pytest.approx(logprob, abs=1e-5)


def test_what_the_pool_can_never_hold_is_a_refusal_in_the_apis_form(server: Running) -> None:
    response = httpx.post(
        f"{server.url}/v1/completions",
        json={"model": MODEL, "prompt": "x" * 120, "max_tokens": 20},
        timeout=60,
    )
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def cached(server: Running, prompt: str | list[str], n: int = 1) -> int:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "n": n}
    usage = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_cached_tokens_are_of_all_the_prompts(server: Running) -> None:
    prompts = ["one prompt of some length", "two has another one"]
    for prompt in prompts:
        cached(server, prompt)
    alone = [cached(server, prompt) for prompt in prompts]
    assert min(alone) > 0
    assert cached(server, prompts) == sum(alone)


def test_a_prompt_that_one_choice_computed_is_not_cached_for_the_others(server: Running) -> None:
    assert cached(server, "nobody has asked this before", n=3) == 0


def test_mixed_clients_leave_no_block_behind(server: Running) -> None:
    before = mixed_load.metrics_of(server.url)
    seen = mixed_load.run_clients(server.url, MODEL, 4, lambda: repeat(True, 12))
    server.until(lambda: mixed_load.is_idle(mixed_load.metrics_of(server.url)))
    after = mixed_load.metrics_of(server.url)
    counted = {
        key: value - before.get(key, 0.0) for key, value in after.items() if value != before.get(key, 0.0)
    }
    zeros = dict.fromkeys((key for key in after if key[0].endswith(("_total", "_sum", "_count"))), 0.0)
    found = {key: value for key, value in {**zeros, **counted}.items() if value or key[1] == ""}
    assert mixed_load.disagreements(seen, found) == []


def test_end_tokens_are_those_of_all_the_models_files(folder: Path) -> None:
    assert end_ids_of(folder) == {258}
    (folder / "generation_config.json").write_text('{"eos_token_id": [258, 259]}')
    assert end_ids_of(folder) == {258, 259}
