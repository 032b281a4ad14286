"""The model card: front matter that parses, every figure with its kind, nothing invented, no path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trueup.model.builtin import ResolvedModel
from trueup.model.card import LIBRARIES, model_card
from trueup.model.verify import LogitCheck
from trueup.recipe.models import Recipe
from trueup.schema import DatasetFacts, Measurement, Price, RunHeader, RunRecord, unavailable
from trueup.schema.measurement import Kind

HUB = ResolvedModel(Path("/models/x"), "org/llama", "Hugging Face hub, revision 1234", "org/llama")
LOCAL = ResolvedModel(Path("/models/llama"), "llama", "local folder llama")
KINDS = set(Kind.__args__)


def record(**header: Any) -> RunRecord:
    source = "/home/me/orders.jsonl"
    recipe = {"model": {"path": "org/llama"}, "data": {"source": source}, "tune": {"rank": 8}}
    given: dict[str, Any] = {
        "name": "orders", "state": "finished", "trueup_version": "9.9", "recipe_digest": "0",
        "recipe": Recipe.model_validate({"name": "orders", **recipe}).model_dump(mode="json"),
        "choices": {
            "precision": {"value": "fp32", "reason": "this CPU | has no bf16"},
            "shapes": {"value": "pack", "reason": "least expected time"},
        },
        "environment": {
            "host": {"hostname": "secret-host", "cpus_logical": 8, "memory_bytes": 1000},
            "device": {"kind": "cuda", "name": "H100 <SXM>", "memory_bytes": 80_000_000_000},
            "instance": {"instanceType": "p5.4xlarge", "region": "us-east-1", "instanceId": "i-secret"},
            "versions": {"torch": "2.13.0"},
        },
        "price": Price(usd_per_hour=6.88, source="a list", as_of="2026-06-01"),
        "dataset": DatasetFacts(
            digest="d1ce57", source=source, records=100, splits={"train": 90, "validation": 10},
            dropped={"too_long": 3}, tokens={"min": 5, "p50": 40.5, "max": 99, "total": 4100},
            length_histogram=[],
        ),
        "started_at": "2026-11-30T10:00:00Z", "wall_s": 1800.0,
    }  # fmt: skip
    return RunRecord(
        header=RunHeader(id="7f3a91c2", **(given | header)),
        measurements={
            "eval_perplexity_first": Measurement(value=20.5, unit="1", kind="measured", n=1223),
            "eval_perplexity_best": Measurement(value=7.25, unit="1", kind="measured", n=1223),
            "useful_tokens": Measurement(value=1_000_000, unit="tokens", kind="measured", method="counted"),
            "usd_per_million_useful_tokens": Measurement(value=3.44, unit="USD/million", kind="derived"),
            "usd_per_million_useful_tokens_steady": Measurement(
                value=3.0, unit="USD/million", kind="derived", ci=(2.9, 3.1), ci_method="within_run"
            ),
            "energy_j": unavailable("J", "no power sensor"),
        },
    )


def tables(card: str) -> dict[str, list[str]]:
    """First cell of every row -> the others."""
    rows = [re.split(r" \| ", line.strip("| \n")) for line in card.splitlines() if line.startswith("|")]
    return {first: rest for first, *rest in rows}


def front_matter(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    front: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return front


CHECK = LogitCheck(2.1e-7, 1e-8, "max_abs_difference", 1e-3, 128, "peft")


@pytest.mark.parametrize("kind", LIBRARIES)
def test_front_matter_names_library_and_base(kind: Any) -> None:
    front = front_matter(model_card(record(), HUB, kind, "best, step 12", CHECK))
    assert (
        front["library_name"]
        == {"adapter": "peft", "merged": "transformers", "gguf": "gguf", "onnx": "onnx"}[kind]
    )
    assert front["base_model"] == "org/llama"
    assert front["base_model_relation"] == ("adapter" if kind == "adapter" else "finetune")
    assert front["tags"] == ["trueup", "lora"]
    assert "license" not in front


def test_a_base_that_is_not_on_the_hub_is_no_link_to_it() -> None:
    card = model_card(record(), LOCAL, "adapter", "best, step 12", CHECK)
    assert "base_model" not in front_matter(card)
    assert "`llama` (local folder llama)" in card


def test_every_figure_has_its_kind() -> None:
    card = model_card(record(), HUB, "adapter", "best, step 12", CHECK)
    rows = tables(card)
    assert rows["held-out perplexity before training"][:3] == ["20.5", "1", "measured"]
    assert rows["held-out perplexity, best"][:3] == ["7.25", "1", "measured"]
    assert "over 1,223 supervised tokens" in rows["held-out perplexity, best"][3]
    assert rows["useful tokens trained on"] == ["1,000,000", "tokens", "measured", "counted"]
    assert rows["cost per million useful tokens, all in"][:3] == ["3.44", "USD/million", "derived"]
    assert "2.9 to 3.1, within_run" in rows["cost per million useful tokens, steady part"][3]
    assert rows["energy"] == ["", "J", "unavailable", "no power sensor"]
    assert rows["price of the machine"] == ["6.88", "USD/h", "quoted", "a list, as of 2026-06-01"]
    assert rows["cost of the whole run"][:3] == ["3.44", "USD", "derived"]
    assert rows["examples in train"] == ["90", "measured"]
    assert rows["tokens, longest example"] == ["99", "measured"]
    assert rows["rows dropped: too_long"] == ["3", "measured"]
    for section in ("## What it took", "## Data"):
        for line in card.partition(section)[2].partition("\n## ")[0].splitlines():
            if line.startswith("| ") and not line.startswith(("| figure", "| ---")):
                assert KINDS & set(line.strip("| ").split(" | ")), line
    assert "differ from the run's own by at most 2.1e-07, allowed 0.001" in card
    assert "was not read back" in model_card(record(), HUB, "adapter", "best", None)


def test_settings_hardware_and_run_are_named() -> None:
    card = model_card(record(), HUB, "merged", "best, step 12", CHECK)
    rows = tables(card)
    assert rows["tune.rank"] == ["8"]
    assert rows["train.seed"] == ["0"]
    assert rows["chosen: shapes"] == ["pack (least expected time)"]
    assert "train.stop.usd" not in rows  # it was not set
    assert rows["chosen: precision"] == [r"fp32 (this CPU \| has no bf16)"]
    assert rows["device"] == ["cuda H100 &lt;SXM>"]
    assert rows["instance"] == ["p5.4xlarge, us-east-1"]
    assert rows["torch"] == ["2.13.0"]
    for fact in ("trueup 9.9", "`7f3a91c2`", "2026-11-30T10:00:00Z", "best, step 12", "`d1ce57`"):
        assert fact in card


def test_how_the_weights_are_kept_is_said() -> None:
    assert "Weights, kept as q8_0: best" in model_card(record(), HUB, "gguf", "best", CHECK, stored="q8_0")


def test_full_fine_tuning_has_no_settings_of_lora() -> None:
    full = record(recipe={**record().header.recipe, "tune": {"method": "full", "rank": 16}})
    card = model_card(full, HUB, "merged", "best", CHECK)
    assert tables(card)["tune.method"] == ["full"]
    assert "tune.rank" not in tables(card)
    assert front_matter(card)["tags"] == ["trueup", "full-fine-tuning"]


def test_nothing_private_is_in_it() -> None:
    card = model_card(record(), HUB, "gguf", "best, step 12", CHECK)
    for private in ("secret", "/home/me", "/models"):
        assert private not in card
    assert "`orders.jsonl`" in card


def test_a_run_that_left_little_has_a_card_that_says_so() -> None:
    bare = record(price=None, dataset=None, environment={}, choices={}, wall_s=None)
    card = model_card(bare.model_copy(update={"measurements": {}}), HUB, "merged", "last, step 1", None)
    rows = tables(card)
    assert rows["useful tokens trained on"][2] == "unavailable"
    assert rows["cost of the whole run"] == ["", "USD", "unavailable", "the run has no price"]
    assert "Unavailable: the run ended before its data was prepared" in card


@pytest.mark.parametrize("name", ["a | b", "x\n---\nlicense: mit", "<script>alert(1)</script>", "名前: #1"])
def test_a_name_cannot_change_the_card(name: str) -> None:
    card = model_card(record(name=name), HUB, "adapter", "best", CHECK)
    assert "license" not in front_matter(card)
    assert card.count("\n---\n") == 1
    assert "<script>" not in card
