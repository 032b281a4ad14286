"""A thread beside the run that reads every sensor some times a second and says that the run lives."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from types import TracebackType

from trueup.device import Device
from trueup.schema import Event, Sample
from trueup.schema.protocols import Sink
from trueup.schema.run import HEARTBEAT_EVERY_S

from .host_load import HostLoad
from .silence import Silence

# A reading that costs c seconds of CPU is taken at most every c / 0.003 s, so that no single one, not even
# on a machine where the kernel takes milliseconds to answer, costs more than 0.3% of a core.
CORE_SHARE_OF_A_READING = 0.003
AGAIN_AFTER_S = 30.0  # a reading that failed
STOP_WITHIN_S = 5.0


class _Reading:
    """One source of values, taken no more often than its own cost allows. `at_s` is the run's clock, `now_s`
    the one it is due by."""

    def __init__(self, name: str, read: Callable[[], dict[str, float]]) -> None:
        self.name = name
        self._read = read
        self._due_s = 0.0
        self._cost_s = math.inf
        self._silence = Silence(name)

    def take(self, now_s: float, at_s: float) -> tuple[dict[str, float], list[Event]]:
        """(what it reads that is a number, what is to be said of it); nothing before it is due."""
        if now_s < self._due_s:
            return {}, []
        began = time.thread_time()
        try:
            found = self._read()
        except Exception as error:  # whatever a driver throws must not end the run's only heartbeat
            self._due_s = now_s + AGAIN_AFTER_S
            why = str(error) or type(error).__name__
            return {}, list(self._silence.failed(at_s, why, AGAIN_AFTER_S))
        last_s, self._cost_s = self._cost_s, time.thread_time() - began
        # the cheaper of two in a row: one reading disturbed by a neighbour does not slow the next
        self._due_s = now_s + min(last_s, self._cost_s) / CORE_SHARE_OF_A_READING
        values = {name: value for name, value in found.items() if math.isfinite(value)}
        return values, list(self._silence.read(at_s, values))


class Sampler:
    """`with Sampler(device, sink, timeline.now, hz=10): ...` sends samples and heartbeats until its end.

    With `hz` 0 it sends heartbeats only. A sensor that raises, or gives nothing any more, is an event, once,
    and another when it is back. `cpu_s` is the CPU time of its thread, `samples` how many it sent, `late` how
    many it could not take in time. `also`: processes of the run beside this one's own.
    """

    def __init__(
        self,
        device: Device,
        sink: Sink,
        clock: Callable[[], float],
        hz: float,
        also: Collection[int] = (),
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._hz = hz
        self._readings: list[_Reading] = []
        if hz > 0:
            self._readings = [_Reading("host load", HostLoad(also).read)]
            self._readings += [_Reading(s.name, _as_dict(s.name, s.read)) for s in device.sensors()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trueup-sampler", daemon=True)
        self.cpu_s = 0.0
        self.samples = 0
        self.late = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take one last sample and end. A sensor that hangs is left behind after 5 s."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_WITHIN_S)

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        period_s = 1 / self._hz if self._hz else math.inf
        beat_s = time.monotonic()
        sample_s = beat_s if self._hz else math.inf
        while not self._stop.wait(max(0.0, min(sample_s, beat_s) - time.monotonic())):
            now_s = time.monotonic()
            if now_s >= sample_s:
                self._sample(now_s)
                sample_s, missed = _next_due(sample_s, period_s, time.monotonic())
                self.late += missed
            if now_s >= beat_s:
                self._sink.heartbeat()
                beat_s = now_s + HEARTBEAT_EVERY_S
            self.cpu_s = time.thread_time()
        if self._hz:
            self._sample(math.inf)  # counters are read to the end, whatever their pace
        self._sink.heartbeat()
        self.cpu_s = time.thread_time()

    def _sample(self, now_s: float) -> None:
        values: dict[str, float] = {}
        at_s = self._clock()
        for reading in self._readings:
            found, events = reading.take(now_s, at_s)
            values |= found
            for event in events:
                self._sink.event(event)
        if values:
            self._sink.sample(Sample(at_s=at_s, values=values))
            self.samples += 1


def _next_due(due_s: float, period_s: float, now_s: float) -> tuple[float, int]:
    """(the next instant of the grid that lies ahead, how many were missed)."""
    missed = max(0, math.floor((now_s - due_s) / period_s))
    return due_s + (missed + 1) * period_s, missed


def _as_dict(name: str, read: Callable[[], float | None]) -> Callable[[], dict[str, float]]:
    def values() -> dict[str, float]:
        value = read()
        return {} if value is None else {name: value}

    return values
