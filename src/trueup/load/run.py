"""One load on a server, always recorded: finished, failed or interrupted, with what was measured by then."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trueup.analysis.load_server import NO_METRICS_EVENT, SERVER_METRICS_EVENT
from trueup.schema import (
    InputError,
    Measurement,
    RequestResult,
    Sample,
    SpanName,
    TrueupError,
)
from trueup.schema.counting import counted, counted_as

from .address import Address, ServedModel, served_model
from .client import Ask, Target, key_header, open_client, send
from .drive import closed_load, open_load
from .progress import Progress, Tell
from .prompts import PROBE_WORDS, FilePrompt, WordCost, cost_of, text_of
from .record import Ending, LoadOutcome, Recording
from .scrape import Snapshot, scrape
from .server import OwnServer
from .settings import LoadSettings, Plan, instants_of
from .trace import Trace, length_scale

if TYPE_CHECKING:
    import httpx

PROBES_HAVE_TOKENS = 1
RESERVE_TOKENS = 64  # of the context: what a chat template may add, where the server tells no counts
LOOK_EVERY_S = 1.0  # at the server's metrics
LOOKS = 3  # before and after the load, where a server that is at its limit does not answer at once
_ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class LoadJob:
    """What to do. `length_scale` of the settings None: as large as the server's context allows, 1 at most;
    `context` overrides what the server tells. `own` is a server to start and end."""

    settings: LoadSettings
    address: Address
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    context: int | None = None
    trace: Trace | None = None
    prompts: list[FilePrompt] | None = None
    own: OwnServer | None = None
    ready_within_s: float = 600.0
    given: Mapping[str, Measurement] = field(default_factory=dict)


def execute(
    job: LoadJob,
    recording: Recording,
    *,
    sampling: Callable[[Recording], AbstractContextManager[object]] = lambda _: nullcontext(),
    transport: httpx.AsyncBaseTransport | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    tell: Tell = lambda _: None,
) -> LoadOutcome:
    """Put the load on the server and emit its record. Never raises for what ends a load: see the outcome.

    `tell` is told how far it is; `sampling` reads sensors beside it; `transport` and `loop_factory` stand in
    for network and clock.
    """
    recording.tell()
    ending: Ending | None = None
    try:
        with sampling(recording), asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_interruptible(_Load(job, recording, tell).run(transport), recording))
    except _InterruptedError as error:
        ending = Ending("interrupted", f"{error} received {recording.progress()}")
    except TrueupError as error:
        ending = Ending("failed", str(error), error)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        ending = Ending("failed", f"a fault of trueup's own: {why}", error)
    with _deaf():
        return recording.conclude(ending)


@contextmanager
def _deaf() -> Iterator[None]:
    """Heed no signal: writing the record takes a moment, and is what an interrupt keeps."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _InterruptedError(Exception):
    """A signal asked for the end."""


async def _interruptible(work: Awaitable[None], recording: Recording) -> None:
    """The work, ended in good order by SIGINT or SIGTERM: what is in flight is given up and recorded."""
    task = asyncio.ensure_future(work)
    received: list[str] = []

    def caught(number: signal.Signals) -> None:
        received.append(number.name)
        task.cancel()

    with _signals(caught):
        try:
            await task
        except asyncio.CancelledError:
            if not received:
                raise
            raise _InterruptedError(received[0]) from None


@contextmanager
def _signals(caught: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Nothing on a thread that gets no signals, or a loop that knows none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _ENDING}
    with contextlib.suppress(NotImplementedError):
        for number in _ENDING:
            loop.add_signal_handler(number, caught, number)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


