"""The engine in its thread: who waits, who leaves, and what they hear when it goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from api_server import WAIT_S, tiny_codec
from engine_fakes import engine_of, plan_of
from fake_engine import FakeEngine, says, without_end
from hypothesis import given
from hypothesis import strategies as st

from trueup.schema import InputError
from trueup.serve.admission import (
    LATELY,
    LONGEST_WAIT_S,
    BusyError,
    DrainingError,
    Finishes,
    NotReadyError,
    ServiceError,
)
from trueup.serve.engine_thread import TROUBLE_S, Ask
from trueup.serve.protocols import Finished
from trueup.serve.request import Output, RefusedError, Sampling
from trueup.serve.service import Answer, Service

Test = Callable[[Service, FakeEngine], Coroutine[Any, Any, None]]


def with_service(test: Test, engine: FakeEngine | None = None, **options: Any) -> None:
    engine = engine if engine is not None else FakeEngine()

    async def main() -> None:
        service = Service(lambda: engine, tiny_codec(), room=options.pop("room", 8), **options)
        service.start()
        try:
            async with asyncio.timeout(WAIT_S):
                await service.loaded()
                await test(service, engine)
        finally:
            engine.free()
            assert await service.close(WAIT_S), "the engine's thread did not end"

    asyncio.run(main())


def ask(max_tokens: int = 50, prompt: bytes = b"hi", **options: Any) -> Ask:
    return Ask(tuple(prompt), Sampling(max_tokens=max_tokens), **options)


async def text_of(answer: Answer) -> str:
    return "".join([piece.text async for piece in answer])


async def until(holds: Callable[[], bool]) -> None:
    """For what the engine's thread brings about."""
    while not holds():
        await asyncio.sleep(0)


def test_an_answer_streams_to_its_end() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        (answer,) = await service.submit([ask()])
        pieces = [piece async for piece in answer]
        assert "".join(piece.text for piece in pieces) == "Hello, world."
        assert [piece.finish for piece in pieces] == [*[None] * (len(pieces) - 1), "stop"]
        assert pieces[-1].count == len("Hello, world.") + 1
        assert service.under_way == 0

    with_service(test)


def test_requests_reach_the_engine_in_the_order_they_came() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        answers = [await service.submit([ask(prompt=bytes([n]))]) for n in range(6)]
        await asyncio.gather(*(text_of(answer) for (answer,) in answers))
        assert [request.prompt for request in engine.requests] == [(n,) for n in range(6)]

    with_service(test, FakeEngine(rows=2))


def test_a_stop_string_ends_the_request_before_another_step() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        (answer,) = await service.submit([ask(stops=(", w",))])
        assert await text_of(answer) == "Hello"
        assert service.stats is not None
        assert service.stats.steps == len("Hello, w")
        assert not engine.has_work

    with_service(test)


def test_a_cancelled_answer_gives_its_blocks_back() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        (answer,) = await service.submit([ask(400)])
        engine.let(3)
        await until(lambda: service.stats is not None and service.stats.blocks_used > 0)
        answer.cancel()
        engine.let(1)
        await until(lambda: service.stats is not None and service.stats.blocks_used == 0)
        assert service.under_way == 0

    with_service(test, FakeEngine(script=without_end, held=True))


def test_one_that_leaves_while_it_waits_is_never_computed() -> None:
    in_step, go_on = threading.Event(), threading.Event()

    class Held(FakeEngine):
        def step(self) -> list[Output]:
            in_step.set()
            assert go_on.wait(WAIT_S)
            return super().step()

    async def test(service: Service, engine: FakeEngine) -> None:
        (first,) = await service.submit([ask()])
        assert await asyncio.to_thread(in_step.wait, WAIT_S)
        waiting = asyncio.create_task(service.submit([ask(prompt=b"later")]))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        go_on.set()
        assert await text_of(first) == "Hello, world."
        assert service.under_way == 0
        assert all(request.prompt != tuple(b"later") for request in engine.requests)

    with_service(test, Held())


def test_more_than_there_is_room_for_are_told_when_to_come_back() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        answers = await service.submit([ask(), ask()])
        with pytest.raises(BusyError) as busy:
            await service.submit([ask()])
        assert busy.value.retry_after_s >= 1
        engine.free()
        for answer in answers:
            await text_of(answer)
        assert await text_of((await service.submit([ask()]))[0]) == "Hello, world."

    with_service(test, FakeEngine(held=True), room=2)


