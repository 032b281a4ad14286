"""Loads for the pages: requests on a made-up server, summed up and priced."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from trueup.analysis.load_bill import load_costs
from trueup.analysis.load_figures import summarize_load
from trueup.schema import Measurement, Price, RequestResult, RunHeader, RunRecord, SpanTotal

PRICE = Price(usd_per_hour=3.6, source="a test")


def make_load(
    run_id: str = "10ad0001",
    *,
    name: str = "before",
    speed: float = 1.0,
    given: Mapping[str, Measurement] | None = None,
    **header: Any,
) -> RunRecord:
    """Sixty requests, one each half second, each of a first token and three more; one in twenty fails."""
    draw, asked = random.Random(run_id), []
    for n in range(60):
        first_s, gap_s = draw.uniform(0.5, 1.5) / speed, draw.uniform(0.1, 0.3) / speed
        due_s = 0.5 * n
        times = {"first_s": due_s + first_s, "last_s": due_s + first_s + 3 * gap_s}
        if n % 20 == 7:
            asked.append(RequestResult(index=n, due_s=due_s, sent_s=due_s, done_s=due_s + 1, error="timeout"))
            continue
        asked.append(
            RequestResult(
                index=n,
                due_s=due_s,
                sent_s=due_s,
                done_s=times["last_s"],
                **times,
                asked_prompt_tokens=10,
                asked_output_tokens=4,
                prompt_tokens=10,
                output_tokens=4,
                chunks=4,
                gaps_s=(gap_s,) * 3,
            )
        )
    fields: dict[str, Any] = {
        "kind": "load", "id": run_id, "name": name, "state": "finished", "trueup_version": "0",
        "recipe": {"name": name, "load": {"arrivals": "poisson", "rate": 2.0, "limits": {"ttft_s": 1.4}}},
        "recipe_digest": "d", "started_at": "2026-11-30T00:00:00Z", "price": PRICE, "environment": {},
        "wall_s": 35.0,
    }  # fmt: skip
    record = RunRecord(
        header=RunHeader(**(fields | header)),
        requests=tuple(asked),
        spans=(SpanTotal(name="requests", seconds=35.0, count=1),),
    )
    found = summarize_load(record, extra=given or {})
    found |= load_costs(record.model_copy(update={"measurements": found}), PRICE)
    return record.model_copy(update={"measurements": found})
