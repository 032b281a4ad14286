"""Runs and run folders made up for the store's tests. Written here by hand, not by the code under test."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from trueup.schema import (
    Evaluation,
    Event,
    Measurement,
    RunHeader,
    RunRecord,
    Sample,
    Segment,
    SpanTotal,
    Step,
    unavailable,
)

RUN_ID = "7f3a91c2"


def make_header(run_id: str = RUN_ID, name: str = "demo", **fields: Any) -> RunHeader:
    given: dict[str, Any] = {
        "state": "finished",
        "trueup_version": "0.1.0",
        "recipe": {"name": name, "model": {"path": "smollm2-135m"}, "platform": {"device": "auto"}},
        "recipe_digest": "0b5c",
        "choices": {"device": {"value": "cpu", "reason": "no accelerator was found"}},
        "price": {"usd_per_hour": 0.0816, "source": "an example"},
        "started_at": "2026-11-29T10:15:30+00:00",
        "ended_at": "2026-11-29T10:15:40+00:00",
        "wall_s": 10.0,
    }
    return RunHeader(id=run_id, name=name, **(given | fields))


def make_segments(wall_s: float = 10.0) -> list[Segment]:
    return [
        Segment(name="start", start_s=0.0, end_s=0.7),
        Segment(name="step", start_s=0.7, end_s=3.1),
        Segment(name="evaluate", start_s=3.1, end_s=4.0),
        Segment(name="step", start_s=4.0, end_s=9.3, opens=False),
        Segment(name="other", start_s=9.3, end_s=wall_s),
    ]


def make_step(step: int = 1, **fields: Any) -> Step:
    given: dict[str, Any] = {
        "step": step, "start_s": 0.7 * step, "step_s": 0.1 / 3, "data_wait_s": 0.01, "loss": 2.5,
        "grad_norm": 0.9, "lr": 1e-4, "useful_tokens": 500, "supervised_tokens": 300,
        "processed_tokens": 512, "head_rows": 301, "attention_sum_sq": 45_000,
        "micro_batches": 1, "shape": (1, 512), "labels": ("first_shape",),
    }  # fmt: skip
    return Step(**(given | fields))


def make_record(run_id: str = RUN_ID, name: str = "demo", **header: Any) -> tuple[RunRecord, list[Segment]]:
    """A record and the segments that its spans are the totals of."""
    record = RunRecord(
        header=make_header(run_id, name, **header),
        spans=(
            SpanTotal(name="start", seconds=0.7, count=1),
            SpanTotal(name="step", seconds=math.fsum([3.1 - 0.7, 9.3 - 4.0]), count=1),
            SpanTotal(name="evaluate", seconds=4.0 - 3.1, count=1),
            SpanTotal(name="other", seconds=10.0 - 9.3, count=1),
        ),
        events=(Event(at_s=1.5, kind="note", message="a note", data={"k": [1, 2.5]}),),
        steps=(make_step(1), make_step(2, loss=math.inf, labels=())),
        evaluations=(
            Evaluation(
                step=0,
                at_s=3.2,
                split="validation",
                loss=3.4,
                perplexity=30.1,
                tokens=99,
                seconds=0.8,
                best=True,
            ),
        ),
        measurements={
            "useful_tokens": Measurement(value=1000.0, unit="tokens", kind="measured", method="counted"),
            "usd_per_million_useful_tokens_steady": Measurement(
                value=0.1,
                unit="USD/1e6 tokens",
                kind="derived",
                n=36,
                ci=(0.09, 0.11),
                ci_method="within_run",
            ),
            "energy_j": unavailable("J", "no power sensor"),
        },
        samples=(Sample(at_s=0.1, values={"cpu_share": 0.93}), Sample(at_s=0.2, values={})),
    )
    return record, make_segments()


def write_folder(
    home: Path, record: RunRecord, segments: Sequence[Segment], *, heartbeat_age_s: float | None = None
) -> Path:
    folder = home / "runs" / record.header.id
    folder.mkdir(parents=True, exist_ok=True)
    series = {
        "segments": segments, "events": record.events, "steps": record.steps,
        "evaluations": record.evaluations, "samples": record.samples,
    }  # fmt: skip
    for name, items in series.items():
        lines = "".join(json.dumps(item.model_dump()) + "\n" for item in items)
        (folder / f"{name}.jsonl").write_text(lines)
    measured = {name: m.model_dump() for name, m in record.measurements.items()}
    (folder / "measurements.json").write_text(json.dumps(measured))
    (folder / "run.json").write_text(json.dumps(record.header.model_dump()))
    if heartbeat_age_s is not None:
        (folder / "heartbeat").touch()
        beat = time.time() - heartbeat_age_s
        os.utime(folder / "heartbeat", (beat, beat))
    return folder


def same(one: RunRecord, other: RunRecord) -> bool:
    """Equality to the last bit, NaN equal to NaN and -0.0 to 0.0; the order of measurements counts."""
    return _written(one.model_dump()) == _written(other.model_dump())


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value + 0.0 if isinstance(value, float) else value)


def in_order(values: dict[str, float]) -> dict[str, float]:
    """Sensors by name, which is how a bundle's columns give them back."""
    return dict(sorted(values.items()))


