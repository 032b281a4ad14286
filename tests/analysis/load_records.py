"""Made-up loads: requests whose figures can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trueup.schema import Event, Price, RequestResult, RunHeader, RunRecord, Sample, SpanTotal

PRICE = Price(usd_per_hour=3.6, source="a test")


def request(index: int, due_s: float, **changes: Any) -> RequestResult:
    """Sent when due; first text after 1 s, four gaps of 0.25 s, the end with the last: 5 tokens for 10."""
    fields: dict[str, Any] = {
        "index": index, "due_s": due_s, "sent_s": due_s, "first_s": due_s + 1.0, "last_s": due_s + 2.0,
        "done_s": due_s + 2.0, "asked_prompt_tokens": 10, "asked_output_tokens": 5, "prompt_tokens": 10,
        "output_tokens": 5, "chunks": 5, "gaps_s": (0.25,) * 4, "finish": "length", "status": 200,
    }  # fmt: skip
    return RequestResult(**(fields | changes))


def failed(index: int, due_s: float, error: str = "timeout", **changes: Any) -> RequestResult:
    return request(
        index, due_s, first_s=None, last_s=None, gaps_s=(), chunks=0, output_tokens=None, prompt_tokens=None,
        finish=None, error=error, reason="too slow", **changes,
    )  # fmt: skip


def make_load(
    requests: Sequence[RequestResult],
    *,
    events: Sequence[Event] = (),
    samples: Sequence[Sample] = (),
    spans: Sequence[SpanTotal] = (),
    load: dict[str, Any] | None = None,
    **header: Any,
) -> RunRecord:
    fields: dict[str, Any] = {
        "kind": "load", "id": "10ad0001", "name": "load", "state": "finished", "trueup_version": "0",
        "recipe": {
            "name": "load", "model": {"path": "m"}, "server": {"address": "http://s"},
            "load": {"arrivals": "poisson", "rate": 1.0, "seed": 0, "limits": {}, **(load or {})},
        },
        "recipe_digest": "d", "started_at": "2026-11-30T00:00:00Z", "price": PRICE, "environment": {},
    }  # fmt: skip
    return RunRecord(
        header=RunHeader(**(fields | header)),
        requests=tuple(requests),
        events=tuple(events),
        samples=tuple(samples),
        spans=tuple(spans),
    )
