"""A load on the real engine with the tiny model: what the client saw, what the server told, and the money
that follows from both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from api_server import MODEL, Running, serving, tokenizer

from trueup.analysis.load_server import counter_doubt
from trueup.data.template import ChatTemplate
from trueup.device import open_device
from trueup.load.address import Address
from trueup.load.record import Recording
from trueup.load.run import LoadJob, execute
from trueup.load.settings import LoadSettings
from trueup.model.tiny import write_tiny
from trueup.schema import Price, RunHeader, RunRecord
from trueup.serve.opening import Opening, codec_of
from trueup.serve.plan import plan_serving
from trueup.telemetry import MemorySink

REQUESTS, PROMPT, OUTPUT = 24, 40, 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    codec = codec_of(folder, tokenizer(), ChatTemplate(tokenizer()))
    plan = plan_serving(
        max_context=128, blocks=40, concurrency=2, block_size=8, prefill_chunk=32, most_shapes=40
    )
    opening = Opening(folder, "fp32", "fp32", plan, codec.end_ids)

    def opened() -> Any:
        return opening.open(open_device("cpu", threads=1)).engine

    with serving(open_engine=opened, codec=codec, context=128, room=64) as running:
        running.until(lambda: running.service.state != "loading")
        assert running.service.state == "ready", running.service.reason
        yield running


@pytest.fixture(scope="module")
def record(server: Running) -> RunRecord:
    """Six in flight where two have a place, so that requests wait."""
    asked = LoadSettings(
        arrivals="closed", concurrency=6, requests=REQUESTS, prompt_tokens=PROMPT, output_tokens=OUTPUT
    )
    header = RunHeader(
        kind="load", id="10ad0002", name="real", state="running", trueup_version="0",
        recipe={"name": "real", "server": {}}, recipe_digest="d", started_at="2026-11-30T00:00:00Z",
        price=Price(usd_per_hour=3.6, source="a test"), environment={"world": {"size": 1}},
    )  # fmt: skip
    recording = Recording(header, MemorySink(), time.perf_counter(), time.perf_counter)
    outcome = execute(LoadJob(settings=asked, address=Address(server.url), model=MODEL), recording)
    assert outcome.record.state == "finished", outcome.record.header.reason
    return outcome.record


def value(record: RunRecord, name: str) -> float:
    found = record.measurements[name]
    assert found.value is not None, f"{name}: {found.reason}"
    return found.value


def test_every_token_asked_for_comes_and_both_sides_count_it(record: RunRecord) -> None:
    assert value(record, "completed_requests_count") == REQUESTS
    assert value(record, "output_tokens") == REQUESTS * OUTPUT
    assert value(record, "server_output_tokens") == REQUESTS * OUTPUT
    assert counter_doubt(record.measurements) is None
    assert not any(one.doubt for one in record.requests)


def test_a_word_costs_what_the_tokenizer_of_bytes_makes_of_it(record: RunRecord) -> None:
    assert record.header.choices["prompt_words"]["value"] == "4 tokens a word"
    assert value(record, "prompt_tokens_off_max") <= 2


def test_prefill_and_decode_share_the_dollars_of_the_stretch(record: RunRecord) -> None:
    assert 0 < value(record, "prefill_time_share") < 1
    assert "overlap" not in record.measurements["prefill_time_share"].method
    usd = 3.6 / 3600 * value(record, "load_s")
    split = [
        value(record, f"usd_per_million_{which}_tokens_split") * value(record, f"{which}_tokens") / 1e6
        for which in ("input", "output")
    ]
    assert sum(split) == pytest.approx(usd)
    assert split[0] == pytest.approx(usd * value(record, "prefill_time_share"))


def test_the_engines_seconds_are_within_those_of_the_load(record: RunRecord) -> None:
    told = {
        event.data.get("when"): event.data["counters"] for event in record.events if "counters" in event.data
    }
    busy = sum(told["after"][name] - told["before"][name] for name in ("prefill_s", "decode_s"))
    requests = next(span.seconds for span in record.spans if span.name == "requests")
    assert 0 < busy <= requests


def test_waiting_and_prefill_make_up_the_servers_time_to_first_token(record: RunRecord) -> None:
    queue, prefill = value(record, "server_queue_mean_s"), value(record, "server_prefill_mean_s")
    assert queue > 0
    assert queue + prefill == pytest.approx(value(record, "server_ttft_mean_s"))
    assert value(record, "server_ttft_mean_s") <= value(record, "ttft_mean_s")


def test_paddings_share_of_the_tokens_computed_is_told(record: RunRecord) -> None:
    assert 0 <= value(record, "server_padding_share") < 1
