"""A server of the load's own: started as a process, waited for, ended with the load."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.schema import TrueupError

if TYPE_CHECKING:
    import httpx

LOOK_EVERY_S = 0.25
ENDS_WITHIN_S = 20.0
TELL_EVERY_S = 10.0
TAIL_BYTES = 2000
HEAD_BYTES = 1 << 16
_LISTENING = re.compile(r"listening at (https?://[^\s/]+)")


def free_port() -> int:
    """A port of this machine that nobody listened at just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OwnServer:
    """`with OwnServer(command, log) as server`: runs the command, its output in the file; ends it however the
    block is left, by SIGTERM and, where that does nothing for long, SIGKILL. `tell` is told what is waited
    for."""

    def __init__(
        self, command: Sequence[str], log: Path, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._command = list(command)
        self._log = log
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OwnServer:
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the load, which ends the server in its own time
            )
        return self

    def __exit__(self, *failure: object) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def why_ended(self) -> str | None:
        """None while it runs; else how it ended and the last it said."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return None
        return f"the server ended with exit code {code}; the last it said, from {self._log}:\n{self._tail()}"

    async def ready(self, http: httpx.AsyncClient, url: str, within_s: float) -> None:
        """Wait until it says that it is, and tell each ten seconds what is new of it. TrueupError where it
        ends before, listens elsewhere or takes too long."""
        now = asyncio.get_running_loop().time
        began = now()
        tell_at, told = began + TELL_EVERY_S, None
        try:
            async with asyncio.timeout(within_s):
                while not await _answers(http, url):
                    if (why := self.why_ended() or self._elsewhere(url)) is not None:
                        raise TrueupError(why)
                    if now() >= tell_at:
                        last = self._tail().splitlines()[-1]
                        if last != told:
                            self._tell(_waiting(url, now() - began, last))
                        tell_at, told = now() + TELL_EVERY_S, last
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise TrueupError(
                f"the server was not ready within {within_s:g} s (--ready-within); the last it said, from "
                f"{self._log}:\n{self._tail()}"
            ) from None

    async def ended(self) -> str:
        """Returns, with the reason, when it has ended."""
        while (why := self.why_ended()) is None:
            await asyncio.sleep(LOOK_EVERY_S)
        return why

    def _elsewhere(self, url: str) -> str | None:
        """In words, where it says that it listens at another address than that of `url`."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            found = _LISTENING.search(log.read(HEAD_BYTES).decode("utf-8", "replace"))
            if found and not url.startswith(f"{found[1]}/"):
                return (
                    f"the server listens at {found[1]}, by {self._log}, and is waited for at {url}: an "
                    "option moved it; leave that to the load, or start the server and give its URL"
                )
        return None

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            raw = self._log.read_bytes()[-TAIL_BYTES:]
            return raw.decode("utf-8", "replace").strip() or "nothing"
        return "nothing"


def _waiting(url: str, seconds: float, last: str) -> str:
    return f"waiting for {url} to say that it is ready, for {seconds:.0f} s by now; the last it said: {last}"


async def _answers(http: httpx.AsyncClient, url: str) -> bool:
    import httpx

    try:
        return (await http.get(url, timeout=5.0)).status_code == 200
    except httpx.HTTPError:
        return False
