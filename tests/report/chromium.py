"""Headless Chromium driven over its debugging pipe (JSON messages, each ended by a zero byte)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Chromium reads commands from descriptor 3 and answers on 4; this puts our pipe ends there before it starts.
_LAUNCH = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-pipe",
)


class Chromium:
    """One browser with one tab. `log` collects what pages wrote to the console and asked of the network."""

    def __init__(self, profile: Path) -> None:
        command_read, command_write = os.pipe()
        answer_read, answer_write = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _LAUNCH,
                str(command_read),
                str(answer_write),
                executable() or "chromium",
                *_FLAGS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        self._write, self._read = command_write, answer_read
        self._buffer, self._next_id = b"", 0
        self.log: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next_id += 1
        message: dict[str, Any] = {"id": self._next_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._next_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.log.append(answer)

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Load the page and wait until it is whole."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.log.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(entry.get("method") == "Page.loadEventFired" for entry in self.log):
            self.log.append(self._receive())

    def value(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def complaints(self) -> list[str]:
        """Console messages, uncaught exceptions and browser log entries since the page was opened."""
        self.value("0")  # whatever was on its way has arrived once this is answered
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(entry["params"]) for entry in self.log if entry.get("method") in kinds]

    def requests(self) -> list[str]:
        sent = [entry for entry in self.log if entry.get("method") == "Network.requestWillBeSent"]
        return [entry["params"]["request"]["url"] for entry in sent]

    def screenshot(self, path: Path) -> None:
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
        except (EOFError, OSError):
            self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._write)
        os.close(self._read)

    def _receive(self, patience_s: float = 30.0) -> dict[str, Any]:
        end = time.monotonic() + patience_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium was silent for {patience_s} s")
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise EOFError("Chromium ended")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


def executable() -> str | None:
    return shutil.which("chromium")
