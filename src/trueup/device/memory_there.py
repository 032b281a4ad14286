"""How much memory this process may still take here. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from trueup.schema.choices import DeviceKind

from .host import CGROUP_MEMBERSHIP, CGROUP_ROOT, cgroup_folders, memory_limit, read_text

NODES: dict[str, DeviceKind] = {"nvidia0": "cuda", "neuron0": "neuron"}


@dataclass(frozen=True)
class HostMemory:
    """Bytes that can still be taken in host memory, and who says so."""

    available_bytes: int
    how: str


def host_memory(root: Path = CGROUP_ROOT, membership: Path = CGROUP_MEMBERSHIP) -> HostMemory:
    """The system's available memory, or what is left of a container's limit where that is less. Files that
    are only cached count as free, as they do for the system."""
    found = HostMemory(int(psutil.virtual_memory().available), "available, as the system tells")
    for folder in cgroup_folders(root, membership):
        for limit in memory_limit(folder):
            left = max(0, limit - _used(folder))
            if left < found.available_bytes:
                found = HostMemory(left, f"left of the container's limit of {limit:,} B")
    return found


def accelerator_by_node(devices: Path = Path("/dev")) -> DeviceKind | None:
    """The kind of accelerator whose driver has made a node here; None where there is none."""
    return next((kind for name, kind in NODES.items() if (devices / name).exists()), None)


def _used(folder: Path) -> int:
    """Bytes of a control group that cannot be taken back, by version 2 or 1; 0 where it does not tell."""
    used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes") or ""
    stat = (read_text(folder / "memory.stat") or "").split()
    counts = dict(zip(stat[::2], stat[1::2], strict=False))
    cached = counts.get("total_inactive_file") or counts.get("inactive_file") or ""
    return max(0, _number(used) - _number(cached))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
