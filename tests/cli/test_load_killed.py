"""A load that is killed: nothing of it may go on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

GIVEN_UP_S = 600
LOAD = ("load", "tiny", "--rate", "1", "--requests", "100000", "--output-tokens", "2", "--prompt-tokens", "8")
SMALL = ("--serve-option=--context=64", "--serve-option=--concurrency=1")


def _wait_until(holds: Callable[[], bool]) -> None:
    pause, given_up = threading.Event(), time.monotonic() + GIVEN_UP_S
    while not holds():
        assert time.monotonic() < given_up, "it does not come about"
        pause.wait(0.05)


def test_the_server_of_a_load_that_was_killed_ends(home: Path) -> None:
    load = subprocess.Popen(
        [sys.executable, "-m", "trueup", *LOAD, *SMALL],
        env={**os.environ, "TRUEUP_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )

    def said(words: str) -> bool:
        return any(words in log.read_text() for log in home.glob("runs/*/server.log"))

    try:
        _wait_until(lambda: said("listening at") or load.poll() is not None)
        assert load.poll() is None
    finally:
        load.kill()
        load.wait()
    _wait_until(lambda: said("everything accepted was answered"))
