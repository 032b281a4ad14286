"""Sensors that fall silent in the middle of a run: said once each, and again when they are read anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trueup.schema import Event
from trueup.schema.run import SENSOR_BACK, SENSOR_LOST, SENSOR_SILENT

SILENT_AFTER_S = 10.0  # without a value, though it is asked: a reading or two may fail


@dataclass
class Silence:
    """Of one source of values, which may have several. Times are the run's, in seconds."""

    source: str
    _last_s: dict[str, float] = field(default_factory=dict)  # value -> when it was last read
    _told: dict[str, float] = field(default_factory=dict)  # value or source that is silent -> since when

    def read(self, at_s: float, values: Mapping[str, float]) -> Iterator[Event]:
        """What to say after a reading that gave these values."""
        for name in (self.source, *values) if values else ():
            since_s = self._told.pop(name, None)
            if since_s is not None:
                message = f"the sensor '{name}' is read again, after {at_s - since_s:.1f} s without a reading"
                yield _event(SENSOR_BACK, at_s, message, name, since_s)
        self._last_s |= dict.fromkeys(values, at_s)
        for name, last_s in self._last_s.items():
            if name not in values and name not in self._told and at_s - last_s >= SILENT_AFTER_S:
                self._told[name] = last_s
                message = f"the sensor '{name}' has given no reading since {last_s:.1f} s of the run"
                yield _event(SENSOR_SILENT, at_s, message, name, last_s)

    def failed(self, at_s: float, why: str, again_s: float) -> Iterator[Event]:
        """What to say after a reading that raised, and is tried again after so long."""
        if self.source not in self._told:
            self._told[self.source] = at_s
            message = f"the sensor '{self.source}' failed, and is tried again every {again_s:g} s: {why}"
            yield _event(SENSOR_LOST, at_s, message, self.source, at_s)


def _event(kind: str, at_s: float, message: str, name: str, since_s: float) -> Event:
    return Event(at_s=at_s, kind=kind, message=message, data={"sensor": name, "since_s": since_s})
