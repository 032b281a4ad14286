"""docs/serving.md says what is there, and all of it."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from trueup.serve.idempotency import KEPT_S, MOST_BYTES, MOST_ENTRIES
from trueup.serve.limits import ApiLimits
from trueup.serve.metrics import ServingMetrics
from trueup.serve.openai_answers import IMPOSSIBLE
from trueup.serve.openai_requests import (
    MOST_STOP_CHARACTERS,
    MOST_STOP_TOKENS,
    ChatRequest,
    CompletionRequest,
)
from trueup.serve.protocols import EngineStats

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def test_every_metric_is_documented_by_the_name_it_has() -> None:
    metrics = ServingMetrics("m", EngineStats, 100)
    metrics.holds({"weights": 1})
    page = metrics.page().decode()
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(page)
        if not family.name.endswith("_created") and not family.name.startswith("process_")
    }
    assert set(re.findall(r"`((?:vllm|trueup):\w+)`", PAGE)) == families


def test_every_error_code_is_documented() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src" / "trueup" / "serve").glob("*.py"))
    codes = set(re.findall(r"""(?:code=|of_key\(\s*\d+,\s*)"(\w+)""", source))
    rows = re.findall(r"^\| [\d, ]+ \| ([^|]+) \|", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == codes


def test_every_field_is_documented_or_ignored() -> None:
    named = set(re.findall(r"`(\w+)(?:\.\w+)?`", PAGE)) | {"presence_penalty", "frequency_penalty"}
    ignored = {"safety_identifier", "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"}
    refused = {
        *("tool_choice", "functions", "function_call", "modalities", "audio", "prediction"),
        *("reasoning_effort", "verbosity", "web_search_options"),
    }
    fields = {*ChatRequest.model_fields, *CompletionRequest.model_fields} - {"model", "stream"}
    assert fields - named == ignored | refused


def test_the_bounds_are_those_of_the_code() -> None:
    limits = ApiLimits()
    assert f"did not come within {limits.body_s:g} s, or is larger than {limits.body_bytes >> 20} MiB" in PAGE
    assert f"head came within {limits.head_s:g} s" in PAGE
    assert f"leaves its answer unread for {limits.unread_s:g} s" in PAGE
    assert f"up to {MOST_STOP_CHARACTERS:,} characters; up to {MOST_STOP_TOKENS} token ids" in PAGE
    assert f"-{-IMPOSSIBLE:g}" in PAGE
    assert KEPT_S == 24 * 3600
    assert f"at most {MOST_ENTRIES:,} of them and\n{MOST_BYTES >> 20} MiB" in PAGE
