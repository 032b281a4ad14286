"""A profile of memory, summed up: the peak and its owners, what the allocator makes of it, and what would
lower it, each by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueup.schema import Measurement
from trueup.schema.memory_trace import Held, MemoryTrace

from .memory_trace import (
    Holder,
    Peak,
    allocator_at_peak,
    holders,
    kind_of,
    layers_together,
    live_bytes,
    module_of,
    operator_of,
    peak_of,
)

WORTH = 0.005  # of the peak: what saves less is not said
MODELLED = "by a model of torch's caching allocator"


@dataclass(frozen=True)
class Suggestion:
    """What would lower the peak to `peak_bytes`. `how`: run, or by which arithmetic."""

    what: str
    peak_bytes: int
    saves_bytes: int
    how: str


@dataclass(frozen=True)
class Alternative:
    """Another way to run the same work, and the peak that it had when it was run."""

    what: str
    peak_bytes: int


@dataclass(frozen=True)
class KvFacts:
    """The paged pool of a profile: bytes of a token, tokens of a block, and the sequences in it."""

    bytes_per_token: int
    number_bytes: int
    block_size: int
    sequences: int


@dataclass(frozen=True)
class MemorySummary:
    """`allocator` on a device that tells it is measured, elsewhere estimated from the trace."""

    peak: Peak
    kinds: Sequence[Holder]
    modules: Sequence[Holder]
    layers: Sequence[Holder]
    operators: Sequence[Holder]
    measurements: Mapping[str, Measurement]
    allocator: Mapping[str, Measurement]
    suggestions: Sequence[Suggestion]


def summary_of(
    trace: MemoryTrace,
    *,
    rss_before_bytes: int,
    alternatives: Sequence[Alternative] = (),
    kv: KvFacts | None = None,
    allocator: Mapping[str, Measurement] | None = None,
) -> MemorySummary:
    """`rss_before_bytes`: resident memory before the model was loaded; `allocator`: as the device tells."""
    peak = peak_of(trace)
    return MemorySummary(
        peak=peak,
        kinds=holders(trace, kind_of),
        modules=holders(trace, module_of),
        layers=holders(trace, layers_together),
        operators=holders(trace, operator_of),
        measurements=_measurements(trace, peak, rss_before_bytes),
        allocator=modelled(trace) if allocator is None else allocator,
        suggestions=suggestions(peak, alternatives, kv),
    )


def modelled(trace: MemoryTrace) -> dict[str, Measurement]:
    """Requested, allocated and reserved bytes where most is requested, and what is lost between them."""
    at_peak = allocator_at_peak(trace)
    words = {
        "requested_bytes": "tensors' own bytes",
        "allocated_bytes": "with blocks rounded up",
        "reserved_bytes": "segments taken from the device",
        "internal_bytes": "allocated - requested",
        "external_bytes": "reserved - allocated",
        "unreleasable_bytes": "free parts of segments of which another part is in use",
    }
    return {
        name: Measurement(
            value=float(getattr(at_peak, name.removesuffix("_bytes"))),
            unit="bytes",
            kind="estimated",
            method=f"{meaning}; {MODELLED}",
        )
        for name, meaning in words.items()
    }


def suggestions(
    peak: Peak, alternatives: Sequence[Alternative], kv: KvFacts | None = None
) -> tuple[Suggestion, ...]:
    """Those that lower the peak by more than a little, the most first."""
    found = [
        Suggestion(one.what, one.peak_bytes, peak.size_bytes - one.peak_bytes, "run with the same shapes")
        for one in alternatives
    ]
    if kv is not None:
        found += _of_pool(peak, kv)
    worth = [one for one in found if one.saves_bytes > WORTH * peak.size_bytes]
    return tuple(sorted(worth, key=lambda one: -one.saves_bytes))


def _of_pool(peak: Peak, kv: KvFacts) -> list[Suggestion]:
    found = []
    pool = _bytes_of(peak.held, "kv_pool")
    if kv.number_bytes > 2:
        saves = pool - pool * 2 // kv.number_bytes
        how = f"the pool's {pool:,} B at the peak, {2} B a number in place of {kv.number_bytes}"
        found.append(Suggestion("bf16 keys and values", peak.size_bytes - saves, saves, how))
    if kv.block_size > 1:
        smaller = max(1, kv.block_size // 4)
        waste, less = (mean_waste(size, kv.bytes_per_token) for size in (kv.block_size, smaller))
        saves = int(kv.sequences * (waste - less))
        how = (
            f"a sequence of any length leaves (block - 1) / 2 tokens of its last block empty on average: "
            f"{waste:,.0f} B of {kv.block_size}, {less:,.0f} B of {smaller}"
        )
        found.append(Suggestion(f"blocks of {smaller} tokens", peak.size_bytes - saves, saves, how))
    return found


def mean_waste(block_size: int, bytes_per_token: int) -> float:
    """Bytes of its last block that a sequence leaves empty, on average over all lengths."""
    return (block_size - 1) / 2 * bytes_per_token


def _measurements(trace: MemoryTrace, peak: Peak, rss_before: int) -> dict[str, Measurement]:
    live = live_bytes(trace)
    found = {
        "peak_tensor_bytes": (peak.size_bytes, f"storages at event {peak.event:,} of {trace.events:,}"),
        "end_tensor_bytes": (live[-1] if live else 0, "storages after the last operator"),
        "before_rss_bytes": (rss_before, "resident memory of the process before the model was loaded"),
    }
    if trace.rss:
        found["peak_rss_bytes"] = (
            max(size for _, size in trace.rss),
            "resident memory of the process, read as storages came and went",
        )
    return {
        name: Measurement(value=float(value), unit="bytes", kind="measured", method=how)
        for name, (value, how) in found.items()
    }


def _bytes_of(held: Sequence[Held], kind: str) -> int:
    return sum(one.size_bytes for one in held if one.kind == kind)
