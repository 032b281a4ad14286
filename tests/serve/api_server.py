"""The API over a real socket, its event loop in a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fake_engine import END, FakeEngine
from prometheus_client.parser import text_string_to_metric_families

from trueup.model.tiny import VOCAB, _byte_tokenizer
from trueup.serve.app import Api, make_app
from trueup.serve.codec import Codec
from trueup.serve.completions import Served
from trueup.serve.idempotency import KeptAnswers
from trueup.serve.limits import ApiKeys, ApiLimits
from trueup.serve.metrics import ServingMetrics
from trueup.serve.protocols import EngineLike
from trueup.serve.server import Ended, Shutdown, listen, serve
from trueup.serve.service import Service

MODEL = "tiny"
WAIT_S = 120.0  # for what happens at once unless it is broken


@cache
def tokenizer() -> Any:
    return _byte_tokenizer()


def tiny_codec() -> Codec:
    def render(messages: list[dict[str, str]]) -> str:
        text: str = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text

    return Codec(tokenizer(), render=render, end_ids=frozenset({END}), vocabulary=VOCAB)


@dataclass
class Running:
    """A server under way."""

    url: str
    engine: FakeEngine
    loop: asyncio.AbstractEventLoop
    service: Service
    shutdown: Shutdown
    thread: threading.Thread
    ended: list[Ended | BaseException] = field(default_factory=list)
    to_finish: list[int] = field(default_factory=list)  # as it was told when it was to end

    def terminate(self) -> None:
        """As a SIGTERM does."""
        self.loop.call_soon_threadsafe(self.shutdown.ask)

    def result(self) -> Ended:
        """Waits for its end."""
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "the server does not end"
        (ended,) = self.ended
        if isinstance(ended, BaseException):
            raise ended
        return ended

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits for what another thread brings about."""
        pause, given_up = threading.Event(), time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < given_up, "it does not come about"
            pause.wait(0.002)


@contextmanager
def serving(
    engine: Any = None,
    *,
    open_engine: Callable[[], EngineLike] | None = None,
    room: int = 16,
    limits: ApiLimits = ApiLimits(),
    keys: ApiKeys | None = None,
    answers: Callable[[], KeptAnswers] = KeptAnswers,
    require_key: bool = False,
    drain_s: float = WAIT_S,
    codec: Codec | None = None,
    context: int = 512,
) -> Iterator[Running]:
    engine = engine if engine is not None else FakeEngine()
    listening = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    made: list[Running] = []
    started = threading.Event()

    async def main() -> Ended:
        served = Served(MODEL, 1, context, "test")
        metrics = ServingMetrics(MODEL, lambda: service.stats, context)
        service = Service(open_engine or (lambda: engine), codec or tiny_codec(), room=room, observer=metrics)
        api = Api(service, served, metrics, limits, keys or ApiKeys([]), answers(), require_key)
        shutdown = Shutdown()
        loop = asyncio.get_running_loop()
        made.append(Running(url, engine, loop, service, shutdown, threading.current_thread()))
        if open_engine is not None:  # the test watches it open
            started.set()
        app = make_app(api)
        return await serve(
            app,
            service,
            listening,
            drain_s=drain_s,
            shutdown=shutdown,
            limits=limits,
            loaded=started.set,
            draining=made[0].to_finish.append,
        )

    def run() -> None:
        try:
            ended.append(asyncio.run(main()))
        except BaseException as error:
            ended.append(error)
        finally:
            started.set()

    ended: list[Ended | BaseException] = []
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(WAIT_S)
    running = made[0]
    running.ended = ended
    try:
        yield running
    finally:
        if isinstance(engine, FakeEngine):
            engine.free()
        if thread.is_alive():
            running.terminate()
            running.terminate()
        thread.join(WAIT_S)


def series(page: str) -> dict[tuple[str, str], float]:
    """(name, finished_reason or status or '') -> value, of a metrics page; buckets left out."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                labels = sample.labels
                key = labels.get("finished_reason") or labels.get("status") or ""
                found[sample.name, key] = sample.value
    return found
