"""Jobs, calibrations and predictions for the tests of this folder and of the report."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from trueup.analysis.memory_plan import MemoryAsk
from trueup.analysis.predict import by_calibration, by_datasheet
from trueup.analysis.predict_job import Job
from trueup.analysis.predict_products import ProductTable
from trueup.analysis.predict_terms import TERMS, MicroBatchWork, Tuning
from trueup.analysis.residual import EVENT, prediction_event
from trueup.catalog import Accelerator, accelerators
from trueup.schema import (
    Calibration,
    Event,
    Measurement,
    ModelDims,
    Prediction,
    Price,
    ProductTime,
    StepRates,
)

SMOL = ModelDims(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152, tied_head=True,
    parameters=134_515_008 + 1_843_200, trainable_parameters=1_843_200, lora_parameters=1_843_200,
)  # fmt: skip
LORA = Tuning("lora", 16, ("q_proj", "k_proj", "v_proj", "o_proj"))
SIDES = (16, 256, 4096)
PRODUCTS = tuple(
    ProductTime(m=m, k=k, n=n, seconds=1e-6 + 2e-12 * m * k * n) for m, k, n in product(SIDES, repeat=3)
)
# Without the largest, as a calibration in little time has it.
TABLE = ProductTable(tuple(one for one in PRODUCTS if one.m * one.k * one.n <= 256 * 4096 * 4096))
PRICE = Price(usd_per_hour=3.6, source="an example")


def micro_batch(useful: int = 480, **changes: Any) -> MicroBatchWork:
    fields: dict[str, Any] = {
        "rows": 1, "width": 512, "useful": useful, "supervised": 100, "head_rows": 100,
        "attention_sum_sq": 100_000, "scores": 120_000, "scores_again": 30_000, "groups": 2, "examples": 4,
    }  # fmt: skip
    return MicroBatchWork(**(fields | changes))


def job(**changes: Any) -> Job:
    memory = MemoryAsk(
        dims=SMOL,
        tuning=LORA,
        policy="bf16-master",
        rows=1,
        width=512,
        head_rows=100,
        attention="example",
        longest=300,
    )
    fields: dict[str, Any] = {
        "dims": SMOL, "tuning": LORA, "policy": "bf16-master", "memory": memory, "price": PRICE,
        "steps": [(micro_batch(),) * 2] * 10,
        "compiles": Measurement(value=0.0, unit="s", kind="predicted", method="nothing is compiled"),
    }  # fmt: skip
    made = Job(**(fields | changes))
    return replace(made, memory=replace(made.memory, policy=made.policy))


def calibration(**changes: Any) -> Calibration:
    """A machine of 1 TFLOP/s products, whose other terms take a little."""
    rates = StepRates(
        attention="example",
        products=PRODUCTS,
        term_s=dict.fromkeys(TERMS, 1e-10) | {"products": 1.1, "adapters": 1.2, "head": 1.0, "steps": 1e-3},
        probes=30,
        error_median=0.05,
        error_worst=0.2,
    )
    fields: dict[str, Any] = {
        "name": "lab", "device_kind": "cpu", "device_name": "some CPU", "threads": 2, "trueup_version": "0",
        "torch_version": "2", "made_at": "2026-11-29T00:00:00Z", "seconds": 40.0,
        "measurements": {
            "base_host_bytes": measured(6e8, "bytes"),
            "assemble_example_s": measured(2e-5, "s"),
            "assemble_token_s": measured(1e-8, "s"),
        },
        "rates": {"bf16-master": rates},
    }  # fmt: skip
    return Calibration(**(fields | changes))


def with_first_products(first_s: float, program_bytes: float, **changes: Any) -> Calibration:
    """The same machine, which compiles for a product of each new size."""
    rates = calibration().rates["bf16-master"]
    products = tuple(
        one.model_copy(update={"first_s": one.seconds + first_s, "program_bytes": program_bytes})
        for one in rates.products
    )
    fields = {"products": products, "attention_program_bytes": program_bytes} | changes
    return calibration(rates={"bf16-master": rates.model_copy(update=fields)})


def measured(value: float, unit: str) -> Measurement:
    return Measurement(value=value, unit=unit, kind="measured", method="an example")


def chip(name: str = "trainium1") -> Accelerator:
    return accelerators()[name]


def calibrated(one: Job | None = None, of: Calibration | None = None) -> Prediction:
    return by_calibration(one or job(), of or calibration(), host=True, platform="some CPU")


def datasheet(one: Job | None = None, name: str | None = "trainium1") -> Prediction:
    return by_datasheet(one or job(), None if name is None else chip(name), name or "some CPU")


def foretold_event(*predictions: Prediction) -> Event:
    return Event(at_s=9.0, kind=EVENT, message="a step is foretold", data=prediction_event(list(predictions)))
