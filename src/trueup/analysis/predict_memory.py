"""The peak memory of a job: on a device of its own, or in the memory of the process."""

from __future__ import annotations

from collections.abc import Mapping

from trueup.schema import Calibration, Measurement, unavailable

from .memory_plan import memory_lines
from .predict_job import Job, Lines, predicted
from .predict_terms import sizes_of

PROGRAMS_KEPT = 1024  # oneDNN's cache of primitives, unless ONEDNN_PRIMITIVE_CACHE_CAPACITY says otherwise


def host_or_device(job: Job, calibration: Calibration | None, *, host: bool) -> Lines:
    """In host memory the process itself is there too, and the weights as they were loaded: in fp32, beside
    what is kept of them. The peak is the largest of these stages."""
    lines: Lines = dict(memory_lines(job.memory))
    training = lines["training_bytes"].value or 0.0
    if not host:
        lines["base_bytes"] = unavailable("bytes", "what the driver keeps on the device is not published")
        lines["peak_memory_bytes"] = _bytes(training, "what tensors take; the driver's own is beside it")
        return lines
    known = calibration.measurements if calibration else {}
    base = known.get("base_host_bytes")
    if base is None or base.value is None:
        lines["base_bytes"] = unavailable("bytes", "what a process takes by itself was not calibrated")
        lines["peak_memory_bytes"] = unavailable("bytes", lines["base_bytes"].reason or "")
        return lines
    lines["base_bytes"] = _bytes(base.value, base.method)
    gradients = lines["gradients_bytes"].value or 0.0
    programs, how_programs = programs_bytes(job, known)
    trained = training + programs
    stages = {
        "training": trained,
        "a save, which copies weights and moments": trained - gradients + snapshot_bytes(job),
        "loading": loading_bytes(job),
    }
    which, larger = max(stages.items(), key=lambda stage: stage[1])
    how = f"base + {which}: the largest of " + " and ".join(
        f"{size / 1e6:,.4g} MB" for size in stages.values()
    )
    how += how_programs
    lines["peak_memory_bytes"] = _bytes(base.value + larger, how)
    return lines


def programs_bytes(job: Job, known: Mapping[str, Measurement]) -> tuple[float, str]:
    """What a CPU's library keeps for products, a program for each size, and the words for it: of every number
    of tokens that a micro-batch has, and those made ready for. The newest stay where they are too many."""
    if job.compiled_ratio is not None:
        return 0.0, ""
    tokens = {one.tokens for step in job.steps for one in step} | job.warmed_tokens
    sizes = {size for count in tokens for size in sizes_of(job.dims, job.tuning, count)}
    counted = min(PROGRAMS_KEPT, len(sizes))
    ready = min(PROGRAMS_KEPT - counted, job.ready_programs)
    total, words = 0.0, []
    for count, name in ((counted, "program_host_bytes"), (ready, "ready_program_host_bytes")):
        each = known[name].value if name in known else None
        if each and count:
            total += count * each
            words.append(f"{count:,} x {each / 1e6:.3g} MB")
    return total, f"; with training the programs of products, {' + '.join(words)}" if words else ""


def loading_bytes(job: Job) -> float:
    """The weight file as it is mapped, the weights read from it in fp32, and what is rounded or gathered from
    them: all three are there for a moment."""
    whole = 2 * 4.0 * (job.dims.parameters - job.dims.lora_parameters)
    frozen = max(0, job.dims.parameters - job.dims.trainable_parameters)
    return whole + job.memory.frozen_bytes * frozen


def snapshot_bytes(job: Job) -> float:
    """A save copies weights and moments of what is trained. Gradients are gone then; what else training took
    the allocator still holds."""
    return 3.0 * job.memory.trained_bytes * job.dims.trainable_parameters


def _bytes(value: float, how: str) -> Measurement:
    return predicted(value, "bytes", how)
