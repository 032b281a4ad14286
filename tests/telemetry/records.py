"""Small whole records for tests of sinks."""

from __future__ import annotations

from trueup.schema import Evaluation, Event, RunHeader, Sample, Segment, Step


def header(state: str = "running") -> RunHeader:
    return RunHeader(
        id="r1",
        name="test",
        state=state,  # type: ignore[arg-type]
        trueup_version="0",
        recipe={},
        recipe_digest="d",
        started_at="2026-01-01T00:00:00Z",
    )


def step(number: int, loss: float = 1.0) -> Step:
    return Step(
        step=number,
        start_s=float(number),
        step_s=0.5,
        data_wait_s=0.0,
        loss=loss,
        grad_norm=1.0,
        lr=1e-4,
        useful_tokens=10,
        supervised_tokens=5,
        processed_tokens=12,
        head_rows=5,
        attention_sum_sq=100,
        micro_batches=1,
        shape=(1, 12),
    )


def sample(at_s: float) -> Sample:
    return Sample(at_s=at_s, values={"host_rss_bytes": 1e9})


def segment(start_s: float) -> Segment:
    return Segment(name="step", start_s=start_s, end_s=start_s + 1)


def event(at_s: float) -> Event:
    return Event(at_s=at_s, kind="note", message="something", data={"n": 1})


def evaluation(number: int) -> Evaluation:
    return Evaluation(
        step=number,
        at_s=1.0,
        split="validation",
        loss=2.0,
        perplexity=7.4,
        tokens=100,
        seconds=1.0,
        best=True,
    )