def test_all_of_a_request_are_taken_or_none() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        with pytest.raises(BusyError):
            await service.submit([ask(), ask(), ask()])
        with pytest.raises(RefusedError):
            await service.submit([ask(), ask(9999)])
        await until(lambda: not engine.has_work)
        assert service.under_way == 0

    with_service(test, room=2)


def test_what_can_never_fit_is_refused_with_what_it_needs() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        with pytest.raises(RefusedError) as refused:
            await service.submit([ask(max_tokens=600)])
        assert (refused.value.needs, refused.value.has) == (602, 512)

    with_service(test)


def test_an_engine_that_dies_leaves_nobody_waiting() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        answers = await service.submit([ask(), ask()])
        engine.broken = RuntimeError("the device is gone")
        engine.free()
        for answer in answers:
            with pytest.raises(ServiceError, match="the device is gone"):
                await text_of(answer)
        assert service.state == "failed"
        with pytest.raises(ServiceError, match="the device is gone"):
            await service.submit([ask()])
        assert service.under_way == 0

    with_service(test, FakeEngine(held=True))


def test_a_failed_step_ends_its_requests_and_no_others() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        engine.fails = "out of memory"
        with pytest.raises(ServiceError, match="out of memory"):
            await text_of((await service.submit([ask()]))[0])
        assert service.trouble == "out of memory"
        engine.fails = None
        assert await text_of((await service.submit([ask()]))[0]) == "Hello, world."
        assert service.trouble is None
        assert service.state == "ready"

    with_service(test)


def test_a_request_that_gets_no_token_is_no_trouble_of_the_service() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        engine.spoilt = "its logits are not finite"
        with pytest.raises(ServiceError, match="not finite"):
            await text_of((await service.submit([ask()]))[0])
        assert service.trouble is None

    with_service(test)


def test_trouble_that_no_step_follows_is_over_after_a_while() -> None:
    now = 0.0

    async def test(service: Service, engine: FakeEngine) -> None:
        nonlocal now
        engine.fails = "out of memory"
        with pytest.raises(ServiceError, match="out of memory"):
            await text_of((await service.submit([ask()]))[0])
        assert service.trouble == "out of memory"
        now = TROUBLE_S
        assert service.trouble is None

    with_service(test, clock=lambda: now)


def test_an_engine_that_cannot_be_opened_for_what_was_asked_says_that_alone() -> None:
    def broken() -> FakeEngine:
        raise InputError("the folder is empty")

    async def main() -> None:
        service = Service(broken, tiny_codec(), room=1)
        service.start()
        with pytest.raises(InputError, match=r"^the folder is empty$"):
            await service.loaded()
        await service.close(WAIT_S)

    asyncio.run(main())


def test_an_engine_that_cannot_be_opened_says_why() -> None:
    def broken() -> FakeEngine:
        raise OSError("no such file")

    async def main() -> None:
        service = Service(broken, tiny_codec(), room=1)
        with pytest.raises(NotReadyError):
            await service.submit([ask()])
        service.start()
        with pytest.raises(ServiceError, match="OSError: no such file"):
            await service.loaded()
        assert await service.close(WAIT_S)

    asyncio.run(main())


def test_draining_finishes_what_was_accepted_and_takes_nothing_new() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        (answer,) = await service.submit([ask()])
        service.drain()
        with pytest.raises(DrainingError):
            await service.submit([ask()])
        engine.free()
        assert await text_of(answer) == "Hello, world."
        await service.idle()

    with_service(test, FakeEngine(held=True))


def test_what_is_cut_off_hears_of_it() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        (answer,) = await service.submit([ask()])
        assert service.abandon("time is up") == 1
        with pytest.raises(DrainingError, match="time is up"):
            await text_of(answer)
        await service.idle()

    with_service(test, FakeEngine(held=True))


