"""The record of a load while it grows: header, requests, events; and its conclusion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trueup.analysis.load_bill import load_costs
from trueup.analysis.load_figures import GIVEN_EVENT, summarize_load
from trueup.analysis.outcomes import of_wall_clock
from trueup.schema import (
    Measurement,
    RequestResult,
    RunHeader,
    RunRecord,
    RunState,
    Sample,
    SpanName,
    TrueupError,
)
from trueup.schema.counting import counted
from trueup.schema.protocols import Sink
from trueup.telemetry import MemorySink, TeeSink, Timeline

from .address import ServedModel
from .settings import LoadSettings


@dataclass(frozen=True)
class Ending:
    """How a load ended that did not come to its end."""

    state: RunState
    reason: str
    error: BaseException | None = None


@dataclass(frozen=True)
class LoadOutcome:
    """How a load ended. `error` is what ended it, where something did."""

    record: RunRecord
    error: BaseException | None


class Recording:
    """Emits to the sink it is given, and keeps all of it in memory: a load is concluded from there, whatever
    became of the disk."""

    def __init__(
        self,
        header: RunHeader,
        sink: Sink,
        origin: float,
        clock: Callable[[], float],
        *,
        given: Mapping[str, Measurement] | None = None,
        telemetry_cpu_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.kept = MemorySink()
        self.sink: Sink = TeeSink(self.kept, sink)
        self.header = header
        self.timeline = Timeline(self.sink, origin, clock)
        self.planned: int | None = None
        self._given = dict(given or {})
        self._telemetry_cpu_s = telemetry_cpu_s

    def tell(self, **changes: Any) -> None:
        """Emit the header, with what is known by now."""
        first = not self.kept.headers
        self.header = self.header.model_copy(update=changes)
        self.sink.header(self.header)
        if first and self._given:
            rows = {name: one.model_dump(mode="json") for name, one in self._given.items()}
            self.timeline.event(GIVEN_EVENT, f"given: {counted(len(rows), 'measurement')}", measurements=rows)

    def found(self, served: ServedModel, context: int | None) -> None:
        """Which model the server has."""
        recipe = self.header.recipe
        server = {**recipe.get("server", {}), "context": context or served.context}
        self.tell(recipe={**recipe, "model": {"path": served.name}, "server": server})

    def settle(self, settings: LoadSettings) -> None:
        """The settings as they were used."""
        self.tell(recipe={**self.header.recipe, "load": settings.model_dump(mode="json")})

    def choose(self, name: str, value: str, reason: str) -> None:
        self.tell(choices={**self.header.choices, name: {"value": value, "reason": reason}})

    def request(self, request: RequestResult) -> None:
        self.sink.request(request)

    def sample(self, sample: Sample) -> None:
        self.sink.sample(sample)

    def progress(self) -> str:
        """after 37 of 200 requests."""
        done = sum(not one.warm_up and one.error != "cancelled" for one in self.kept.requests)
        requests = counted(self.planned or done, "request")
        return f"after {done} of {requests}" if self.planned else f"after {requests}"

    def conclude(self, ending: Ending | None) -> LoadOutcome:
        """Turn the records into measurements, stop the clock, write both."""
        ending = ending or self._all_failed()
        if ending is not None:
            self.timeline.event(ending.state, ending.reason)
        with self.timeline.span(SpanName.RECORD):
            measurements = summarize_load(self._record(), extra=self._extra())
        wall_s = self.timeline.close()
        ended_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.header = self.header.model_copy(
            update={
                "state": ending.state if ending else "finished",
                "reason": ending.reason if ending else self._tally(),
                "ended_at": ended_at,
                "wall_s": wall_s,
            }
        )
        record = self._record().model_copy(update={"measurements": measurements})
        measurements |= of_wall_clock(record)
        if self.header.price is not None:
            measurements |= load_costs(record, self.header.price)
        self.sink.measurements(measurements)
        self.tell()
        self.sink.close()
        record = self._record().model_copy(update={"measurements": measurements})
        return LoadOutcome(record, ending.error if ending else None)

    def _all_failed(self) -> Ending | None:
        """A load that got no answer at all has measured nothing but that."""
        asked = [one for one in self.kept.requests if not one.warm_up]
        if any(one.error is None for one in asked):
            return None
        why = f"the first: {asked[0].reason}" if asked else "none was due"
        reason = f"none of {counted(len(asked), 'request')} was answered; {why}"
        return Ending("failed", reason, TrueupError(reason))

    def _tally(self) -> str:
        asked = [one for one in self.kept.requests if not one.warm_up]
        whole = sum(one.error is None for one in asked)
        return (
            f"all {counted(len(asked), 'request')} came to an end: {whole} answered, {len(asked) - whole} not"
        )

    def _extra(self) -> dict[str, Measurement]:
        cpu_s = self._telemetry_cpu_s()
        if cpu_s is None:
            return {}
        how = "CPU time of the sampler's thread"
        return {"telemetry_cpu_s": Measurement(value=cpu_s, unit="s", kind="measured", method=how)}

    def _record(self) -> RunRecord:
        return RunRecord(
            header=self.header,
            spans=self.timeline.totals(),
            events=tuple(self.kept.events),
            samples=tuple(self.kept.samples),
            requests=tuple(self.kept.requests),
        )
