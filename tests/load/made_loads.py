"""Loads on the scripted server, recorded in memory, on the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted_server import ScriptedServer
from virtual_time import VirtualLoop

from trueup.load.address import Address
from trueup.load.record import LoadOutcome, Recording
from trueup.load.run import LoadJob, execute
from trueup.load.settings import LoadSettings
from trueup.schema import Price, RunHeader, RunRecord
from trueup.schema.protocols import Sink
from trueup.telemetry import MemorySink, RunFolder

PRICE = Price(usd_per_hour=3.6, source="a test")
RUN_ID = "10ad0001"


def header(**changes: Any) -> RunHeader:
    fields: dict[str, Any] = {
        "kind": "load", "id": RUN_ID, "name": "load", "state": "running", "trueup_version": "0",
        "recipe": {"name": "load", "server": {"address": "http://s"}, "platform": {"instance": None}},
        "recipe_digest": "d", "started_at": "2026-11-30T00:00:00Z", "price": PRICE,
        "environment": {"world": {"size": 1}},
    }  # fmt: skip
    return RunHeader(**(fields | changes))


def settings(**changes: Any) -> LoadSettings:
    fields: dict[str, Any] = {
        "arrivals": "poisson", "rate": 2.0, "requests": 10, "prompt_tokens": 20, "output_tokens": 5,
        "warm_up": 0, "seed": 1,
    }  # fmt: skip
    return LoadSettings(**(fields | changes))


def loaded(
    server: ScriptedServer,
    asked: LoadSettings,
    *,
    sink: Sink | None = None,
    folder: Path | None = None,
    job: dict[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    **changes: Any,
) -> LoadOutcome:
    """What came of the load."""
    loop = VirtualLoop()
    used = sink or (RunFolder(folder) if folder is not None else MemorySink())
    more = job or {}
    recording = Recording(header(**changes), used, 0.0, loop.time, given=more.get("given"))
    made = LoadJob(settings=asked, address=Address("http://s"), **more)
    return execute(made, recording, transport=server, loop_factory=lambda: loop, tell=tell)


def real_time_loaded(server: Any, asked: LoadSettings, clock: Callable[[], float]) -> LoadOutcome:
    """On the real clock and loop, where signals can come."""
    recording = Recording(header(), MemorySink(), clock(), clock)
    job = LoadJob(settings=asked, address=Address("http://s"))
    return execute(job, recording, transport=server, loop_factory=asyncio.new_event_loop)


def value(record: RunRecord, name: str) -> float:
    found = record.measurements[name]
    assert found.value is not None, found.reason
    return found.value
