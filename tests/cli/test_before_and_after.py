"""The tiny model served as it is and in int8, a load on each, and both on one page: memory by owner, latency,
quality and the month's bill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from in_process import Done, call

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.yaml"
LOAD = (
    *("--rate", "20", "--requests", "60", "--prompt-tokens", "48", "--output-tokens", "8"),
    *("--usd-per-hour", "0.0816", "--ttft-limit", "60", "--ready-within", "3600"),
    *("--serve-option=--context=128", "--serve-option=--concurrency=2"),
)
TRAFFIC = ("--traffic", "100000")


def well(done: Done) -> Done:
    assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the loads `before` and `after`."""
    home = tmp_path_factory.mktemp("served")
    int8 = str(home / "tiny-int8")
    judged = ("--set", "quality.tokens=512", "--set", "quality.long=256")
    well(
        call("quantize", "tiny", "-o", int8, "--scheme", "int8", "--recipe", str(RECIPE), *judged, home=home)
    )
    for name, model in (("before", "tiny"), ("after", int8)):
        well(call("load", model, *LOAD, "--name", name, home=home))
    return home


@pytest.fixture(scope="module")
def compared(home: Path) -> Any:
    return json.loads(well(call("compare", "before", "after", *TRAFFIC, "--json", home=home)).out)


def figure(compared: Any, group: int, name: str) -> Any:
    found = compared["groups"][group]["figures"][name]
    assert found["value"] is not None, f"{name}: {found['reason']}"
    return found


@pytest.mark.parametrize("name", ["ttft_p50_s", "e2e_p90_s", "output_tokens_per_s", "goodput_share"])
def test_latency_and_rate_have_intervals_on_both_sides(compared: Any, name: str) -> None:
    for group in (0, 1):
        found = figure(compared, group, name)
        assert found["ci"][0] <= found["value"] <= found["ci"][1]


@pytest.mark.parametrize("name", ["usd_per_month", "usd_per_month_part", "usd_per_million_output_tokens"])
def test_the_months_bill_has_an_interval_on_both_sides(compared: Any, name: str) -> None:
    for group in (0, 1):
        found = figure(compared, group, name)
        assert 0 < found["ci"][0] <= found["value"] <= found["ci"][1]


def test_memory_is_told_by_owner_and_int8_holds_less(compared: Any) -> None:
    before, after = (figure(compared, group, "memory_weights_bytes")["value"] for group in (0, 1))
    assert after < before / 2
    assert figure(compared, 1, "memory_kv_cache_bytes")["value"] > 0


def test_what_quantising_cost_in_quality_stands_with_the_quantised_side(compared: Any) -> None:
    ratio = figure(compared, 1, "quality_perplexity_ratio_short")
    assert ratio["ci"][0] <= ratio["value"] <= ratio["ci"][1]
    share = figure(compared, 1, "quality_same_choice_share_short")
    assert 0 <= share["ci"][0] <= share["ci"][1] <= 1
    assert compared["groups"][0]["figures"]["quality_perplexity_ratio_short"]["value"] is None


@pytest.mark.parametrize("command", ["compare", "report"])
def test_one_page_has_all_of_it(home: Path, tmp_path: Path, command: str) -> None:
    page = tmp_path / "page.html"
    well(call(command, "before", "after", *TRAFFIC, "-o", str(page), home=home))
    text = page.read_text()
    for words in ("Cost", "Latency", "Memory", "Quality", "$ a month, whole instances", "memory: kv cache"):
        assert words in text


def test_both_servers_told_what_they_gave(home: Path) -> None:
    for name in ("before", "after"):
        shown = json.loads(well(call("runs", "show", name, "--json", home=home)).out)["measurements"]
        assert shown["output_tokens"]["value"] == shown["server_output_tokens"]["value"] == 60 * 8
        assert 0 < shown["prefill_time_share"]["value"] < 1
        assert shown["server_queue_mean_s"]["value"] >= 0