class Told:
    """An observer that writes down what it hears."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.counts: list[int] = []
        self.over: list[Finished] = []

    def first_token(self, after_s: float, prompt_tokens: int) -> None:
        self.first.append(after_s)

    def tokens(self, count: int, after_s: float | None) -> None:
        self.counts.append(count)

    def finished(self, request: Finished) -> None:
        self.over.append(request)


def test_each_request_has_one_first_token_and_one_end() -> None:
    told = Told()

    async def test(service: Service, engine: FakeEngine) -> None:
        answers = await service.submit([ask(), ask(5), ask(stops=("o",)), ask()])
        answers[3].cancel()
        await until(lambda: bool(told.over))
        engine.free()
        for answer in answers[:3]:
            await text_of(answer)
        await until(lambda: len(told.over) == 4)
        assert len(told.first) == 3
        assert sorted(one.how for one in told.over) == ["abort", "length", "stop", "stop"]
        assert sum(told.counts) == sum(one.generated_tokens for one in told.over) == 14 + 5 + 5

    with_service(test, FakeEngine(held=True), observer=told)


def test_a_preempted_request_has_its_first_token_once() -> None:
    """vllm#8115, vllm#16832."""
    told, plan = Told(), plan_of(usable=12, rows=4)
    engine = engine_of(plan)

    async def main() -> None:
        service = Service(lambda: engine, tiny_codec(), room=8, observer=told)
        service.start()
        await service.loaded()
        sampling = Sampling(30, seed=1, ignore_eos=True)
        answers = await service.submit([Ask((ord(name),) * 9, sampling) for name in "abcd"])
        counts = [[piece.count async for piece in answer] for answer in answers]
        assert await service.close(WAIT_S)
        assert [count[-1] for count in counts] == [30] * 4

    asyncio.run(main())
    assert engine.stats().preemptions > 0
    assert len(told.first) == 4
    assert sum(told.counts) == 4 * 30


def test_times_are_of_the_services_own_clock() -> None:
    told, now = Told(), iter(range(1000))

    async def test(service: Service, engine: FakeEngine) -> None:
        await text_of((await service.submit([ask(arrived=-10.0)]))[0])
        (over,) = told.over
        assert told.first == [10.0 + over.e2e_s - 10.0 - 3]  # tokens at 0, 1, 2; the end read at 3
        assert over.decode_s == 2
        assert over.per_token_s == 1

    engine = FakeEngine(script=says("ab"))
    with_service(test, engine, observer=told, clock=lambda: float(next(now)))


class WaitingEngine(FakeEngine):
    """Each of its requests waited 5 s before it was begun."""

    def step(self) -> list[Output]:
        return [replace(one, waited_s=5.0) for one in super().step()]


def test_the_time_before_the_first_token_is_told_as_queue_and_prefill() -> None:
    told, now = Told(), iter(range(1000))

    async def test(service: Service, engine: FakeEngine) -> None:
        await text_of((await service.submit([ask(arrived=-10.0)]))[0])
        (over,) = told.over
        assert over.queue_s is not None
        assert over.prefill_s is not None
        assert over.queue_s + over.prefill_s == told.first[0]
        assert over.queue_s >= 10.0 + 5.0

    with_service(test, WaitingEngine(script=says("ab")), observer=told, clock=lambda: float(next(now)))


def test_of_an_engine_that_does_not_tell_neither_is_known() -> None:
    told = Told()

    async def test(service: Service, engine: FakeEngine) -> None:
        await text_of((await service.submit([ask()]))[0])
        assert (told.over[0].queue_s, told.over[0].prefill_s) == (None, None)

    with_service(test, observer=told)


def test_a_service_with_nothing_to_do_ends_at_once() -> None:
    async def test(service: Service, engine: FakeEngine) -> None:
        assert service.stats is not None

    with_service(test)


# --- when to come back --------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 100), max_size=80), st.integers(1, 500))
def test_the_time_to_come_back_is_that_of_so_many_ends_as_lately(gaps: list[float], answers: int) -> None:
    finishes, now = Finishes(), 0.0
    for gap in gaps:
        now += gap
        finishes.note(now)
    lately = gaps[1:][-(LATELY - 1) :]
    expected = answers * sum(lately) / len(lately) if lately else 1
    assert finishes.retry_after_s(answers) == pytest.approx(min(max(expected, 1), LONGEST_WAIT_S), abs=1.001)


def test_before_anything_ended_the_time_to_come_back_is_a_moment() -> None:
    assert Finishes().retry_after_s(1000) == 1
