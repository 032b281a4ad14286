"""Run records for the tests of this folder: plausible ones, and arbitrary ones for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from trueup.schema import Evaluation, Event, ModelDims, Price, RunHeader, RunRecord, Sample, SpanTotal, Step

PRICE = Price(usd_per_hour=0.0816, source="an example", as_of="2026-06")
SMOL = ModelDims(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152, tied_head=True,
    parameters=134_515_008 + 1_843_200, trainable_parameters=1_843_200, lora_parameters=1_843_200,
)  # fmt: skip


def make_step(number: int, **changes: Any) -> Step:
    fields: dict[str, Any] = {
        "step": number, "start_s": 10.0 + 2.1 * number, "step_s": 2.0 + 0.01 * (number % 7),
        "data_wait_s": 0.05, "loss": 3.0 - 0.01 * number, "grad_norm": 1.0, "lr": 1e-4,
        "useful_tokens": 480, "supervised_tokens": 300, "processed_tokens": 512,
        "head_rows": 320, "attention_sum_sq": 100_000, "micro_batches": 1,
        "shape": (1, 512),
    }  # fmt: skip
    return Step(**(fields | changes))


def make_header(**changes: Any) -> RunHeader:
    fields: dict[str, Any] = {
        "id": "7f3a", "name": "demo", "state": "finished", "trueup_version": "0", "recipe": {},
        "recipe_digest": "d", "started_at": "2026-11-29T00:00:00Z", "price": PRICE, "model": SMOL,
        "environment": {"device": {"kind": "cpu", "name": "some CPU"}, "world": {"size": 1}},
    }  # fmt: skip
    return RunHeader(**(fields | changes))


def make_record(
    *,
    steps: list[Step] | None = None,
    samples: list[Sample] | None = None,
    evaluations: list[Evaluation] | None = None,
    events: list[Event] | None = None,
    header: dict[str, Any] | None = None,
) -> RunRecord:
    """A run whose spans follow from its steps: 10 s before the first, 3 s after the last."""
    done = [make_step(number) for number in range(1, 41)] if steps is None else steps
    spans = [
        SpanTotal(name="start", seconds=2.0, count=1),
        SpanTotal(name="load", seconds=3.0, count=1),
        SpanTotal(name="calibrate", seconds=1.0, count=1),
        SpanTotal(name="warm_up", seconds=4.0, count=1),
        SpanTotal(name="step", seconds=sum(step.step_s for step in done), count=len(done)),
        SpanTotal(name="data_wait", seconds=sum(step.data_wait_s for step in done), count=len(done)),
        SpanTotal(name="evaluate", seconds=2.0, count=2),
        SpanTotal(name="record", seconds=0.5, count=1),
        SpanTotal(name="other", seconds=0.5, count=9),
    ]
    wall_s = sum(span.seconds for span in spans)
    return RunRecord(
        header=make_header(**({"wall_s": wall_s} | (header or {}))),
        spans=tuple(spans),
        events=tuple(events or ()),
        steps=tuple(done),
        evaluations=tuple(evaluations or ()),
        samples=tuple(samples or ()),
    )


def make_evaluation(step: int, perplexity: float, split: str = "validation") -> Evaluation:
    return Evaluation(
        step=step, at_s=float(step), split=split, loss=1.0, perplexity=perplexity, tokens=4000, seconds=1.0,
        best=False,
    )  # fmt: skip


@st.composite
def arbitrary_steps(draw: st.DrawFn) -> list[Step]:
    """Up to twelve steps, some done twice, with any consistent token counts and times from 0."""
    seconds = st.floats(0, 100)
    steps = []
    for _ in range(draw(st.integers(0, 12))):
        processed = draw(st.integers(1, 4096))
        useful = draw(st.integers(0, processed))
        rows = draw(st.integers(0, processed))
        steps.append(
            make_step(
                draw(st.integers(1, 12)),
                step_s=draw(seconds),
                data_wait_s=draw(seconds),
                communication_s=draw(seconds),
                processed_tokens=processed,
                useful_tokens=useful,
                head_rows=rows,
                supervised_tokens=draw(st.integers(0, min(useful, rows))),
                attention_sum_sq=useful * useful,
            )
        )
    return steps


SPAN_NAMES = (
    "start", "prepare", "load", "calibrate", "compile", "warm_up", "data_wait", "communication",
    "evaluate", "checkpoint", "pause", "record", "other", "a name from a later version",
)  # fmt: skip


@st.composite
def arbitrary_records(draw: st.DrawFn) -> RunRecord:
    """Any spans and steps, a wall clock at or beside the spans' sum, with or without model dimensions."""
    steps = draw(arbitrary_steps())
    spans = [
        SpanTotal(name=name, seconds=draw(st.floats(0, 1e5)), count=1)
        for name in draw(st.lists(st.sampled_from(SPAN_NAMES), unique=True))
    ]
    step_s = sum(step.step_s for step in steps) + draw(st.sampled_from([0.0, 1e-4, 5.0]))
    if steps:
        spans.append(SpanTotal(name="step", seconds=step_s, count=len(steps)))
    beside = draw(st.sampled_from([None, 0.0, 1e-4, -1e-4, 7.0]))
    wall_s = None if beside is None else max(0.0, sum(span.seconds for span in spans) + beside)
    model = draw(st.sampled_from([SMOL, None]))
    return RunRecord(header=make_header(wall_s=wall_s, model=model), spans=tuple(spans), steps=tuple(steps))
