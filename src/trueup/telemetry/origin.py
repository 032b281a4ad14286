"""Where a run's clock starts: the start of its process, so that interpreter and imports are on the bill."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

LONGEST_AGE_S = 10 * 365 * 86400.0  # an age beyond this is a broken clock, not an old process


def process_origin() -> tuple[float, str]:
    """(the `time.perf_counter()` value at this process's start, that instant in ISO 8601 UTC).

    On Linux the kernel's start time against the boot clock, 10 ms fine; elsewhere psutil's creation time
    against the wall clock. A process that runs under a clock that makes no sense starts now.
    """
    age_s = _age_from_kernel()
    if age_s is None:
        age_s = _age_from_psutil()
    now_perf, now_utc = time.perf_counter(), datetime.now(UTC)
    started = now_utc - timedelta(seconds=age_s)
    return now_perf - age_s, started.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _age_from_kernel(stat: Path = Path("/proc/self/stat")) -> float | None:
    """Field 22 of /proc/PID/stat: clock ticks from boot to the start (proc_pid_stat(5))."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    try:
        # the second field is the program's name in brackets and may hold spaces and brackets itself
        after_name = stat.read_text().rpartition(")")[2].split()
        started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    return age_s if started_s > 0 and 0 <= age_s < LONGEST_AGE_S else None


def _age_from_psutil() -> float:
    import psutil

    age_s = time.time() - psutil.Process().create_time()
    return age_s if 0 <= age_s < LONGEST_AGE_S else 0.0
