"""The JSON documents other programs rely on, and one finished run seen through every verb.

Keys may be added; none of these may go or change its meaning. docs/json.md describes them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from in_process import call


@dataclass(frozen=True)
class Finished:
    """A home with one finished run, and the documents its making printed."""

    home: Path
    recipe: Path
    prepared: Any
    trained: Any

    def json(self, *arguments: str | Path) -> Any:
        done = call(*arguments, "--json", home=self.home)
        assert done.code == 0, done.err
        return json.loads(done.out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("documents")
    data = folder / "records.jsonl"
    rows = [
        {"instruction": f"Count to {n}.", "output": " ".join("0123456789"[: n % 9 + 1])} for n in range(80)
    ]
    data.write_text("\n".join(map(json.dumps, rows)))
    recipe = folder / "tiny.yaml"
    recipe.write_text(
        f"""\
name: documents
model: {{path: tiny}}
data: {{source: {data}, max_length: 96, split: {{validation: 0.2, test: 0.1}}}}
tune: {{rank: 4}}
shapes: {{tokens_per_microbatch: 96}}
train: {{epochs: 9, max_steps: 30, tokens_per_step: 96}}
optimizer: {{lr: 1e-2}}
evaluate: {{every: 10, max_tokens: 300}}
precision: {{policy: fp32}}
price: {{usd_per_hour: 3.6, source: a test, as_of: 2026-06-01}}
"""
    )
    home = folder / "home"
    made = Finished(home, recipe, None, None)
    prepared = made.json("prepare", recipe)
    return replace(made, prepared=prepared, trained=made.json("train", recipe, "--name", "first"))


def test_prepare(finished: Finished) -> None:
    document = finished.prepared
    assert set(document) >= {"dataset", "records", "splits", "dropped", "redacted", "tokens", "cache_hit"}
    assert document["records"] == 80 == sum(document["splits"].values())
    assert set(document["splits"]) == {"train", "validation", "test"}
    assert set(document["tokens"]) == {"min", "p50", "p90", "p99", "max", "total"}
    assert document["cache_hit"] is False
    assert document["redacted"] == {}
    again = finished.json("prepare", finished.recipe)
    assert again["cache_hit"] is True
    assert again["dataset"] == document["dataset"]


MEASUREMENT_KEYS = {"value", "unit", "kind", "method", "scope", "n", "ci", "reason"}
NAMES = {
    *("useful_tokens", "useful_tokens_per_s", "supervised_tokens_per_s", "processed_tokens_per_s"),
    *("step_p50_s", "step_p90_s", "step_p99_s", "step_max_s", "compile_s", "compile_count", "padding_share"),
    *("mfu_useful", "mfu_processed", "peak_host_bytes", "peak_device_bytes", "energy_j", "power_mean_w"),
    *("eval_perplexity_first", "eval_perplexity_best", "eval_tokens", "data_wait_share", "time_to_steady_s"),
    *("temperature_max_c", "communication_share", "grad_norm_max", "loss_scale", "skipped_steps_count"),
    *("usd_per_million_useful_tokens", "usd_per_million_useful_tokens_steady", "predicted_step_s"),
}


def test_runs_show(finished: Finished) -> None:
    document = finished.json("runs", "show", "last")
    assert set(document) >= {
        *("id", "name", "state", "recipe", "environment", "measurements", "spans", "events")
    }
    assert document == finished.trained
    assert (document["name"], document["state"]) == ("first", "finished")
    assert document["recipe"]["train"]["max_steps"] == 30
    assert set(document["measurements"]) >= NAMES
    for name, one in document["measurements"].items():
        assert set(one) >= MEASUREMENT_KEYS, name
        assert (one["value"] is None) == (one["kind"] == "unavailable"), name
        assert one["value"] is not None or one["reason"], name
    assert all(set(span) == {"name", "seconds", "count"} for span in document["spans"])
    assert math.isclose(
        math.fsum(span["seconds"] for span in document["spans"]), document["wall_s"], abs_tol=1e-3
    )


def test_bill(finished: Finished) -> None:
    document = finished.json("bill", "first")
    assert set(document) >= {
        *("run", "price", "total_usd", "useful_tokens", "lines"),
        *("usd_per_million_useful_tokens", "usd_per_million_useful_tokens_steady"),
    }
    assert document["run"] == finished.trained["id"]
    assert document["price"]["usd_per_hour"] == 3.6
    assert (document["price"]["source"], document["price"]["kind"]) == ("a test", "quoted")
    assert all({"name", "seconds", "usd", "share"} <= set(line) for line in document["lines"])
    assert all(line["seconds"] >= 0 and line["usd"] >= 0 for line in document["lines"])
    total = math.fsum(line["usd"] for line in document["lines"])
    assert math.isclose(total, document["total_usd"], rel_tol=1e-9)
    per_million = document["usd_per_million_useful_tokens"]["value"]
    assert math.isclose(per_million, document["total_usd"] / document["useful_tokens"] * 1e6)
    assert {"value", "ci"} <= set(document["usd_per_million_useful_tokens_steady"])
    stored = finished.trained["measurements"]["usd_per_million_useful_tokens"]["value"]
    assert math.isclose(per_million, stored)


def test_twice_the_price_is_twice_the_bill(finished: Finished) -> None:
    one, two = (finished.json("bill", "first", "--usd-per-hour", price) for price in ("1", "2"))
    assert math.isclose(two["total_usd"], 2 * one["total_usd"])
    assert one["price"]["source"] == "given on the command line"


def test_bills_of_several_runs_are_a_list(finished: Finished) -> None:
    run_id = finished.trained["id"]
    assert finished.json("bill", run_id[:4], "last")["run"] == run_id  # the same run twice is one run


def test_recipe_show_and_schema(finished: Finished) -> None:
    shown = finished.json("recipe", "show", finished.recipe, "--set", "train.seed=7")
    assert shown["recipe"]["train"]["seed"] == 7
    assert shown["sources"]["train.seed"] == "command line"
    assert shown["sources"]["train.epochs"] == "file"
    assert shown["sources"]["optimizer.eps"] == "default"
    schema = json.loads(call("recipe", "schema", finished.recipe, home=finished.home).out)
    assert schema["properties"]["model"]


def test_runs_list_and_report(finished: Finished, tmp_path: Path) -> None:
    row = next(row for row in finished.json("runs", "list") if row["id"] == finished.trained["id"])
    assert {"id", "name", "state", "started_at", "wall_s", "usd_per_million_useful_tokens"} <= set(row)
    out = tmp_path / "report.html"
    document = finished.json("report", "first", "-o", out)
    assert document["bytes"] == out.stat().st_size < 1_500_000
    assert f"{finished.trained['measurements']['eval_perplexity_best']['value']:.1f}" in out.read_text()


def test_a_run_travels(finished: Finished, tmp_path: Path) -> None:
    """Exported here, imported in another home: the bill is the same to the last digit."""
    bundle = tmp_path / "run.zip"
    finished.json("runs", "export", "first", "-o", bundle)
    other = Finished(tmp_path / "other", finished.recipe, None, None)
    assert other.json("runs", "import", bundle)["already_here"] is False
    assert other.json("runs", "import", bundle)["already_here"] is True
    assert other.json("bill", "last") == finished.json("bill", "first")
    here, there = (one.json("runs", "show", "first") for one in (finished, other))
    assert here["measurements"] == there["measurements"]
    assert here["spans"] == there["spans"]


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=tokens).logits


@pytest.mark.parametrize("method", ["lora", "full"])
def test_exports_give_the_runs_own_logits(finished: Finished, tmp_path: Path, method: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trueup.checkpoint.folder import best_of, load_tensors
    from trueup.model.builtin import resolve_model
    from trueup.model.load import load_model, put_weights
    from trueup.recipe import Recipe

    name = f"export-{method}"
    trained = finished.json(
        "train",
        finished.recipe,
        "--name",
        name,
        "--set",
        f"tune.method={method}",
        "--set",
        "train.max_steps=8",
    )
    recipe = Recipe.model_validate(trained["recipe"])
    base = resolve_model("tiny", finished.home)
    own = load_model(base, recipe.tune)
    best = best_of(finished.home / "runs" / trained["id"] / "checkpoints")
    assert best is not None
    put_weights(own, load_tensors(best[0], "weights"))
    own.module.eval()
    tokens = torch.arange(40)[None] + 60
    expected = logits(own.module, tokens)
    untrained = logits(AutoModelForCausalLM.from_pretrained(base.folder), tokens)
    assert (expected - untrained).abs().max() > 1e-2  # training changed the model, so equality says something

    finished.json("export", name, "--merged", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (logits(merged, tokens) - expected).abs().max() < 1e-3
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template
    if method == "lora":
        finished.json("export", name, "--adapter", tmp_path / "adapter")
        adapted = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base.folder), tmp_path / "adapter"
        )
        assert (logits(adapted, tokens) - expected).abs().max() < 1e-3
    else:
        done = call("export", name, "--adapter", tmp_path / "adapter", home=finished.home)
        assert done.code == 2
        assert "merged" in done.err


def test_calibrate(finished: Finished) -> None:
    document = finished.json("calibrate", "--device", "cpu", "--seconds", "0.1", "--no-steps")
    assert set(document["measurements"]) == {
        *("matmul_ceiling_fp32_flops_per_s", "matmul_ceiling_bf16_flops_per_s"),
        "memory_bandwidth_bytes_per_s",
    }
    assert all(one["value"] > 0 and one["kind"] == "measured" for one in document["measurements"].values())
