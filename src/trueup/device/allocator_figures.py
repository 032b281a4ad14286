"""What a device's caching allocator tells of itself: requested, allocated and reserved bytes, and what is
lost between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.schema import Measurement, unavailable

if TYPE_CHECKING:
    from .protocol import Device

ALLOCATOR = "torch's caching allocator"


def allocator_figures(device: Device) -> dict[str, Measurement]:
    """At their highest since the peaks were reset. `internal`: allocated less requested, `external`: reserved
    less allocated, each of highest values, which need not be of one moment."""
    memory = device.memory()
    if memory is None:
        raise ValueError(f"{device.kind}: {device.memory_reason}")
    peaks = {
        "requested_bytes": memory.peak_requested_bytes,
        "allocated_bytes": memory.peak_allocated_bytes,
        "reserved_bytes": memory.peak_reserved_bytes,
    }
    found = {name: _figure(value, "at its highest") for name, value in peaks.items()}
    found["internal_bytes"] = _less(peaks, "allocated_bytes", "requested_bytes")
    found["external_bytes"] = _less(peaks, "reserved_bytes", "allocated_bytes")
    found["unreleasable_bytes"] = _figure(
        _inactive_split(device), "free parts of segments of which another part is in use, at their highest"
    )
    return found


def _inactive_split(device: Device) -> int | None:
    if device.kind != "cuda":
        return None
    import torch

    stats: dict[str, int] = torch.cuda.memory_stats(device.index)
    return int(stats.get("inactive_split_bytes.all.peak", 0))


def _less(peaks: dict[str, int | None], whole: str, part: str) -> Measurement:
    more, less = peaks[whole], peaks[part]
    value = None if more is None or less is None else more - less
    return _figure(value, f"{whole.removesuffix('_bytes')} - {part.removesuffix('_bytes')}")


def _figure(value: int | None, how: str) -> Measurement:
    if value is None:
        return unavailable("bytes", "this device's allocator does not tell", scope="device")
    return Measurement(
        value=float(value), unit="bytes", kind="measured", method=f"{ALLOCATOR}: {how}", scope="device"
    )