class _Load:
    """The load as it goes on: find the server, learn what a word costs there, warm up, measure."""

    def __init__(self, job: LoadJob, recording: Recording, tell: Tell) -> None:
        self._job = job
        self._tell = tell
        self._recording = recording
        self._timeline = recording.timeline
        self._settings = job.settings

    async def run(self, transport: httpx.AsyncBaseTransport | None) -> None:
        span, own = self._timeline.span, ExitStack()
        try:
            with span(SpanName.LOAD):
                client = open_client(transport)
                own.enter_context(self._job.own or nullcontext())
            async with client as http:
                await self._run(http)
        finally:
            with span(SpanName.LOAD):
                own.close()

    async def _run(self, http: httpx.AsyncClient) -> None:
        span = self._timeline.span
        with span(SpanName.LOAD):
            served = await self._find(http)
        target = self._target(served)
        with span(SpanName.WARM_UP):
            cost = await self._word_cost(http, target)
        with span(SpanName.PREPARE):
            plan = self._plan(served, cost)
            due = instants_of(self._settings, self._job.trace) if self._settings.open else []
        with span(SpanName.WARM_UP):
            await self._warm_up(http, target, plan)
        with span(SpanName.REQUESTS):
            async with self._watched(http):
                await self._measure(http, target, plan, due)

    async def _find(self, http: httpx.AsyncClient) -> ServedModel:
        job = self._job
        if job.own is not None:
            await job.own.ready(http, f"{job.address.root}/ready", job.ready_within_s)
        served = await served_model(http, job.address, job.model, key_header(job.api_key))
        self._recording.found(served, job.context)
        return served

    def _target(self, served: ServedModel) -> Target:
        settings = self._settings
        return Target(
            base_url=self._job.address.base_url,
            model=served.name,
            chat=settings.chat,
            timeout_s=settings.timeout_s,
            ignore_eos=settings.ignore_eos,
            api_key=self._job.api_key,
            temperature=settings.temperature,
        )

    async def _word_cost(self, http: httpx.AsyncClient, target: Target) -> WordCost:
        """Found by asking the server, where prompts are made here; the probes show too whether it answers."""
        if self._job.prompts is not None:
            return WordCost(told="the prompts were given")
        counts: dict[int, int | None] = {}
        for number, words in enumerate(PROBE_WORDS):
            text = text_of(words, -1 - self._settings.seed, -1 - number)
            probe = Ask(-1 - number, text, None, PROBES_HAVE_TOKENS, warm_up=True)
            result = await self._send(http, target, probe)
            if result.error not in (None, "empty"):  # one token may be one without text
                hint = "; --no-ignore-eos leaves out a key that only some servers know"
                said = f"the server does not answer a first request: {result.reason}"
                raise TrueupError(said + hint if "ignore_eos" in said else said)
            counts[words] = result.prompt_tokens
        cost = cost_of(counts)
        self._recording.choose("prompt_words", f"{counted_as(f'{cost.each:g}', 'token')} a word", cost.told)
        if not cost.exact:
            self._timeline.event("warning", f"prompts have near, not exact lengths: {cost.told}")
        return cost

    def _plan(self, served: ServedModel, cost: WordCost) -> Plan:
        """With the lengths scaled to fit, and the scale told."""
        job, settings = self._job, self._settings
        if job.trace is not None and settings.length_scale is None:
            context = job.context or served.context
            if context is None:
                raise InputError(
                    "the server does not tell its context, so the trace's lengths cannot be made to fit: "
                    "give --context TOKENS, or --length-scale 1 to take them as they are"
                )
            reserve = RESERVE_TOKENS if not cost.exact else max(2, round(cost.overhead + cost.each))
            scale = length_scale(job.trace.rows, context, reserve)
            settings = settings.model_copy(update={"length_scale": scale})
            why = f"the longest request of the trace, in a context of {context} tokens"
            self._recording.choose("length_scale", f"{scale:.6g}", why)
        self._settings = settings
        self._recording.settle(settings)
        return Plan(settings, cost, job.trace, job.prompts)

    async def _warm_up(self, http: httpx.AsyncClient, target: Target, plan: Plan) -> None:
        """The load's first lengths with other texts, all at once; kept out of every figure."""
        asks = [plan.ask(index, warm_up=True) for index in range(self._settings.warm_up)]
        progress = Progress()
        async with progress.told(self._tell, "warming up", lambda: len(asks)):
            sending = (progress.through(self._send(http, target, ask)) for ask in asks)
            results = await asyncio.gather(*sending)
        for result in results:
            self._recording.request(result)
        failed = [result for result in results if result.error is not None]
        if failed:
            told = f"{len(failed)} of {counted(len(asks), 'warm-up request')} failed"
            why = f"{told}; the first: {failed[0].reason}"
            self._timeline.event("warning", why)

    async def _measure(self, http: httpx.AsyncClient, target: Target, plan: Plan, due: list[float]) -> None:
        progress = Progress()
        async with progress.told(self._tell, "under load", lambda: self._recording.planned):
            await self._put(http, target, plan, due, progress)

    async def _put(
        self, http: httpx.AsyncClient, target: Target, plan: Plan, due: list[float], progress: Progress
    ) -> None:
        settings, now, took = self._settings, self._timeline.now, self._recording.request

        async def sent(ask: Ask, due_s: float) -> RequestResult:
            return await progress.through(send(http, target, ask, due_s, now))

        if settings.open:
            self._recording.planned = len(due)
            await open_load((plan.ask(n, at_s) for n, at_s in enumerate(due)), sent, took, now)
            return
        self._recording.planned = settings.requests
        first = settings.concurrency or 1
        in_flight = (first, settings.concurrency_end or first)
        asks = (plan.ask(n) for n in itertools.count())
        await closed_load(asks, sent, took, now, in_flight, settings.requests, settings.duration_s)

    async def _send(self, http: httpx.AsyncClient, target: Target, ask: Ask) -> RequestResult:
        return await send(http, target, ask, self._timeline.now(), self._timeline.now)

    @asynccontextmanager
    async def _watched(self, http: httpx.AsyncClient) -> AsyncIterator[None]:
        """The server's metrics before, after, and each second in between; the end of a server of our own ends
        the load."""
        url = f"{self._job.address.root}/metrics"
        known = await self._look(http, url, "before")
        looking = asyncio.create_task(self._keep_looking(http, url)) if known else None
        body = asyncio.current_task()
        why: list[str] = []

        async def mourn(own: OwnServer) -> None:
            why.append(await own.ended())
            if body is not None:
                body.cancel()

        mourning = asyncio.create_task(mourn(self._job.own)) if self._job.own else None
        try:
            yield
        except asyncio.CancelledError:
            if why:
                raise TrueupError(why[0]) from None
            raise
        finally:
            for task in filter(None, (looking, mourning)):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            if known and not why:
                await self._look(http, url, "after")

    async def _look(self, http: httpx.AsyncClient, url: str, when: str) -> bool:
        found = await scrape(http, url, LOOKS)
        if isinstance(found, str):
            self._timeline.event(NO_METRICS_EVENT, found)
            return False
        self._timeline.event(
            SERVER_METRICS_EVENT,
            f"the server's counters {when} the load",
            when=when,
            counters=found.counters,
            states=found.states,
            memory=found.memory,
        )
        return True

    async def _keep_looking(self, http: httpx.AsyncClient, url: str) -> None:
        while True:
            found = await scrape(http, url)
            if isinstance(found, Snapshot) and found.states:
                self._recording.sample(Sample(at_s=self._timeline.now(), values=dict(found.states)))
            await asyncio.sleep(LOOK_EVERY_S)
