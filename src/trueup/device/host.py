"""What the host's processor is and how much of it this process may use. Linux first, psutil elsewhere."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

# The flags that decide how fast matmuls run. Arm names its features without the AVX prefix.
FLAGS_THAT_MATTER = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_tile",
    "asimd",
    "sve",
    "bf16",
)
CPUINFO = Path("/proc/cpuinfo")
CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_MEMBERSHIP = Path("/proc/self/cgroup")
STATUS = Path("/proc/self/status")
CPU_TREE = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class CpuInfo:
    """Model, instruction-set flags and vendor. `flags` is None where the system does not tell."""

    model: str
    flags: frozenset[str] | None
    vendor: str = ""  # as x86 names it: GenuineIntel, AuthenticAMD; "" where it is not told

    @property
    def virtual(self) -> bool:
        return self.flags is not None and "hypervisor" in self.flags


def read_text(path: Path) -> str | None:
    """The file's text, or None where it is absent or unreadable: normal for /proc and /sys."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def cpu_info(path: Path = CPUINFO) -> CpuInfo:
    """Of the first processor."""
    model, flags, vendor = "", None, ""
    for line in (read_text(path) or "").splitlines():
        key, _, value = line.partition(":")
        key = key.strip().lower()
        if key == "model name" and not model:
            model = value.strip()
        if key in ("flags", "features") and flags is None:
            flags = frozenset(value.split())
        if key == "vendor_id" and not vendor:
            vendor = value.strip()
    return CpuInfo(model or platform.processor() or platform.machine() or "unknown processor", flags, vendor)


@lru_cache(maxsize=1)
def mkl_is_slower() -> bool:
    """Whether oneDNN's fp32 products beat those of MKL, which torch takes by itself: on AMD's processors by
    a tenth to a fifth (measured on an EPYC of Zen 4). By the vendor and not by a stopwatch, so that a model's
    bits are the same each time it is loaded."""
    return cpu_info().vendor == "AuthenticAMD"


@dataclass(frozen=True)
class CgroupLimits:
    """Limits of the container this process is in; None: no limit, or none that can be read."""

    cpus: float | None
    memory_bytes: int | None


def cgroup_limits(root: Path = CGROUP_ROOT, membership: Path = CGROUP_MEMBERSHIP) -> CgroupLimits:
    """The tightest CPU and memory limit on the way from this process's group to the root, v1 or v2."""
    cpus: list[float] = []
    memory: list[int] = []
    for folder in cgroup_folders(root, membership):
        cpus += _cpu_limit(folder)
        memory += memory_limit(folder)
    return CgroupLimits(min(cpus, default=None), min(memory, default=None))


def cgroup_folders(root: Path, membership: Path) -> Iterator[Path]:
    """Every folder on the way from this process's groups to the root, innermost first in each hierarchy."""
    for line in (read_text(membership) or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            controllers = fields[1].split(",") if fields[1] else []
            yield from _folders_up(root, controllers, fields[2])


def _folders_up(root: Path, controllers: list[str], group: str) -> list[Path]:
    """Every folder from the group up to its hierarchy's root. v2 has no controller names."""
    tops = [root / ",".join(controllers), *(root / name for name in controllers)] if controllers else [root]
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return [top.joinpath(*parts[:depth]) for top in tops for depth in range(len(parts), -1, -1)]


def _cpu_limit(folder: Path) -> list[float]:
    v2 = (read_text(folder / "cpu.max") or "").split()
    if len(v2) == 2 and v2[0].isdigit() and v2[1].isdigit():
        return [int(v2[0]) / int(v2[1])]
    quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
    if quota and period and quota.isdigit() and period.isdigit() and int(quota) > 0:
        return [int(quota) / int(period)]
    return []  # "max" and -1 both mean no limit


def memory_limit(folder: Path) -> list[int]:
    """The group's own limit in bytes, if it has one."""
    text = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes") or ""
    # v1 writes "no limit" as the largest page-aligned integer
    return [int(text)] if text.isdigit() and int(text) < 1 << 60 else []


def allowed_cpus() -> frozenset[int]:
    """Logical CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(psutil.cpu_count() or 1))


def physical_cores(cpus: frozenset[int], tree: Path = CPU_TREE) -> int:
    """Physical cores behind these logical CPUs: two siblings of one core count once."""
    siblings = set()
    for cpu in cpus:
        text = read_text(tree / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        if text is None:
            return min(len(cpus), psutil.cpu_count(logical=False) or len(cpus))
        siblings.add(text)
    return len(siblings)


def choose_threads(
    environ: Mapping[str, str] = os.environ,
    *,
    cpus: frozenset[int] | None = None,
    tree: Path = CPU_TREE,
    limits: CgroupLimits | None = None,
) -> tuple[int, str]:
    """Threads for compute: one per physical core that this process may use, shared among local ranks.

    Matmuls fill a core's vector units with one thread; a second on the same core only adds contention.
    OMP_NUM_THREADS is obeyed, except under torchrun, which sets it to 1 on its own when nobody did.
    """
    wish = environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if wish.isdigit() and int(wish) > 0 and "TORCHELASTIC_RUN_ID" not in environ:
        return int(wish), "OMP_NUM_THREADS is set"
    cpus = allowed_cpus() if cpus is None else cpus
    limits = cgroup_limits() if limits is None else limits
    cores = physical_cores(cpus, tree)
    n, reason = cores, f"{cores} physical {'core' if cores == 1 else 'cores'} in reach ({len(cpus)} logical)"
    if limits.cpus is not None and limits.cpus < n:
        n = max(1, int(limits.cpus))
        reason += f", but the container may use {limits.cpus:g} CPUs"
    ranks = environ.get("LOCAL_WORLD_SIZE", "")
    if ranks.isdigit() and int(ranks) > 1:
        n = max(1, n // int(ranks))
        reason += f", shared among {ranks} ranks"
    return n, reason


def settled_resident_bytes() -> int:
    """Resident memory of this process. What the C library only keeps for later is handed back first, where it
    can be."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_info().rss)


def peak_resident_bytes(status: Path = STATUS) -> int:
    """Most bytes of memory that this program has held. Linux tells it of the address space; getrusage's peak
    would there also be that of the process which started this one, of which it began as a copy."""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", read_text(status) or "", re.MULTILINE)
    if found:
        return int(found[1]) * 1024
    import resource  # of Unix alone

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes everywhere but on macOS
