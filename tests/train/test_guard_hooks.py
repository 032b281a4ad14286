"""Programs and addresses that the guard calls, and Amazon's notice: none of them can hurt the run."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from trueup.recipe.survival import GuardSection
from trueup.telemetry import MemorySink, Timeline, process_origin
from trueup.train.guard import Guard
from trueup.train.hooks import MOST_IN_FLIGHT, Hooks
from trueup.train.spot import SpotWatch, is_on_ec2

Answer = Callable[[http.server.BaseHTTPRequestHandler, str, bytes], tuple[int, str]]


class Server:
    """A small HTTP server on this machine that answers as the test says."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.answer: Answer = lambda handler, path, body: (200, "")
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.seen.append((self.command, self.path, body))
                status, text = outer.answer(self, self.path, body)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", text)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_POST = _any

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/secret"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    one = Server()
    yield one
    one.close()


def wait_for(true: Callable[[], Any], limit_s: float = 60) -> Any:
    stop = time.monotonic() + limit_s
    while not (found := true()):
        assert time.monotonic() < stop, "it did not happen"
        time.sleep(0.01)
    return found


def called(command: tuple[str, ...] = (), webhook: str | None = None, limit_s: float = 30) -> list[str]:
    """Failures of one call, once it has ended."""
    failures: list[str] = []
    hooks = Hooks(command, webhook, failures.append, limit_s=limit_s)
    hooks.call({"action": "warn", "message": "zu heiß"})
    wait_for(lambda: not hooks._running)
    return failures


def test_a_command_gets_the_action_as_json(tmp_path: Path) -> None:
    out = tmp_path / "it's; $(touch hacked)"
    program = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    assert called((sys.executable, "-c", program, str(out))) == []
    assert json.loads(out.read_bytes()) == {"action": "warn", "message": "zu heiß"}


def test_a_command_that_fails_or_hangs_is_told_and_ended(tmp_path: Path) -> None:
    (failure,) = called((sys.executable, "-c", "import sys; sys.exit('no bell here')"))
    assert "ended with code 1: no bell here" in failure
    (failure,) = called((str(tmp_path / "absent"),))
    assert "No such file" in failure
    # what it started is ended with it, though it holds on to its output
    (failure,) = called(("sh", "-c", f"sleep 300 & echo $! > '{tmp_path}/pid'; wait"), limit_s=2)
    assert "did not end within 2 s" in failure
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_webhook_is_posted_to(server: Server) -> None:
    assert called(webhook=server.url) == []
    ((method, path, body),) = server.seen
    assert (method, path) == ("POST", "/hook/secret")
    assert json.loads(body)["message"] == "zu heiß"


def test_what_was_meant_for_one_address_is_sent_to_no_other(server: Server) -> None:
    server.answer = lambda handler, path, body: (307, f"http://127.0.0.1:{server.port}/elsewhere")
    (failure,) = called(webhook=server.url)
    assert "answered 307, and redirects are not followed" in failure
    assert "secret" not in failure
    assert len(server.seen) == 1


def test_a_webhook_that_fails_or_hangs_is_told(server: Server) -> None:
    server.answer = lambda handler, path, body: (500, "")
    assert "answered 500" in called(webhook=server.url)[0]
    let_go = threading.Event()
    server.answer = lambda handler, path, body: (200, str(let_go.wait(30)))
    assert "failed" in called(webhook=server.url, limit_s=0.2)[0]
    let_go.set()
    server.close()
    assert "refused" in called(webhook=server.url)[0]


def test_only_a_few_calls_are_in_flight(server: Server) -> None:
    let_go = threading.Event()
    server.answer = lambda handler, path, body: (200, str(let_go.wait(60)))
    failures: list[str] = []
    hooks = Hooks((), server.url, failures.append, limit_s=60)
    for _ in range(MOST_IN_FLIGHT + 2):
        hooks.call({})
    assert len(failures) == 2
    assert "was not called" in failures[0]
    let_go.set()
    hooks.close()
    assert len(server.seen) == MOST_IN_FLIGHT


