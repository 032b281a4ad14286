"""What a load reads of others: measurements that are given to it, a server's metrics, its address."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from trueup.load.address import Address, ServedModel, address_of, is_url, served_model
from trueup.load.given import read_given
from trueup.load.scrape import Snapshot, read_metrics, scrape
from trueup.schema import InputError, Measurement, TrueupError

FIGURE = {"value": 1.5, "unit": "1", "kind": "measured"}


@pytest.mark.parametrize("section", [None, "measurements", "gate", "lines"])
def test_measurements_are_found_at_the_top_or_in_a_known_section(tmp_path: Path, section: str | None) -> None:
    path = tmp_path / "given.json"
    inner = {"perplexity": FIGURE, "verdict": "accepted", "broken": {"unit": "1", "kind": "measured"}}
    path.write_text(json.dumps(inner if section is None else {section: inner, "folder": "x"}))
    assert read_given(path, "--quality", "quality_") == {"quality_perplexity": Measurement(**FIGURE)}


def test_names_get_their_prefix_and_unit_once(tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text(json.dumps({"weights": FIGURE, "plan_kv_bytes": FIGURE}))
    assert set(read_given(path, "--memory-plan", "plan_", "_bytes")) == {
        "plan_weights_bytes",
        "plan_kv_bytes",
    }


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"a": {"value": 1}}', '"x"'])
def test_a_file_without_a_measurement_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "given.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"--quality .*(not JSON|holds no measurement)"):
        read_given(path, "--quality", "quality_")


def test_vllms_llama_cpps_and_our_own_names_are_known() -> None:
    found = read_metrics(
        "vllm:gpu_cache_usage_perc 0.25\n"
        "llamacpp:prompt_tokens_total 7\nllamacpp:tokens_predicted_seconds_total 1.5\n"
        'trueup:memory_bytes{owner="weights"} 5\nprocess_resident_memory_bytes 9\n'
    )
    assert found == Snapshot(
        counters={"prompt_tokens": 7.0, "decode_s": 1.5},
        states={"kv_cache_usage_share": 0.25, "server_rss_bytes": 9.0},
        memory={"weights": 5.0},
    )


def test_engines_of_one_server_are_added_up_and_their_shares_averaged() -> None:
    found = read_metrics(
        'vllm:num_preemptions_total{engine="0"} 3\nvllm:num_preemptions_total{engine="1"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    )
    assert found.counters["preemptions"] == 7
    assert found.states["kv_cache_usage_share"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(404), "answered HTTP 404"),
        (httpx.Response(200, text="<html> not { metrics"), "not in Prometheus's format"),
        (httpx.Response(200, content=b"x" * (9 << 20)), "more than"),
        (httpx.ConnectError("refused"), "did not answer: refused"),
    ],
)
def test_metrics_that_are_none_are_a_reason(answer: httpx.Response | Exception, words: str) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def look() -> Snapshot | str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as http:
            return await scrape(http, "http://s/metrics")

    found = asyncio.run(look())
    assert isinstance(found, str)
    assert words in found


@pytest.mark.parametrize(("silent", "asked", "known"), [(2, 3, True), (3, 3, False)])
def test_a_server_that_does_not_answer_at_once_is_asked_again(silent: int, asked: int, known: bool) -> None:
    count = 0

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        if count <= silent:
            raise httpx.ReadTimeout("busy")
        return httpx.Response(200, text="vllm:num_preemptions_total 3\n")

    async def look() -> Snapshot | str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as http:
            return await scrape(http, "http://s/metrics", 3)

    assert isinstance(asyncio.run(look()), Snapshot) == known
    assert count == asked


def test_a_server_that_says_it_has_no_metrics_is_not_asked_again() -> None:
    count = 0

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        return httpx.Response(404)

    async def look() -> Snapshot | str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as http:
            return await scrape(http, "http://s/metrics", 3)

    assert "HTTP 404" in str(asyncio.run(look()))
    assert count == 1


@pytest.mark.parametrize(
    ("url", "root", "local"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("http://localhost:8000/v1/", "http://localhost:8000", True),
        ("https://api.example.com/llm/v1", "https://api.example.com/llm", False),
        ("http://[::1]:9", "http://[::1]:9", True),
    ],
)
def test_an_address_is_known_with_or_without_its_version(url: str, root: str, local: bool) -> None:
    found = address_of(url)
    assert (found, found.local) == (Address(root), local)
    assert found.base_url == f"{root}/v1"


@pytest.mark.parametrize("listed", ['[{"id": "\\ud800"}]', '[{"id": {}}]', '[{"id": ""}]', "[]"])
def test_a_model_without_a_name_that_can_be_sent_is_none(listed: str) -> None:
    with pytest.raises(InputError, match="has no model"):
        found_model(f'{{"data": {listed}}}')


def test_a_list_of_models_without_end_is_none() -> None:
    with pytest.raises(TrueupError, match="no list of models"):
        found_model("[" * 200_000)


def found_model(body: str) -> ServedModel:
    async def find() -> ServedModel:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, text=body))
        async with httpx.AsyncClient(transport=transport) as http:
            return await served_model(http, Address("http://s"), None, {})

    return asyncio.run(find())


def test_a_folder_is_no_address() -> None:
    assert not is_url("models/tiny")
    assert is_url("https://host")
