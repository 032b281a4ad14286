"""Clients of every kind at once: nothing hangs, blocks return, and the metrics are what the clients saw."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from api_server import MODEL, serving
from fake_engine import END, FakeEngine

from trueup.serve.request import Request

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import mixed_load

CLIENTS, EACH = 6, 25


def babble(request: Request) -> list[int]:
    """By the prompt: letters, parts of characters, now and then an end."""
    return [(17 * token + 31 * n) % 256 if (token + n) % 23 else END for n, token in
            zip(range(600), (request.prompt * 600)[:600], strict=True)]  # fmt: skip


def turns() -> Iterator[bool]:
    return repeat(True, EACH)


@pytest.mark.parametrize("room", [64, 4])
def test_metrics_agree_with_the_clients_and_blocks_return(room: int) -> None:
    engine: Any = FakeEngine(script=babble, blocks=64)
    with serving(engine, room=room) as server:
        seen = mixed_load.run_clients(server.url, MODEL, CLIENTS, turns)
        server.until(lambda: mixed_load.is_idle(mixed_load.metrics_of(server.url)))
        assert mixed_load.disagreements(seen, mixed_load.metrics_of(server.url)) == []
        assert server.service.under_way == 0
        server.terminate()
        assert server.result().cut == 0
    assert seen.requests >= CLIENTS * EACH
    assert seen.left
    assert seen.unsure
    assert seen.replays


def test_a_count_that_is_wrong_is_found() -> None:
    with serving() as server:
        seen = mixed_load.run_clients(server.url, MODEL, 1, turns)
        server.until(lambda: mixed_load.is_idle(mixed_load.metrics_of(server.url)))
        found = mixed_load.metrics_of(server.url)
    assert mixed_load.disagreements(seen, found) == []
    for name, more in [
        (("vllm:generation_tokens_total", ""), 1),
        (("vllm:time_to_first_token_seconds_count", ""), 99),
        (("trueup:idempotent_replays_total", ""), 1),
        (("vllm:request_success_total", "stop"), 99),
    ]:
        assert mixed_load.disagreements(seen, {**found, name: found.get(name, 0.0) + more}), name
