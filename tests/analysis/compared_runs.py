"""Made-up runs to compare: what a comparison reads of them, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from trueup.analysis.comparable import ComparedRun, Group
from trueup.schema import DatasetFacts, Evaluation, Measurement, ModelDims, Price, RunHeader, unavailable

START = datetime(2026, 11, 1, tzinfo=UTC)
PER_MILLION = "USD/million useful tokens"
DIMS = ModelDims(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152, tied_head=True,
    parameters=134_515_008, trainable_parameters=1_843_200, lora_parameters=1_843_200,
)  # fmt: skip


def make_header(run_id: str, **changes: Any) -> RunHeader:
    """Of a finished run of the demo; `recipe` and `environment` are laid over the usual ones by section."""
    recipe = {
        "name": "demo",
        "model": {"path": "smollm2-135m"},
        "data": {"source": "stdlib-docs", "max_length": 512, "overlong": "drop", "loss_on": "answer"},
        "tune": {"method": "lora", "rank": 16},
        "train": {"seed": int(run_id[-4:], 16), "max_steps": 40},
        "evaluate": {"every": 20, "max_tokens": 4096},
        "platform": {"device": "auto", "instance": None},
    }
    environment = {
        "host": {"hostname": "one", "booted_at": "2026-10-01", "kernel": "6.1"},
        "process": {"pid": int(run_id, 16)},
        "device": {"kind": "cpu", "name": "some CPU"},
        "versions": {"torch": "2.13.0"},
        "load": {"others_cpu_share": 0.01},
    }
    for key, sections in (("recipe", recipe), ("environment", environment)):
        for section, values in changes.pop(key, {}).items():
            sections[section] = (
                {**sections.get(section, {}), **values} if isinstance(values, dict) else values
            )
    facts = DatasetFacts(
        digest=changes.pop("digest", "0b5c"), source="stdlib-docs", records=9, splits={}, dropped={},
        tokens={}, length_histogram=[],
    )  # fmt: skip
    minute = changes.pop("minute", 0)
    fields: dict[str, Any] = {
        "id": run_id, "name": "demo", "state": "finished", "trueup_version": "0", "recipe": recipe,
        "recipe_digest": "d", "environment": environment, "price": Price(usd_per_hour=3.6, source="a test"),
        "choices": {"device": {"value": "cpu", "reason": "the only one"}}, "model": DIMS, "dataset": facts,
        "started_at": (START + timedelta(minutes=minute)).isoformat(), "wall_s": 30.0,
    }  # fmt: skip
    return RunHeader(**(fields | changes))


def make_run(
    run_id: str,
    usd: float | None = 0.1,
    *,
    evaluations: Sequence[Evaluation] = (),
    unit: str = PER_MILLION,
    figures: dict[str, Measurement] | None = None,
    **header: Any,
) -> ComparedRun:
    """A run of this cost; its throughput follows from it."""
    cost = unavailable(unit, "the run has no price")
    measurements = {"usd_per_million_useful_tokens": cost}
    if usd is not None:
        cost = Measurement(value=usd, unit=unit, kind="derived")
        rate = Measurement(value=100 / usd, unit="tokens/s", kind="measured")
        measurements = {"usd_per_million_useful_tokens": cost, "useful_tokens_per_s": rate}
    return ComparedRun(
        make_header(run_id, **header),
        measurements | (figures or {}),
        evaluations,
        {0: 0, 20: 10_000, 40: 20_000},
    )


def make_group(name: str, costs: Sequence[float], *, first: int = 0, every: int = 2, **header: Any) -> Group:
    """A run for each cost. They start every `every` minutes from minute `first` on: a group that starts a
    minute later takes turns with it."""
    runs = [
        make_run(f"{first * 1000 + number:08x}", usd, minute=first + every * number, name=name, **header)
        for number, usd in enumerate(costs)
    ]
    return Group(name, tuple(runs))


def make_evaluation(step: int, perplexity: float, at_s: float) -> Evaluation:
    return Evaluation(
        step=step, at_s=at_s, split="validation", loss=math.log(perplexity), perplexity=perplexity,
        tokens=4000, seconds=1.0, best=False,
    )  # fmt: skip
