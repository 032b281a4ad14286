"""A command in a fresh process, with what the kernel says of it afterwards."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).parent.parent


@dataclass(frozen=True)
class Finished:
    """`peak_bytes` is the largest resident memory of the process, or of a child of it if that was more.
    `others_cpu_share` is the part of all processors' time that went to anything else meanwhile."""

    code: int
    output: str
    errors: str
    wall_s: float
    peak_bytes: int
    others_cpu_share: float | None
    ended_by_limit: bool

    def complaint(self) -> str:
        """The last line of its errors, which is where Python says what was wrong."""
        lines = self.errors.strip().splitlines()
        return f"exit code {self.code}: {lines[-1] if lines else 'nothing on stderr'}"


def run_fresh(command: list[str], *, limit_s: float | None = None, **variables: str) -> Finished:
    """Run to the end, `variables` added to the environment, asked to stop after `limit_s`. A failing command
    is reported, not raised."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        busy_before, start = _busy_s(), time.perf_counter()
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=out, stderr=err, cwd=BENCH
        )
        asked_to_stop = threading.Event()
        limit = threading.Timer(limit_s or 0.0, lambda: (asked_to_stop.set(), process.terminate()))
        if limit_s is not None:
            limit.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            limit.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - start
        busy_after = _busy_s()
        for file in (out, err):
            file.seek(0)
        return Finished(
            code=process.returncode,
            output=out.read(),
            errors=err.read(),
            wall_s=wall_s,
            peak_bytes=usage.ru_maxrss * 1024,
            others_cpu_share=_others(busy_before, busy_after, usage, wall_s),
            ended_by_limit=asked_to_stop.is_set(),
        )


@contextmanager
def cold_home(home: Path) -> Iterator[dict[str, str]]:
    """Variables of an environment that has the models and data of `home` and nothing compiled yet."""
    with tempfile.TemporaryDirectory(prefix="trueup-bench-") as folder:
        cold = Path(folder) / "home"
        cold.mkdir()
        for room in ("models", "data"):
            (home / room).mkdir(parents=True, exist_ok=True)  # a link to nothing is no folder to write into
            (cold / room).symlink_to(home / room)
        yield {"TRUEUP_HOME": str(cold), "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor")}


def _busy_s() -> float | None:
    """Seconds that all processors together have been busy since the machine started; None where untold."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf(
        "SC_CLK_TCK"
    )  # without idle and waiting for disk


def _others(
    before: float | None, after: float | None, usage: resource.struct_rusage, wall_s: float
) -> float | None:
    if before is None or after is None:
        return None
    own_s = usage.ru_utime + usage.ru_stime
    return max(0.0, after - before - own_s) / (wall_s * (os.cpu_count() or 1))
