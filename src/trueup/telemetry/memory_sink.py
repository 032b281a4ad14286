"""A sink that keeps everything in lists: a run is concluded from it, whatever became of the disk."""

from __future__ import annotations

import threading

from trueup.schema import Evaluation, Event, Measurement, RequestResult, RunHeader, Sample, Segment, Step


class MemorySink:
    """Records in the order they came. `headers[-1]` is the newest header."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.headers: list[RunHeader] = []
        self.segments: list[Segment] = []
        self.events: list[Event] = []
        self.steps: list[Step] = []
        self.evaluations: list[Evaluation] = []
        self.requests: list[RequestResult] = []
        self.samples: list[Sample] = []
        self.measured: dict[str, Measurement] = {}
        self.heartbeats = 0
        self.closed = False

    def header(self, header: RunHeader) -> None:
        self.headers.append(header)

    def segment(self, segment: Segment) -> None:
        self.segments.append(segment)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def request(self, request: RequestResult) -> None:
        self.requests.append(request)

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)

    def measurements(self, measurements: dict[str, Measurement]) -> None:
        self.measured.update(measurements)

    def heartbeat(self) -> None:
        with self._lock:
            self.heartbeats += 1

    def flush(self) -> None:
        pass

    def problems(self) -> list[str]:
        return []

    def close(self) -> None:
        self.closed = True
