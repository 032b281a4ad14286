"""A server of the load's own: waited for, ended, and mourned where it ends by itself."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

from trueup.load import server
from trueup.load.server import OwnServer, free_port
from trueup.schema import TrueupError

SERVING = """
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


async def _wait(own: OwnServer, url: str, within_s: float = 60.0) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        await own.ready(http, url, within_s)


def test_it_is_waited_for_and_ended(tmp_path: Path) -> None:
    port = free_port()
    with OwnServer([sys.executable, "-c", SERVING, str(port)], tmp_path / "log") as own:
        asyncio.run(_wait(own, f"http://127.0.0.1:{port}/ready"))
        assert own.why_ended() is None
    assert own.why_ended() is not None
    assert "serving" in (tmp_path / "log").read_text()


def test_one_that_ends_before_it_is_ready_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    with (
        OwnServer(command, tmp_path / "log") as own,
        pytest.raises(TrueupError, match=r"(?s)ended with exit code 3.*no such model"),
    ):
        asyncio.run(_wait(own, f"http://127.0.0.1:{free_port()}/ready"))


def test_one_that_is_never_ready_is_given_up_and_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)"]
    with OwnServer(command, tmp_path / "log") as own:
        with pytest.raises(TrueupError, match=r"not ready within 0\.5 s \(--ready-within\)"):
            asyncio.run(_wait(own, f"http://127.0.0.1:{free_port()}/ready", within_s=0.5))
        assert own.why_ended() is None
    assert own.why_ended() is not None


def test_its_end_during_a_load_is_told(tmp_path: Path) -> None:
    with OwnServer([sys.executable, "-c", "print('out of memory')"], tmp_path / "log") as own:
        assert "out of memory" in asyncio.run(own.ended())


def test_one_that_listens_elsewhere_is_told_at_once(tmp_path: Path) -> None:
    said = "listening at http://127.0.0.1:8124/v1; it is ready when http://127.0.0.1:8124/ready says so"
    command = [sys.executable, "-c", f"import time; print('{said}', flush=True); time.sleep(600)"]
    with (
        OwnServer(command, tmp_path / "log") as own,
        pytest.raises(TrueupError, match=r"listens at http://127\.0\.0\.1:8124, by .*waited for at"),
    ):
        asyncio.run(_wait(own, f"http://127.0.0.1:{free_port()}/ready"))


def test_what_is_waited_for_is_told_with_the_servers_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HeardError(Exception):
        pass

    def heard(words: str) -> None:
        if "the last it said: warming up" in words:
            raise HeardError(words)

    monkeypatch.setattr(server, "TELL_EVERY_S", 0.0)
    code = "import time; print('loading'); print('warming up', flush=True); time.sleep(600)"
    url = f"http://127.0.0.1:{free_port()}/ready"
    with (
        OwnServer([sys.executable, "-c", code], tmp_path / "log", heard) as own,
        pytest.raises(HeardError, match=f"waiting for {url} to say that it is ready"),
    ):
        asyncio.run(_wait(own, url))


def test_what_was_said_of_the_wait_is_not_said_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TELL_EVERY_S", 0.0)
    heard: list[str] = []
    code = "import time; print('loading', flush=True); time.sleep(600)"
    with (
        OwnServer([sys.executable, "-c", code], tmp_path / "log", heard.append) as own,
        pytest.raises(TrueupError, match="not ready"),
    ):
        asyncio.run(_wait(own, f"http://127.0.0.1:{free_port()}/ready", within_s=3.0))
    assert [line for line in heard if line.endswith(": loading")] == heard[-1:]
