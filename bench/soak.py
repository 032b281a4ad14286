"""A server under mixed load for ten minutes: nothing leaks, and its metrics are what its clients saw.

    python bench/soak.py [--minutes 10] [--clients 12] [--model tiny] [--serve-option OPTION ...]

Starts `trueup serve`, puts clients of every kind on it (bench/mixed_load.py), reads the memory of its process
once a second, and ends it by SIGTERM. Fails (exit 1) where blocks are still held once it is idle, memory grew
by more than 5% from the second tenth of the time to the last, metrics and clients disagree, or it does not
end by itself. Answers that are kept for retries, as the server tells, are no growth.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import psutil
from mixed_load import disagreements, is_idle, metrics_of, run_clients

MOST_GROWTH = 0.05
READY_S = 600.0
END_S = 60.0
LEAST_SAMPLES = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--port", type=int, default=8077)
    parser.add_argument("--serve-option", action="append", default=[])
    asked = parser.parse_args()
    url = f"http://127.0.0.1:{asked.port}"
    command = [sys.executable, "-m", "trueup", "serve", asked.model, "--port", str(asked.port)]
    server = subprocess.Popen([*command, "--context", "256", *asked.serve_option])
    try:
        _wait_ready(server, url)
        memory = _Memory(server.pid, url)
        until = time.monotonic() + 60 * asked.minutes

        def goes_on() -> Iterator[bool]:
            while time.monotonic() < until:
                yield True

        seen = run_clients(url, asked.model, asked.clients, goes_on)
        wrong = _idle(url) + disagreements(seen, metrics_of(url))
        growth = memory.growth()
        print(f"{seen.requests:,} requests: {dict(seen.ended)} ended, {seen.left + seen.unsure} left")
        print(f"statuses {dict(sorted(seen.statuses.items()))}, {seen.replays} replays")
        print(f"memory of the server's process: {memory.words()}, {growth:+.1%}")
        if growth > MOST_GROWTH:
            wrong.append(f"memory grew by {growth:.1%}; at most {MOST_GROWTH:.0%} is expected")
        server.terminate()
        if server.wait(END_S) != 0:
            wrong.append(f"the server ended with exit code {server.returncode}")
    finally:
        server.kill()
    for line in wrong[:20]:
        print(f"WRONG: {line}")
    print("held" if not wrong else f"{len(wrong)} things are wrong")
    return 1 if wrong else 0


def _wait_ready(server: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with exit code {server.returncode}")
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"the server was not ready after {READY_S:g} s")


def _idle(url: str) -> list[str]:
    """What is wrong where the server does not come to rest soon after its clients."""
    for _ in range(100):
        if is_idle(metrics_of(url)):
            return []
        time.sleep(0.1)
    return ["the server is idle and holds requests or blocks"]


class _Memory:
    """Resident bytes of a process, once a second, less those of answers it keeps for retries."""

    def __init__(self, pid: int, url: str) -> None:
        self._process = psutil.Process(pid)
        self._url = url
        self._kept = 0.0
        self._sizes: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def growth(self) -> float:
        """From the second tenth's median to the last's: in the first, buffers fill."""
        self._over.set()
        self._thread.join()
        if len(self._sizes) < LEAST_SAMPLES:
            raise SystemExit(f"memory was read {len(self._sizes)} times; at least {LEAST_SAMPLES} are wanted")
        tenth = max(1, len(self._sizes) // 10)
        self._first = statistics.median(self._sizes[tenth : 2 * tenth] or self._sizes)
        self._last = statistics.median(self._sizes[-tenth:])
        return self._last / self._first - 1

    def words(self) -> str:
        kept = f"{self._kept / 2**20:,.1f} MiB of answers for retries"
        return f"{self._first / 2**20:,.1f} MiB, then {self._last / 2**20:,.1f} MiB, beside {kept}"

    def _look(self) -> None:
        while not self._over.wait(1.0):
            with contextlib.suppress(httpx.HTTPError, KeyError):  # a busy server's next second tells
                self._kept = metrics_of(self._url)["trueup:idempotent_answers_bytes", ""]
                self._sizes.append(self._process.memory_info().rss - int(self._kept))


if __name__ == "__main__":
    sys.exit(main())
