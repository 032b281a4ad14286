"""Calls a program or a web address of the user's at each action of the guard, beside the run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import IO, Any
from urllib.parse import urlsplit

LIMIT_S = 5.0
MOST_IN_FLIGHT = 4
_TAIL_BYTES = 500  # of what a failed program said

Failed = Callable[[str], None]


class Hooks:
    """Each call runs in a thread of its own and gets 5 s. `failed` is told in words what went wrong; nothing
    is raised. More than four calls at a time are not made, which counts as a failure."""

    def __init__(
        self, command: Sequence[str], webhook: str | None, failed: Failed, *, limit_s: float = LIMIT_S
    ) -> None:
        self._calls: list[tuple[str, Callable[[bytes], None]]] = []
        if command:
            self._calls.append(
                (f"the command {command[0]}", lambda body: _run(tuple(command), body, limit_s))
            )
        if webhook is not None:
            host = urlsplit(webhook).hostname  # not the address: its path is often a secret
            self._calls.append((f"the webhook at {host}", lambda body: _post(webhook, body, limit_s)))
        self._failed = failed
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: set[threading.Thread] = set()
        self._closed = False

    def call(self, document: dict[str, Any]) -> None:
        """Hand this document to each hook, and return at once."""
        body = json.dumps(document, ensure_ascii=False).encode()
        for name, work in self._calls:
            with self._lock:
                full = len(self._running) >= MOST_IN_FLIGHT
                thread = threading.Thread(
                    target=self._work, args=(name, work, body), name="trueup-hook", daemon=True
                )
                if not full:
                    self._running.add(thread)
            if full:
                self._failed(f"{name} was not called: {MOST_IN_FLIGHT} calls have not ended yet")
            else:
                thread.start()

    def close(self) -> None:
        """Wait for calls in flight, as long as one call may take; later failures are not told."""
        stop = time.monotonic() + self._limit_s
        with self._lock:
            running = list(self._running)
        for thread in running:
            thread.join(max(0.0, stop - time.monotonic()))
        self._closed = True

    def _work(self, name: str, work: Callable[[bytes], None], body: bytes) -> None:
        try:
            work(body)
        except Exception as error:  # whatever it is, it is the hook's failure and not the run's
            if not self._closed:
                self._failed(f"{name} failed: {error}")
        finally:
            with self._lock:
                self._running.discard(threading.current_thread())


def _run(command: tuple[str, ...], body: bytes, limit_s: float) -> None:
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,  # so that what it starts can be ended with it
        )
        try:
            process.communicate(body, timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TimeoutError(f"it did not end within {limit_s:g} s and was killed") from None
        if process.returncode != 0:
            raise OSError(f"it ended with code {process.returncode}: {_tail(said)}".rstrip(": "))


def _tail(said: IO[bytes]) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return " ".join(said.read().decode("utf-8", "replace").split())


class _StaysWhereItIs(urllib.request.HTTPRedirectHandler):
    """What was meant for one address is not sent to another."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(address: str, body: bytes, limit_s: float) -> None:
    request = urllib.request.Request(
        address, data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.build_opener(_StaysWhereItIs).open(request, timeout=limit_s):
            pass
    except urllib.error.HTTPError as error:
        if 300 <= error.code < 400:
            raise OSError(f"it answered {error.code}, and redirects are not followed") from None
        raise OSError(f"it answered {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None
    except TimeoutError:
        raise OSError(f"no answer within {limit_s:g} s") from None