def test_the_guard_calls_its_hooks_and_a_failure_is_an_event(tmp_path: Path) -> None:
    sink = MemorySink()
    guard = Guard(
        GuardSection(command=(str(tmp_path / "absent"),)),
        timeline=Timeline(sink, process_origin()[0]),
        price=None,
        total_steps=10,
        stop_usd=None,
        run_folder=tmp_path,
        missing={},
    )
    (tmp_path / "checkpoint-now").touch()
    assert guard.look(None, []).checkpoint
    wait_for(lambda: len(sink.events) == 2)
    guard.close()
    assert [event.kind for event in sink.events] == ["guard_checkpoint", "guard_hook_failed"]
    assert "No such file" in sink.events[1].message


# --- Amazon's notice --------------------------------------------------------------------------------------


def metadata(notices: list[tuple[int, str]], tokens: list[str]) -> Answer:
    """An IMDSv2 that gives these answers to the question, the last for good."""

    def answer(handler: http.server.BaseHTTPRequestHandler, path: str, body: bytes) -> tuple[int, str]:
        if path == "/latest/api/token":
            assert handler.command == "PUT"
            assert handler.headers["X-aws-ec2-metadata-token-ttl-seconds"].isdigit()
            tokens.append(f"token{len(tokens)}")
            return 200, tokens[-1]
        assert path == "/latest/meta-data/spot/instance-action"
        if not tokens or handler.headers["X-aws-ec2-metadata-token"] != tokens[-1]:
            return 401, ""
        return notices.pop(0) if len(notices) > 1 else notices[0]

    return answer


@contextmanager
def watching(server: Server) -> Iterator[SpotWatch]:
    spot = SpotWatch(("127.0.0.1", server.port), every_s=0.01)
    spot.start()
    try:
        yield spot
    finally:
        spot.close()


def test_the_notice_ends_the_run_saved(server: Server, tmp_path: Path) -> None:
    tokens: list[str] = []
    gone = (200, '{"action": "terminate", "time": "2026-11-30T08:22:00Z"}')
    server.answer = metadata([(404, "no"), (404, "no"), (401, ""), gone], tokens)
    with watching(server) as spot:
        guard = Guard(
            GuardSection(),
            timeline=Timeline(MemorySink(), process_origin()[0]),
            price=None,
            total_steps=10,
            stop_usd=None,
            run_folder=tmp_path,
            missing={},
            spot=spot,
        )
        orders = wait_for(lambda: (found := guard.look(None, [])).stop and found)
        assert orders.checkpoint
        assert "spot" in orders.stop
        assert "action terminate at 2026-11-30T08:22:00Z" in orders.stop
        assert guard.look(None, []).stop is None
    assert len(tokens) == 2  # the first was no longer good at the third answer


@pytest.mark.parametrize("answer", [(404, ""), (500, ""), (200, "[]"), (200, "not json"), (200, '{"x": 1}')])
def test_without_a_notice_nothing_is_asked_of_the_run(server: Server, answer: tuple[int, str]) -> None:
    server.answer = metadata([answer], [])
    with watching(server) as spot:
        wait_for(lambda: len(server.seen) >= 2)
        assert spot.taken() == ()


def test_nobody_there_is_no_notice(server: Server) -> None:
    server.close()
    with watching(server) as spot:
        time.sleep(0.05)
        assert spot.taken() == ()


def test_only_an_instance_of_amazons_is_one() -> None:
    assert is_on_ec2({"firmware": {"sys_vendor": "Amazon EC2"}, "reason": "not asked"})
    assert is_on_ec2({"instanceType": "g5.xlarge"})
    assert not is_on_ec2({"firmware": {"sys_vendor": "QEMU"}})
    assert not is_on_ec2({"reason": "not asked"})
