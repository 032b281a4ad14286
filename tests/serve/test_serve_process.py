"""A server as a process of its own: signals at bad moments, and nobody left to read what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from api_server import series

ENDS_S = 600
SMALL = ("--context", "64", "--concurrency", "2", "--prefill-chunk", "32", "--device", "cpu", "--port", "0")
HUNG = "import threading, trueup.serve.engine as e; e.Engine.{} = lambda *a, **b: threading.Event().wait()"
IMPATIENT = "import trueup.serve.server as s; s.PATIENCE_S = 0.1"
PLAIN = {"model": "tiny", "prompt": "hi", "max_tokens": 20}


@dataclass
class Process:
    url: str
    process: subprocess.Popen[str]

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=ENDS_S)
        return self.process.returncode, err


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@contextmanager
def started(home: Path, until: str, *before: str) -> Iterator[Process]:
    """A server that has said `until`; `before` are lines of Python that come first in it."""
    code = "\n".join([*before, "from trueup.cli import main", "main()"])
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "tiny", *SMALL],
        env={**os.environ, "TRUEUP_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith(until):
                break
        (url,) = re.findall(r"listening at (http://\S+)/v1", said)
        yield Process(url, process)
    finally:
        process.kill()
        process.wait()


def wait_until(holds: Callable[[], bool]) -> None:
    pause, given_up = threading.Event(), time.monotonic() + ENDS_S
    while not holds():
        assert time.monotonic() < given_up, "it does not come about"
        pause.wait(0.02)


def test_a_signal_ends_a_server_that_warms_up(home: Path) -> None:
    with started(home, "warm-up:", HUNG.format("warm_up")) as server:
        wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 200)
        assert httpx.get(f"{server.url}/ready").json() == {"status": "loading"}
        server.process.send_signal(signal.SIGTERM)
        code, err = server.end()
    assert code == 0
    assert "Traceback" not in err


def test_a_second_signal_tells_the_clients_and_ends_it_with_code_1(home: Path) -> None:
    with started(home, "ready:", HUNG.format("step"), IMPATIENT) as server:
        answers: list[int] = []
        ask = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{server.url}/v1/completions", json=PLAIN, timeout=ENDS_S).status_code
            )
        )
        ask.start()
        waiting = ("vllm:num_requests_waiting", "")
        wait_until(lambda: series(httpx.get(f"{server.url}/metrics").text).get(waiting) == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/ready").json() == {"status": "draining"})
        server.process.send_signal(signal.SIGTERM)
        ask.join(ENDS_S)
        code, err = server.end()
    assert answers == [503]
    assert code == 1
    assert "ending: 1 answer to finish, for " in err
    assert "1 answer cut off at the second signal" in err
    assert "Traceback" not in err


def test_a_server_whose_words_nobody_reads_any_more_serves_on_and_ends_well(home: Path) -> None:
    """As when the shell or the program that started it was killed."""
    with started(home, "listening at") as server:
        assert server.process.stderr is not None
        server.process.stderr.close()
        wait_until(lambda: _status(f"{server.url}/ready") == 200)
        assert httpx.post(f"{server.url}/v1/completions", json=PLAIN, timeout=60).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(ENDS_S) == 0


def test_a_server_that_is_to_end_with_who_started_it_does(home: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-m', 'trueup', *sys.argv[1:], '--end-with', str(os.getpid())])\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "tiny", *SMALL],
        env={**os.environ, "TRUEUP_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stderr is not None
    for line in parent.stderr:
        if line.startswith("ready:"):
            break
    parent.kill()
    said = parent.stderr.read()  # up to the server's own end
    assert f"process {parent.pid} of --end-with is gone" in said
    assert "everything accepted was answered" in said
    parent.wait()


def _status(url: str) -> int:
    """0 where nobody answers yet."""
    try:
        return httpx.get(url, timeout=ENDS_S).status_code
    except httpx.TransportError:
        return 0
