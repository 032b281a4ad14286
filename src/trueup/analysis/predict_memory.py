"""The peak memory of a job: on a device of its own, or in the memory of the process."""

from __future__ import annotations

from trueup.schema import Calibration, Measurement, unavailable

from .memory_plan import memory_lines
from .predict_job import Job, Lines, predicted

_FP32 = 4
_CEILING_S = 1.0  # that a run spends on its matmul ceiling, with these sides (train/session.py)
_CEILING_SIDES = (256, 512, 1024, 2048, 4096, 8192, 16384)


def host_or_device(job: Job, calibration: Calibration | None, *, host: bool) -> Lines:
    """In host memory the process itself is there too, and the weights as they were loaded: in fp32, beside
    what is kept of them, and the matrices of the ceiling. The peak is the largest of these stages."""
    lines: Lines = dict(memory_lines(job.memory))
    training = lines["training_bytes"].value or 0.0
    if not host:
        lines["base_bytes"] = unavailable("bytes", "what the driver keeps on the device is not published")
        lines["peak_memory_bytes"] = _bytes(training, "what tensors take; the driver's own is beside it")
        return lines
    base = calibration.measurements.get("base_host_bytes") if calibration else None
    if base is None or base.value is None:
        lines["base_bytes"] = unavailable("bytes", "what a process takes by itself was not calibrated")
        lines["peak_memory_bytes"] = unavailable("bytes", lines["base_bytes"].reason or "")
        return lines
    lines["base_bytes"] = _bytes(base.value, base.method)
    stages = {
        "training": training,
        "loading the weights in fp32, then as kept": loading_bytes(job),
        "measuring the matmul ceiling": ceiling_bytes(job, calibration),
    }
    which, larger = max(stages.items(), key=lambda stage: stage[1])
    how = f"base + {which}, the largest of " + ", ".join(f"{size / 1e6:,.4g} MB" for size in stages.values())
    lines["peak_memory_bytes"] = _bytes(base.value + larger, how)
    return lines


def loading_bytes(job: Job) -> float:
    """The weights in fp32 as they are read, and beside them what is rounded or gathered from them."""
    whole = 4.0 * (job.dims.parameters - job.dims.lora_parameters)
    frozen = max(0, job.dims.parameters - job.dims.trainable_parameters)
    return whole + job.memory.frozen_bytes * frozen


def ceiling_bytes(job: Job, calibration: Calibration | None) -> float:
    """Weights, and the matrices by which a run measures its matmul ceiling: three of the largest side whose
    warm-up and two products fit a second (device/ceiling.py), one of them drawn in fp32."""
    name = f"matmul_ceiling_{'fp32' if job.memory.compute_bytes == _FP32 else 'bf16'}_flops_per_s"
    rate = calibration.measurements.get(name) if calibration else None
    if rate is None or rate.value is None:
        return 0.0
    sides = [side for side in _CEILING_SIDES if 3 * 2 * side**3 <= rate.value * _CEILING_S]
    each = 3 * _FP32 if job.memory.compute_bytes == _FP32 else 2 * job.memory.compute_bytes + _FP32
    weights = memory_lines(job.memory)["weights_bytes"].value or 0.0
    return weights + max(sides, default=_CEILING_SIDES[0]) ** 2 * each


def _bytes(value: float, how: str) -> Measurement:
    return predicted(value, "bytes", how)
