"""What a trace of memory says: the peak, who held it, what each module and operator held, and what torch's
caching allocator would have reserved for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from trueup.schema.memory_trace import Held, MemoryTrace

from .allocator import AllocatorFigures, ModelledAllocator

BEFORE = "before the first operator"
_LAYER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True)
class Holder:
    """What one module, operator or kind held: at the trace's peak, at its own highest, and at the end."""

    name: str
    at_peak_bytes: int
    own_peak_bytes: int
    at_end_bytes: int
    storages: int


@dataclass(frozen=True)
class Peak:
    """The first event with which the most was held, its part of the work, and the storages there were."""

    event: int
    part: str
    size_bytes: int
    held: tuple[Held, ...]


def kind_of(held: Held) -> str:
    return held.kind


def module_of(held: Held) -> str:
    """The module's full name; what no module made has none."""
    return held.module or BEFORE


def operator_of(held: Held) -> str:
    return held.operator or BEFORE


def layers_together(held: Held) -> str:
    """The module's name with the layer's number left out: what all layers hold in the same place."""
    return _LAYER.sub(".*", module_of(held))


def live_bytes(trace: MemoryTrace) -> list[int]:
    """Bytes held after each event."""
    return list(accumulate(_changes(trace.held, trace.events)))


def peak_of(trace: MemoryTrace) -> Peak:
    live = live_bytes(trace)
    event = max(range(len(live)), key=live.__getitem__, default=0)
    held = tuple(one for one in trace.held if _there(one, event))
    return Peak(event, part_at(trace, event), sum(one.size_bytes for one in held), held)


def part_at(trace: MemoryTrace, event: int) -> str:
    """The part of the work that was going on with an event."""
    return next((name for start, name in reversed(trace.marks) if start <= event), "")


def holders(trace: MemoryTrace, owner: Callable[[Held], str]) -> list[Holder]:
    """Everybody that `owner` names, those that held most at the trace's peak first. The parts of the peak add
    up to it."""
    event = peak_of(trace).event
    groups: dict[str, list[Held]] = defaultdict(list)
    for one in trace.held:
        groups[owner(one)].append(one)
    found = [_holder(name, held, event) for name, held in groups.items()]
    return sorted(found, key=lambda one: (-one.at_peak_bytes, -one.own_peak_bytes, one.name))


def over_time(trace: MemoryTrace, owner: Callable[[Held], str], most: int) -> dict[str, list[int]]:
    """Bytes after each event of the `most` holders that held most at the peak, and of all others as
    `the rest`."""
    leading = [one.name for one in holders(trace, owner)[:most]]
    groups: dict[str, list[Held]] = {name: [] for name in (*leading, "the rest")}
    for one in trace.held:
        name = owner(one)
        groups[name if name in leading else "the rest"].append(one)
    return {name: list(accumulate(_changes(held, trace.events))) for name, held in groups.items() if held}


def allocator_at_peak(trace: MemoryTrace) -> AllocatorFigures:
    """Where the tensors take most bytes, of torch's caching allocator as modelled in allocator.py."""
    allocator, handles = ModelledAllocator(), dict[int, int]()
    at_peak = AllocatorFigures()
    for index, comes in _in_order(trace.held):
        if comes:
            handles[index] = allocator.allocate(trace.held[index].size_bytes)
        else:
            allocator.free(handles.pop(index))
        if allocator.now.requested > at_peak.requested:
            at_peak = allocator.now
    return at_peak


def _in_order(held: Sequence[Held]) -> Iterator[tuple[int, bool]]:
    """(index, whether it comes or goes) in the order of events."""
    events = [(one.born, index, True) for index, one in enumerate(held)]
    events += [(one.died, index, False) for index, one in enumerate(held) if one.died is not None]
    yield from ((index, comes) for _, index, comes in sorted(events))


def _there(one: Held, event: int) -> bool:
    return one.born <= event and (one.died is None or event < one.died)


def _changes(held: Sequence[Held], events: int) -> list[int]:
    changes = [0] * events
    for one in held:
        changes[one.born] += one.size_bytes
        if one.died is not None:
            changes[one.died] -= one.size_bytes
    return changes


def _holder(name: str, held: Sequence[Held], event: int) -> Holder:
    most = now = 0
    for index, comes in _in_order(held):
        now += held[index].size_bytes if comes else -held[index].size_bytes
        most = max(most, now)
    at_peak = sum(one.size_bytes for one in held if _there(one, event))
    return Holder(name, at_peak, most, now, len(held))
