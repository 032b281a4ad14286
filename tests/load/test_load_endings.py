"""How loads end: finished, failed, interrupted, killed; what was measured by then is kept."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from made_loads import RUN_ID, loaded, real_time_loaded, settings, value
from scripted_server import Script, ScriptedServer, answer_of, quick

from trueup.store.run_folder import read_run_folder


def test_a_server_that_answers_nothing_fails_the_load_in_words() -> None:
    def refuse(n: int, body: dict[str, Any]) -> Script:
        return Script([(0.0, b'{"error": {"message": "no such model"}}')], status=404)

    outcome = loaded(ScriptedServer(refuse), settings())
    assert outcome.record.state == "failed"
    assert "none of 10 requests was answered" in (outcome.record.header.reason or "")
    assert "no such model" in str(outcome.error)
    assert outcome.record.measurements["ttft_p50_s"].value is None


class Unreachable(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")


def test_a_server_that_is_not_there_fails_the_load_in_words() -> None:
    outcome = loaded(Unreachable(), settings())  # type: ignore[arg-type]
    assert outcome.record.state == "failed"
    assert "no server answers at http://s/v1/models: connection refused" in str(outcome.error)


def test_a_model_that_the_server_does_not_have_is_refused_with_what_it_has() -> None:
    outcome = loaded(ScriptedServer(quick), settings(), job={"model": "other"})
    assert "--model other: the server at http://s has scripted" in str(outcome.error)


def test_a_killed_load_is_summed_up_from_its_folder(tmp_path: Path) -> None:
    """Its measurements are gone; the requests are not."""
    from trueup.analysis.measure import summarized

    folder = tmp_path / RUN_ID
    whole = loaded(ScriptedServer(quick), settings(), folder=folder).record
    (folder / "measurements.json").unlink()
    again = summarized(read_run_folder(folder))
    assert again.measurements["ttft_p50_s"] == whole.measurements["ttft_p50_s"]
    assert again.measurements["output_tokens_per_s"] == whole.measurements["output_tokens_per_s"]


def test_the_folder_of_a_load_reads_back_as_it_was_recorded(tmp_path: Path) -> None:
    folder = tmp_path / RUN_ID
    record = loaded(ScriptedServer(quick), settings(warm_up=2), folder=folder).record
    assert read_run_folder(folder) == record
    assert json.loads((folder / "run.json").read_text())["kind"] == "load"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_load_keeps_what_was_answered(number: signal.Signals) -> None:
    def interrupting(n: int, body: dict[str, Any]) -> Script:
        if n == 5:
            os.kill(os.getpid(), number)
            return Script(wait_s=3600.0)
        return answer_of(prompt=20, chunks=5, first_s=0.0, gap_s=0.0)

    before = signal.getsignal(number)
    asked = settings(arrivals="closed", rate=None, concurrency=1, requests=100)
    record = real_time_loaded(ScriptedServer(interrupting), asked, time.perf_counter).record
    assert record.state == "interrupted"
    assert record.header.reason == f"{number.name} received after 5 of 100 requests"
    assert value(record, "completed_requests_count") == 5
    assert value(record, "cancelled_requests_count") == 1
    assert value(record, "error_share") == 0
    assert value(record, "output_tokens") == 25
    assert signal.getsignal(number) == before


class DyingServer:
    """Ready at once; ends by itself some seconds later."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self.entered = self.left = False

    def __enter__(self) -> DyingServer:
        self.entered = True
        return self

    def __exit__(self, *failure: object) -> None:
        self.left = True

    async def ready(self, http: httpx.AsyncClient, url: str, within_s: float) -> None:
        assert url == "http://s/ready"

    async def ended(self) -> str:
        await asyncio.sleep(self._after_s)
        return "the server ended with exit code -9"


def test_a_server_of_our_own_that_dies_ends_the_load_and_what_was_answered_is_kept() -> None:
    own = DyingServer(after_s=10.0)
    asked = settings(arrivals="closed", rate=None, concurrency=1, requests=100)
    outcome = loaded(ScriptedServer(quick), asked, job={"own": own})
    assert outcome.record.state == "failed"
    assert str(outcome.error) == "the server ended with exit code -9"
    assert value(outcome.record, "completed_requests_count") == 3  # of 3 s each
    assert own.left


def test_a_server_of_our_own_that_lives_is_ended_with_the_load() -> None:
    own = DyingServer(after_s=1e6)
    outcome = loaded(ScriptedServer(quick), settings(), job={"own": own})
    assert outcome.error is None
    assert own.left


def test_an_answer_that_takes_too_long_is_a_timeout_and_the_others_are_answered() -> None:
    def slow(n: int, body: dict[str, Any]) -> Script:
        return answer_of(prompt=20, chunks=5, first_s=1.0 if n else 1000.0, gap_s=0.5)

    record = loaded(ScriptedServer(slow), settings(timeout_s=60.0)).record
    assert value(record, "errors_timeout_count") == 1
    assert value(record, "completed_requests_count") == 9


def test_a_server_that_refuses_a_first_request_is_told_with_its_reason() -> None:
    class Strict(ScriptedServer):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                return httpx.Response(400, json={"error": {"message": "unknown parameter: ignore_eos"}})
            return await super().handle_async_request(request)

    outcome = loaded(Strict(quick), settings())
    assert outcome.record.state == "failed"
    assert "HTTP 400: unknown parameter: ignore_eos; --no-ignore-eos leaves out" in str(outcome.error)
