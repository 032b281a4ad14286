"""The peak memory of a job: on a device of its own, or in the memory of the process."""

from __future__ import annotations

import math
from collections.abc import Collection

from trueup.schema import Calibration, Measurement, StepRates, unavailable

from .memory_plan import head_gradient_bytes, memory_lines
from .predict_job import Job, Lines, predicted
from .predict_products import Product, ProductTable
from .predict_terms import head_sizes, head_weight_sizes, sizes_of

PROGRAMS_KEPT = 1024  # oneDNN's cache of primitives, unless ONEDNN_PRIMITIVE_CACHE_CAPACITY says otherwise
# Bytes at once for a number of a query, of a key or value, and for a score, by those of a number in the
# products: counted in the tensors that are there together (model/attention.py). Places of an example.
READY_BYTES = {2: (27, 16, 10), 4: (35, 20, 10)}
LEAST_PLACES = 16
# A block above this goes back to the system when it is freed (glibc's DEFAULT_MMAP_THRESHOLD_MAX); smaller
# ones the process keeps for later.
HANDED_BACK_BYTES = 32 << 20


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
    programs, how_programs = programs_bytes(job, calibration.rates.get(job.policy) if calibration else None)
    kept = (lines["weights_bytes"].value or 0.0) + (lines["optimizer_bytes"].value or 0.0) + programs
    moving = training - kept + programs
    stages = {
        "training": kept + moving,
        "getting attention ready": kept + ready_bytes(job),
        "a save, which copies weights and moments": kept
        + moving
        - _gone_bytes(job, lines)
        + snapshot_bytes(job),
        "loading": loading_bytes(job),
    }
    which, larger = max(stages.items(), key=lambda stage: stage[1])
    how = f"base + {which}: the largest of " + " and ".join(
        f"{size / 1e6:,.4g} MB" for size in stages.values()
    )
    lines["peak_memory_bytes"] = _bytes(base.value + larger, how + how_programs)
    return lines


def programs_bytes(job: Job, rates: StepRates | None) -> tuple[float, str]:
    """What a CPU's library keeps for products, a program for each size, and the words for it: of every number
    of tokens that a micro-batch has, and those made ready for. Where they are too many the newest stay; those
    of attention were made first, and what they took does not go back to the system."""
    if job.compiled_ratio is not None or rates is None:
        return 0.0, ""
    table = ProductTable(rates.products)
    ready = head_sizes(job.dims, job.ready_tokens) if job.ready_tokens else set[Product]()
    for tokens in job.warmed_tokens:
        ready |= sizes_of(job.dims, job.tuning, tokens)
    met = set[Product]()
    for one in {one for step in job.steps for one in step}:
        met |= sizes_of(job.dims, job.tuning, one.tokens) | head_weight_sizes(job.dims, job.tuning, one)
    met -= ready
    of_met, of_ready = min(PROGRAMS_KEPT, len(met)), min(max(0, PROGRAMS_KEPT - len(met)), len(ready))
    total, shown = 0.0, list[str]()
    for name, count, size in (
        ("of widths met on the way", of_met, _mean_bytes(table, met)),
        ("of linear layers and head", of_ready, _mean_bytes(table, ready)),
        ("of attention", job.ready_attention, rates.attention_program_bytes),
    ):
        total += count * size
        if count * size:
            shown.append(f"{count:,} {name} x {size / 1e6:.3g} MB")
    words = f"; with training the programs of products, {' + '.join(shown)}" if shown else ""
    return total, words


def _mean_bytes(table: ProductTable, sizes: Collection[Product]) -> float:
    return math.fsum(map(table.program_bytes, sizes)) / max(1, len(sizes))


def ready_bytes(job: Job) -> float:
    """What the largest group of examples takes at once while attention is made ready for all data, forward
    and backward. The process keeps it for later, and training finds it there."""
    dims = job.dims
    queries, keys = dims.heads * dims.head_dim, 2 * dims.kv_heads * dims.head_dim
    of_query, of_key, of_score = READY_BYTES[job.memory.compute_bytes]
    scores = dims.heads * LEAST_PLACES
    return float(job.ready_places * (of_query * queries + of_key * keys + of_score * scores))


def loading_bytes(job: Job) -> float:
    """The weights in fp32, as the file is mapped, and what is rounded or copied from them before it is let go
    of: the frozen ones, and the embedding, which stays in fp32."""
    dims = job.dims
    whole = 4.0 * (dims.parameters - dims.lora_parameters)
    frozen = max(0, dims.parameters - dims.trainable_parameters)
    embedding = 4.0 * dims.vocab * dims.hidden if frozen else 0.0
    return whole + job.memory.frozen_bytes * frozen + embedding


def snapshot_bytes(job: Job) -> float:
    """A save copies weights and moments of what is trained."""
    return 3.0 * job.memory.trained_bytes * job.dims.trainable_parameters


def _gone_bytes(job: Job, lines: Lines) -> float:
    """What training took and a save finds free for its copies: gradients and rounded weights, which are of
    the copies' own sizes, and what was handed back to the system. The rest is the allocator's, in pieces of
    other sizes."""
    gone = (lines["gradients_bytes"].value or 0.0) + (lines["working_copies_bytes"].value or 0.0)
    head = head_gradient_bytes(job.memory)
    return gone + (head if head > HANDED_BACK_BYTES else 0.0)


def _bytes(value: float, how: str) -> Measurement:
    return predicted(value, "bytes", how)
