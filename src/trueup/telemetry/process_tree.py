"""CPU time and memory of a run's processes on this machine, cheap enough to ask ten times a second.

They are this process and its descendants; with several ranks on the machine also their launcher and what
descends from it: the other ranks are the run, not its neighbours; and other processes that are named, with
what descends from them, such as a server under a load. Field numbers are those of proc_pid_stat(5).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping

import psutil

RENEW_EVERY_S = 1.0
RENEW_CORE_SHARE = 0.001  # of one core, for finding descendants on a machine with many processes
ON_LINUX = sys.platform.startswith("linux")
TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ProcFile:
    """A file of /proc, kept open: reading it again from its start gives the state of then."""

    def __init__(self, path: str, most_bytes: int = 4096) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._most_bytes = most_bytes

    def read(self) -> bytes:
        return os.pread(self._fd, self._most_bytes, 0)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


def stat_fields(pid: int) -> list[bytes]:
    """Fields 3 and on of /proc/PID/stat; the name before them may hold spaces and brackets."""
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        return file.read(4096).rpartition(b")")[2].split()


class LinuxTree:
    """Reads /proc. Each second it looks at the processes that are new, and keeps those that descend from
    this one (with `siblings` from its parent) or from `also`, also when their parent has ended since. Memory
    that processes share is counted in each."""

    def __init__(self, *, siblings: bool, also: Collection[int] = ()) -> None:
        self._statm = ProcFile("/proc/self/statm", 128)
        self._seen: set[int] = set()
        self._pid = int(os.readlink("/proc/self"))  # our number in the namespace that this /proc shows
        self._ours: set[int] = {self._pid, *also}
        if siblings and (launcher := int(stat_fields(self._pid)[1])):  # 0: outside this namespace
            self._ours.add(launcher)
        self._renew_at = 0.0

    def read(self) -> tuple[float, int]:
        """(CPU seconds, those of ended and waited-for children included; resident bytes)."""
        self._renew()
        times = os.times()
        cpu_s = time.process_time() + times.children_user + times.children_system
        pages = int(self._statm.read().split()[1])
        for pid in self._ours - {self._pid}:
            try:
                fields = stat_fields(pid)
            except OSError:  # it ended; once waited for, its time is in its parent's
                continue
            cpu_s += sum(map(int, fields[11:15])) / TICKS_PER_S  # fields 14 to 17
            pages += int(fields[21])  # field 24
        return cpu_s, pages * PAGE_BYTES

    def _renew(self) -> None:
        now = time.monotonic()
        if now < self._renew_at:
            return
        began = time.thread_time()
        alive = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        parents: dict[int, int] = {}
        for pid in alive - self._seen:
            try:
                parents[pid] = int(stat_fields(pid)[1])  # field 4
            except (OSError, IndexError):
                continue
        self._seen = alive
        self._ours = (self._ours & alive) | {self._pid}
        while found := {pid for pid, parent in parents.items() if parent in self._ours} - self._ours:
            self._ours |= found
        self._renew_at = now + max(RENEW_EVERY_S, (time.thread_time() - began) / RENEW_CORE_SHARE)


class PortableTree:
    """The same through psutil, for systems without /proc."""

    def __init__(self, *, siblings: bool, also: Collection[int] = ()) -> None:
        self._self = psutil.Process()
        self._roots = [(self._self.parent() if siblings else None) or self._self]
        self._roots += [psutil.Process(pid) for pid in also if psutil.pid_exists(pid)]
        self._others: list[psutil.Process] = []
        self._renew_at = 0.0

    def read(self) -> tuple[float, int]:
        if time.monotonic() >= self._renew_at:
            began = time.thread_time()
            self._others = [one for root in self._roots for one in _descent(root) if one != self._self]
            cost_s = time.thread_time() - began
            self._renew_at = time.monotonic() + max(RENEW_EVERY_S, cost_s / RENEW_CORE_SHARE)
        cpu_s, rss_bytes = time.process_time(), int(self._self.memory_info().rss)
        for other in self._others:
            try:
                with other.oneshot():
                    times = other.cpu_times()
                    cpu_s += times.user + times.system
                    rss_bytes += int(other.memory_info().rss)
            except psutil.Error:  # it ended
                continue
        return cpu_s, rss_bytes


def _descent(root: psutil.Process) -> list[psutil.Process]:
    """It and what descends from it; nothing once it has ended."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def process_tree(
    environ: Mapping[str, str] = os.environ, also: Collection[int] = ()
) -> LinuxTree | PortableTree:
    """The run's processes, `also` and theirs among them. torchrun says how many ranks it started here by
    LOCAL_WORLD_SIZE."""
    siblings = environ.get("LOCAL_WORLD_SIZE", "1") != "1"
    return (LinuxTree if ON_LINUX else PortableTree)(siblings=siblings, also=also)
