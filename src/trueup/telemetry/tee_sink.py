"""One run, several sinks: a run keeps its records in memory while its folder is written."""

from __future__ import annotations

from trueup.schema import Evaluation, Event, Measurement, RequestResult, RunHeader, Sample, Segment, Step
from trueup.schema.protocols import Sink


class TeeSink:
    """Passes every record on to each of `sinks`, in order."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def header(self, header: RunHeader) -> None:
        for sink in self._sinks:
            sink.header(header)

    def segment(self, segment: Segment) -> None:
        for sink in self._sinks:
            sink.segment(segment)

    def event(self, event: Event) -> None:
        for sink in self._sinks:
            sink.event(event)

    def step(self, step: Step) -> None:
        for sink in self._sinks:
            sink.step(step)

    def evaluation(self, evaluation: Evaluation) -> None:
        for sink in self._sinks:
            sink.evaluation(evaluation)

    def request(self, request: RequestResult) -> None:
        for sink in self._sinks:
            sink.request(request)

    def sample(self, sample: Sample) -> None:
        for sink in self._sinks:
            sink.sample(sample)

    def measurements(self, measurements: dict[str, Measurement]) -> None:
        for sink in self._sinks:
            sink.measurements(measurements)

    def heartbeat(self) -> None:
        for sink in self._sinks:
            sink.heartbeat()

    def flush(self) -> None:
        for sink in self._sinks:
            sink.flush()

    def problems(self) -> list[str]:
        return [problem for sink in self._sinks for problem in sink.problems()]

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
