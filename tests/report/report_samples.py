"""A made-up run for the report's tests: shaped like a real one, from a fixed seed. Test data, not results."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from trueup.analysis.budget import BudgetVerdict
from trueup.analysis.energy_cost import EnergyCost
from trueup.schema import (
    DatasetFacts,
    Evaluation,
    Event,
    Measurement,
    ModelDims,
    Price,
    RunHeader,
    RunRecord,
    Sample,
    SpanTotal,
    Step,
    unavailable,
)

PRICE = Price(usd_per_hour=0.0816, source="m7g.large us-east-1, June 2026, an example", as_of="2026-06-15")
SPANS = {
    "start": (3.1, 1), "prepare": (1.4, 1), "load": (1.9, 1), "calibrate": (4.2, 1), "warm_up": (6.8, 1),
    "data_wait": (0.21, 40), "step": (133.7, 40), "evaluate": (31.4, 3), "checkpoint": (2.3, 3),
    "record": (0.4, 1), "other": (0.9, 87),
}  # fmt: skip


NO_SENSOR = "no readable sensor"
NO_ENERGY = EnergyCost(energy=unavailable("kWh", NO_SENSOR), tariff=None, cost=unavailable("USD", NO_SENSOR))


@dataclass(frozen=True)
class SampleLine:
    name: str
    seconds: float
    usd: float
    share: float


@dataclass(frozen=True)
class SampleBill:
    run: str
    name: str
    price: Price
    total_usd: float
    wall_s: float
    useful_tokens: int
    usd_per_million_useful_tokens: Measurement
    usd_per_million_useful_tokens_steady: Measurement
    lines: list[SampleLine]
    known: dict[str, int]
    notes: list[str] = field(default_factory=list)
    energy: EnergyCost = NO_ENERGY
    budget: BudgetVerdict | None = None
    only_quoted: bool = False


def make_record(
    *,
    run_id: str = "7f3a91c2",
    name: str = "demo",
    state: str = "finished",
    reason: str | None = None,
    steps: int = 40,
    step_s: float = 3.34,
    samples_hz: float = 10.0,
    priced: bool = True,
    seed: int = 7,
    **header: Any,
) -> RunRecord:
    """A run of `steps` steps with everything a finished run leaves."""
    rng = random.Random(seed)
    made = _steps(rng, steps, step_s)
    wall = max(
        sum(seconds for seconds, _ in SPANS.values()), made[-1].start_s + made[-1].step_s + 5 if made else 0
    )
    evaluations = _evaluations(made)
    fields: dict[str, Any] = {
        "id": run_id, "name": name, "state": state, "reason": reason, "trueup_version": "0.1.0",
        "recipe": _recipe(name), "recipe_digest": "0b5c" * 16,
        "recipe_sources": {"train.max_steps": "command line", "name": "file", "optimizer.lr": "file"},
        "choices": {
            "device": {"value": "cpu", "reason": "no accelerator was found"},
            "threads": {"value": "2", "reason": "physical cores of this machine"},
            "precision": {"value": "fp32", "reason": "this CPU has no AVX-512-BF16 or AMX"},
            "shapes": {"value": "pack into 1 x 512", "reason": "fills 97 % of each row; nothing is compiled"},
        },
        "environment": {
            "python": "3.11.2", "torch": "2.13.0+cpu", "commit": "9529386",
            "cpu": {"model": "Test CPU @ 2.5 GHz", "physical_cores": 2, "flags": ["avx2", "fma"]},
            "memory_bytes": 8_321_499_136, "variables": {"OMP_NUM_THREADS": "2"}, "load_1m": 0.42,
        },
        "price": PRICE if priced else None,
        "model": ModelDims(
            layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152,
            tied_head=True, parameters=134_515_008, trainable_parameters=1_843_200, lora_parameters=1_843_200,
        ),
        "dataset": _dataset(rng), "started_at": "2026-11-29T10:15:30Z",
        "ended_at": "2026-11-29T10:18:37Z",
        "wall_s": wall,
        "steady": {"verdict": "steady", "start_step": 4, "end_step": steps, "n": 35, "method": "optimal cuts",
                   "reason": "one plateau"},
    }  # fmt: skip
    fields.update(header)
    return RunRecord(
        header=RunHeader(**fields),
        spans=tuple(SpanTotal(name=span, seconds=s, count=n) for span, (s, n) in SPANS.items()),
        events=_events(made),
        steps=tuple(made),
        evaluations=tuple(evaluations),
        measurements=_measurements(made, evaluations),
        samples=_samples(rng, wall, samples_hz),
    )


def make_sample_bill(record: RunRecord, **changes: Any) -> SampleBill:
    """A bill whose lines sum to the wall clock."""
    wall = record.header.wall_s or 0.0
    parts = {
        "useful_compute": 0.512, "below_peak": 0.166, "padding": 0.018, "head_padding": 0.0, "recompute": 0.0,
        "compile": 0.0, "warm_up": 0.059, "load": 0.027, "prepare": 0.008, "data_wait": 0.0011,
        "evaluation": 0.168, "checkpoint": 0.0123, "record": 0.0021,
    }  # fmt: skip
    parts["other"] = 1 - sum(parts.values())
    total = PRICE.usd_per_hour * wall / 3600
    useful = sum(step.useful_tokens for step in record.steps)
    cost = total / useful * 1e6 if useful else None
    method = "price per hour over useful tokens"
    unit = "USD/1e6 tokens"
    values: dict[str, Any] = {
        "run": record.header.id, "name": record.header.name, "price": PRICE, "total_usd": total,
        "wall_s": wall,
        "useful_tokens": useful,
        "usd_per_million_useful_tokens": Measurement(
            value=cost, unit=unit, kind="derived", method=method)
        if cost else unavailable(unit, "no step was trained"),
        "usd_per_million_useful_tokens_steady": Measurement(
            value=cost * 0.74, unit=unit, kind="derived", method=method, n=36,
            ci=(cost * 0.722, cost * 0.765), ci_method="within_run: block bootstrap, 2000 resamples",
        ) if cost else unavailable(unit, "no step was trained"),
        "lines": [SampleLine(n, part * wall, part * total, part) for n, part in parts.items()],
        "known": {"measured": 13, "derived": 9, "quoted": 1, "estimated": 0, "unavailable": 4},
    }  # fmt: skip
    values.update(changes)
    return SampleBill(**values)


def _recipe(name: str) -> dict[str, Any]:
    return {
        "name": name, "model": {"path": "smollm2-135m"},
        "data": {"source": "stdlib-docs", "max_length": 512, "split": {"validation": 0.05}},
        "tune": {"method": "lora", "rank": 16, "alpha": 32.0, "targets": ["q_proj", "v_proj"]},
        "train": {"epochs": 1.0, "max_steps": 40, "tokens_per_step": 512, "seed": 0, "stop": {"usd": 0.05}},
        "optimizer": {"lr": 5e-4, "betas": [0.9, 0.999], "clip": None}, "platform": {"device": "auto"},
        "price": {"usd_per_hour": 0.0816, "source": PRICE.source},
    }  # fmt: skip


def _steps(rng: random.Random, count: int, step_s: float) -> list[Step]:
    made, clock = [], 21.0
    for index in range(1, count + 1):
        labels: tuple[str, ...] = ()
        slow = 1.0
        if index == 1:
            labels, slow = ("first_shape",), 1.9
        elif index % 20 == 1:
            labels, slow = ("after_evaluate", "after_checkpoint"), 1.22
        took = step_s * slow * rng.lognormvariate(0, 0.035)
        useful = rng.randint(478, 511)
        made.append(
            Step(
                step=index,
                start_s=clock,
                step_s=took,
                data_wait_s=0.005,
                loss=2.55 + 0.95 * math.exp(-index / 9) + rng.gauss(0, 0.16),
                grad_norm=abs(rng.gauss(0.9, 0.2)),
                lr=5e-4 * min(1.0, index / 5),
                useful_tokens=useful,
                supervised_tokens=useful - 120,
                processed_tokens=512,
                head_rows=useful - 100,
                attention_sum_sq=useful * 90,
                micro_batches=1,
                shape=(1, 512),
                labels=labels,
            )
        )
        clock += took + (14.0 if index % 20 == 0 else 0.01)
    return made


def _evaluations(steps: list[Step]) -> list[Evaluation]:
    points = [(0, 3.466, 10.0)] + [
        (s.step, 2.84 + 0.5 * math.exp(-s.step / 9), s.start_s) for s in steps[19::20]
    ]
    best = min(points, key=lambda point: point[1])[0]
    return [
        Evaluation(step=step, at_s=at, split="validation", loss=loss, perplexity=math.exp(loss), tokens=4096,
                   seconds=10.4, best=step == best)
        for step, loss, at in points
    ]  # fmt: skip


def _events(steps: list[Step]) -> tuple[Event, ...]:
    found = [Event(at_s=4.4, kind="note", message="fp32: this CPU has no AVX-512-BF16 or AMX")]
    for step in steps[19::20]:
        found.append(
            Event(at_s=step.start_s + 6, kind="evaluate", message=f"validation after step {step.step}")
        )
        found.append(Event(at_s=step.start_s + 9, kind="checkpoint", message="best weights kept"))
    return tuple(found)


def _dataset(rng: random.Random) -> DatasetFacts:
    edges = [1, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 513]
    counts = [41, 402, 611, 497, 598, 331, 276, 122, 98, 47, 31, 18]
    return DatasetFacts(
        digest="5e1f" * 16, source="stdlib-docs", records=sum(counts),
        splits={"train": 2764, "validation": 154, "test": 154}, dropped={"over-long": 31, "empty answer": 4},
        tokens={"min": 6, "p50": 33, "p90": 121, "p99": 402, "max": 512, "total": 151_204},
        length_histogram=[(a, b, n) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)],
    )  # fmt: skip


def _measurements(steps: list[Step], evaluations: list[Evaluation]) -> dict[str, Measurement]:
    no_sensor = "this machine has no readable sensor"
    found: dict[str, Measurement] = {
        "useful_tokens_per_s": Measurement(
            value=148.2,
            unit="tokens/s",
            kind="measured",
            method="useful tokens over steady step time",
            n=36,
            ci=(145.1, 151.0),
            ci_method="within_run",
        ),
        "processed_tokens_per_s": Measurement(
            value=153.3, unit="tokens/s", kind="measured", method="all", n=36
        ),
        "step_p50_s": Measurement(
            value=3.33, unit="s", kind="measured", method="median of steady steps", n=36
        ),
        "step_p90_s": Measurement(value=3.51, unit="s", kind="measured", method="of steady steps", n=36),
        "step_p99_s": unavailable("s", "36 steady steps; a p99 needs 299", n=36),
        "step_jitter_share": Measurement(value=0.034, unit="1", kind="measured", method="sd over mean", n=36),
        "padding_share": Measurement(
            value=0.031, unit="1", kind="measured", method="padding over processed tokens"
        ),
        "compile_count": Measurement(value=0, unit="count", kind="measured", method="compile callbacks"),
        "mfu_useful": Measurement(
            value=0.71, unit="1", kind="derived", method="model FLOPs over measured ceiling"
        ),
        "matmul_ceiling_flops_per_s": Measurement(
            value=1.58e11, unit="FLOP/s", kind="measured", method="best square matmul in this run"
        ),
        "peak_host_bytes": Measurement(
            value=1.93e9, unit="bytes", kind="measured", method="largest resident size"
        ),
        "peak_device_bytes": unavailable("bytes", "the device is the CPU: its memory is the host's"),
        "energy_j": unavailable("J", no_sensor, scope="node"),
        "power_mean_w": unavailable("W", no_sensor, scope="node"),
        "temperature_max_c": unavailable("C", no_sensor, scope="node"),
        "others_cpu_share_steady": Measurement(
            value=0.037,
            unit="1",
            kind="measured",
            scope="node",
            method="psutil, other processes, steady part",
        ),
    }
    if evaluations:
        for name, chosen in (("first", evaluations[0]), ("best", min(evaluations, key=lambda e: e.loss))):
            found[f"eval_perplexity_{name}"] = Measurement(
                value=chosen.perplexity,
                unit="1",
                kind="measured",
                method="token-weighted, validation",
                n=4096,
            )
    if steps:
        found["useful_tokens"] = Measurement(
            value=sum(step.useful_tokens for step in steps), unit="tokens", kind="measured", method="counted"
        )
    return found


def _samples(rng: random.Random, wall: float, hz: float) -> tuple[Sample, ...]:
    count = int(wall * hz)
    made = []
    for index in range(count):
        at = index / hz
        busy = 0.12 if at < 8 else 0.93
        neighbour = 0.35 if wall * 0.55 < at < wall * 0.6 else 0.03
        made.append(
            Sample(
                at_s=at,
                values={
                    "cpu_share": min(1.0, max(0.0, rng.gauss(busy, 0.05))),
                    "others_cpu_share": max(0.0, rng.gauss(neighbour, 0.02)),
                    "host_rss_bytes": 3.1e8 + 1.5e9 * (1 - math.exp(-at / 12)) + rng.gauss(0, 2e7),
                    "host_available_bytes": 5.6e9 - 1.5e9 * (1 - math.exp(-at / 12)) + rng.gauss(0, 3e7),
                },
            )
        )
    return tuple(made)
