"""What only the running process can tell: memory at its highest, the ceiling it was held against."""

from __future__ import annotations

from trueup.device import peak_resident_bytes
from trueup.schema import Measurement
from trueup.telemetry import Sampler, Timeline

from .session import Session


def measured_here(session: Session | None, timeline: Timeline, sampler: Sampler) -> dict[str, Measurement]:
    """Measurements taken by this process itself, by name. Without a session only its own cost is known."""
    found = {
        "telemetry_cpu_s": Measurement(
            value=sampler.cpu_s + timeline.overhead_s,
            unit="s",
            kind="measured",
            method="CPU time of the sampler's thread plus time spent changing spans",
        ),
        "peak_host_bytes": _peak_host_bytes(),
    }
    if session is None:
        return found
    found["matmul_ceiling_flops_per_s"] = session.ceiling.measurement()
    memory = session.device.memory()
    if memory is None:
        return found
    peaks = {
        "peak_device_bytes": memory.peak_allocated_bytes,
        "peak_device_allocated_bytes": memory.peak_allocated_bytes,
        "peak_device_requested_bytes": memory.peak_requested_bytes,
        "peak_device_reserved_bytes": memory.peak_reserved_bytes,
    }
    method = "the device allocator's own peak"
    found |= {
        name: Measurement(value=value, unit="bytes", kind="measured", method=method, scope="device")
        for name, value in peaks.items()
        if value is not None
    }
    return found


def _peak_host_bytes() -> Measurement:
    return Measurement(
        value=peak_resident_bytes(),
        unit="bytes",
        kind="measured",
        method="largest resident set of this process, by the kernel",
    )
