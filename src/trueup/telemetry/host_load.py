"""How busy this machine is, and how much of that is this run's own processes.

Shares are of all logical CPUs of the machine, averaged over the last second: the kernel counts busy time in
ticks of 10 ms, so a shorter window would be mostly rounding.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import psutil

from .process_tree import ON_LINUX, TICKS_PER_S, ProcFile, process_tree

WINDOW_S = 1.0


class Reading(NamedTuple):
    """Counters at an instant, in CPU seconds since some start."""

    at_s: float
    own_s: float  # the run's processes
    busy_s: float  # everything on the machine, time stolen by the hypervisor included
    capacity_s: float  # busy and idle


def shares(first: Reading, last: Reading, cpus: int) -> dict[str, float]:
    """cpu_share and others_cpu_share from one reading to the other, 0..1.

    One whose counters stood still is absent. Others' share is what was busy and not ours.
    """
    values: dict[str, float] = {}
    if (elapsed_s := last.at_s - first.at_s) > 0:
        values["cpu_share"] = _clamp((last.own_s - first.own_s) / (elapsed_s * cpus))
    if (capacity_s := last.capacity_s - first.capacity_s) > 0:
        others_s = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
        values["others_cpu_share"] = _clamp(others_s / capacity_s)
    return values


def _clamp(share: float) -> float:
    return min(1.0, max(0.0, share))


def busy_and_capacity_s(stat_line: bytes) -> tuple[float, float]:
    """From the first line of /proc/stat. Waiting for a disk is idle; time stolen by the hypervisor is busy.

    Its fields: user nice system idle iowait irq softirq steal; guest time, after them, is in user already.
    """
    ticks = [int(field) for field in stat_line.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / TICKS_PER_S, sum(ticks) / TICKS_PER_S


def available_bytes(meminfo: bytes) -> int:
    """MemAvailable of /proc/meminfo: memory that new work could have without swapping."""
    start = meminfo.index(b"MemAvailable:") + len(b"MemAvailable:")
    return int(meminfo[start : meminfo.index(b"kB", start)]) * 1024


class LinuxMachine:
    """The whole machine's CPU seconds and free memory, from /proc."""

    def __init__(self) -> None:
        self._stat = ProcFile("/proc/stat", 256)
        self._meminfo = ProcFile("/proc/meminfo", 256)

    def cpu_s(self) -> tuple[float, float]:
        return busy_and_capacity_s(self._stat.read().split(b"\n", 1)[0])

    def available_bytes(self) -> int:
        return available_bytes(self._meminfo.read())


class PortableMachine:
    """The same through psutil."""

    def cpu_s(self) -> tuple[float, float]:
        times = psutil.cpu_times()
        return sum(times) - times.idle, float(sum(times))

    def available_bytes(self) -> int:
        return int(psutil.virtual_memory().available)


class HostLoad:
    """Shares over the last second, and memory of the process tree and the machine. `also`: other processes
    of the run, by their ids."""

    def __init__(self, also: Collection[int] = ()) -> None:
        self._tree = process_tree(also=also)
        self._machine = LinuxMachine() if ON_LINUX else PortableMachine()
        self._cpus = psutil.cpu_count() or 1
        self._past: deque[Reading] = deque()
        self.read()

    def read(self) -> dict[str, float]:
        """Values named as in `schema.Sample`; the shares are absent at the first reading."""
        own_s, rss_bytes = self._tree.read()
        now = Reading(time.monotonic(), own_s, *self._machine.cpu_s())
        while len(self._past) > 1 and self._past[1].at_s <= now.at_s - WINDOW_S:
            self._past.popleft()
        values = shares(self._past[0], now, self._cpus) if self._past else {}
        self._past.append(now)
        values["host_rss_bytes"] = float(rss_bytes)
        values["host_available_bytes"] = float(self._machine.available_bytes())
        return values