# Hypothesis strategies. Text without lone surrogates: UTF-8 has none. Paths are tested on their own.
words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="/\\"), max_size=12
)
names = words.filter(bool)
finite = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0, 1e6)
counts = st.integers(0, 2**62)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
kinds = st.sampled_from(["measured", "derived", "estimated", "quoted", "predicted"])
measurement = st.builds(
    Measurement, value=finite, unit=words, kind=kinds, method=words, n=st.none() | counts,
    ci=st.none() | st.tuples(finite, finite), ci_method=st.none() | words, reason=st.none() | words,
    scope=st.sampled_from(["process", "device", "node"]),
) | st.builds(unavailable, words, names)  # fmt: skip
step = st.builds(
    Step, step=counts, start_s=seconds, step_s=seconds, data_wait_s=seconds, communication_s=seconds,
    loss=st.floats(), grad_norm=st.floats(), lr=finite, useful_tokens=counts, supervised_tokens=counts,
    processed_tokens=counts, head_rows=counts, attention_sum_sq=counts, micro_batches=counts,
    shape=st.tuples(counts, counts), loss_scale=finite, skipped=st.booleans(),
    labels=st.lists(words, max_size=2).map(tuple),
)  # fmt: skip
evaluation = st.builds(
    Evaluation, step=counts, at_s=seconds, split=words, loss=st.floats(), perplexity=st.floats(),
    tokens=counts, seconds=seconds, best=st.booleans(),
)  # fmt: skip
event = st.builds(
    Event, at_s=seconds, kind=words, message=words, data=st.dictionaries(words, plain, max_size=3)
)
sample = st.builds(Sample, at_s=seconds, values=st.dictionaries(words, finite, max_size=4).map(in_order))
ended = st.sampled_from(["finished", "failed", "interrupted", "stopped"])


def few(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3).map(tuple)


@st.composite
def runs(draw: st.DrawFn) -> tuple[RunRecord, list[Segment]]:
    """An ended run with anything in it, whose segments partition its wall clock."""
    edges = [0.0, *sorted(draw(st.lists(seconds, max_size=6)))]
    segments = [
        Segment(
            name=draw(st.sampled_from(["step", "load", "évaluer"])),
            start_s=a,
            end_s=b,
            opens=draw(st.booleans()),
        )
        for a, b in itertools.pairwise(edges)
    ]
    header = make_header(
        draw(st.from_regex(r"[0-9a-f]{8}", fullmatch=True)), draw(names), state=draw(ended), wall_s=edges[-1],
        environment=draw(st.dictionaries(words, plain, max_size=3)), reason=draw(st.none() | words),
    )  # fmt: skip
    spans = [
        SpanTotal(
            name=name,
            seconds=math.fsum(s.end_s - s.start_s for s in segments if s.name == name),
            count=sum(s.opens for s in segments if s.name == name),
        )
        for name in dict.fromkeys(s.name for s in segments)
    ]
    record = RunRecord(
        header=header, spans=tuple(spans), events=draw(few(event)), steps=draw(few(step)),
        evaluations=draw(few(evaluation)), samples=draw(few(sample)),
        measurements=draw(st.dictionaries(words, measurement, max_size=4)),
    )  # fmt: skip
    return record, segments
