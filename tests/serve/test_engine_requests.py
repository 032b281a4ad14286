"""What can befall a request: it stops, is cancelled, shares a prefix, is refused."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from engine_fakes import (
    EOS,
    ContextRunner,
    FailingRunner,
    answer_alone,
    answers,
    drain,
    engine_of,
    greedy,
    plan_of,
)
from test_engine_pool import random_requests

from trueup.schema import InputError
from trueup.serve.engine import Engine
from trueup.serve.request import Output, Request, Sampling


class Scripted(ContextRunner):
    """The likeliest token is the number of tokens before it, so that a test can say where an answer ends."""

    def logits(self, context: list[int]) -> torch.Tensor:
        return torch.eye(50)[len(context) % 50] * 9


def finished(request: Request) -> Output:
    plan = plan_of()
    engine = engine_of(plan, Scripted(plan))
    engine.add(request)
    outputs = drain(engine)
    tokens = tuple(token for output in outputs for token in output.tokens)
    return Output(request.id, tokens, outputs[-1].finish, outputs[-1].prompt_tokens, 0)


def ids(output: Output) -> list[int]:
    return [token.id for token in output.tokens]


def test_a_stop_token_ends_the_answer_and_is_its_last() -> None:
    output = finished(Request("r", (1, 1, 1), Sampling(20, 0.0, stop_token_ids=(6,))))
    assert (ids(output), output.finish) == ([3, 4, 5, 6], "stop")


def test_the_models_own_end_stops_the_answer_unless_ignored() -> None:
    prompt = (1,) * 48
    assert ids(finished(Request("r", prompt, Sampling(5, 0.0)))) == [48, 49, EOS]
    ignoring = finished(Request("r", prompt, Sampling(5, 0.0, ignore_eos=True)))
    assert (ids(ignoring), ignoring.finish) == ([48, 49, 0, 1, 2], "length")


def test_the_answer_ends_at_max_tokens() -> None:
    output = finished(Request("r", (1, 1), Sampling(3, 0.0)))
    assert (ids(output), output.finish, output.prompt_tokens) == ([2, 3, 4], "length", 2)


def test_a_token_that_is_both_the_last_allowed_and_a_stop_is_a_stop() -> None:
    assert finished(Request("r", (1, 1), Sampling(3, 0.0, stop_token_ids=(4,)))).finish == "stop"


def test_a_drawn_seed_is_told_and_gives_the_same_answer_again() -> None:
    plan = plan_of()
    engine = engine_of(plan)
    first = engine.add(Request("a", (1, 2, 3), Sampling(20, ignore_eos=True)))
    assert first.sampling.seed is not None
    again = Request("b", (1, 2, 3), first.sampling)
    engine.add(again)
    told = answers(drain(engine))
    assert told["a"] == told["b"] == answer_alone(first)


@pytest.mark.parametrize("after", range(0, 14, 2))
def test_a_request_cancelled_at_any_point_ends_and_returns_its_blocks(after: int) -> None:
    engine = engine_of(plan_of(usable=20, rows=2))
    engine.add(Request("other", (9, 9), Sampling(12, 0.0, ignore_eos=True)))
    engine.add(Request("gone", tuple(range(1, 41)), Sampling(20, 0.0, ignore_eos=True)))
    engine.add(Request("queued", (4, 4), Sampling(3, 0.0, ignore_eos=True)))
    outputs: list[Output] = []
    for _ in range(after):
        outputs += engine.step()
    engine.cancel("gone")
    assert engine.has_work
    outputs += drain(engine)
    told = answers(outputs)
    assert told["gone"][1] == "cancelled"
    assert {name: finish for name, (_, finish) in told.items() if name != "gone"} == {
        "other": "length",
        "queued": "length",
    }
    assert engine.stats().blocks_used == 0


def test_a_waiting_request_can_be_cancelled_and_an_unknown_one_is_nothing() -> None:
    engine = engine_of(plan_of(rows=1))
    engine.add(greedy("runs", [1], 5))
    engine.add(greedy("waits", [2], 5))
    engine.step()
    engine.cancel("waits")
    engine.cancel("waits")
    engine.cancel("never came")
    told = answers(drain(engine))
    assert told["waits"] == ((), "cancelled")


def test_random_cancellations_under_pressure_leave_the_others_as_they_were() -> None:
    engine = engine_of(plan_of(usable=30, rows=6, context=48, chunk=16))
    chance = random.Random(4)
    requests = random_requests(150, 5, longest=48)
    outputs: list[Output] = []
    for request in requests:
        engine.add(request)
        outputs += engine.step()
        engine.cancel(f"r{chance.randrange(150)}")
    told = answers(outputs + drain(engine))
    assert len(told) == 150
    for request in requests:
        tokens, finish = told[request.id]
        whole, end = answer_alone(request)
        assert tokens == whole[: len(tokens)]
        assert finish == "cancelled" or (tokens, finish) == (whole, end)
    assert engine.stats().blocks_used == 0


def test_a_common_beginning_is_computed_once_and_told_as_cached() -> None:
    plan = plan_of()
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner)
    first, second = greedy("first", range(1, 25)), greedy("second", [*range(1, 21), 40, 41])
    engine.add(first)
    drain(engine)
    engine.add(second)
    outputs = drain(engine)
    assert {output.cached_tokens for output in outputs} == {20}
    assert answers(outputs)["second"] == answer_alone(second)
    stats = engine.stats()
    assert (stats.prefix_tokens_asked, stats.prefix_tokens_hit) == (24 + 22, 20)


def test_a_next_turn_finds_the_answer_of_the_last_in_the_cache() -> None:
    engine = engine_of(plan_of())
    first = Request("first", tuple(range(1, 14)), Sampling(12, 0.0, ignore_eos=True))
    engine.add(first)
    tokens, _ = answers(drain(engine))["first"]
    turn = greedy("second", [*first.prompt, *(token.id for token in tokens), 5, 6])
    engine.add(turn)
    outputs = drain(engine)
    assert outputs[0].cached_tokens == 24  # all but the last token of the answer, in whole blocks
    assert answers(outputs)["second"] == answer_alone(turn)


def test_without_the_prefix_cache_nothing_is_cached() -> None:
    engine = engine_of(plan_of(), prefix_cache=False)
    for name in "ab":
        engine.add(greedy(name, range(1, 25)))
        assert {output.cached_tokens for output in drain(engine)} == {0}


def test_tokens_are_counted_as_useful_recomputed_or_padding() -> None:
    plan = plan_of(usable=12, rows=4)
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner, prefix_cache=False)
    requests = [Request(name, (ord(name),) * 9, Sampling(30, 0.0, ignore_eos=True)) for name in "abcd"]
    for request in requests:
        engine.add(request)
    drain(engine)
    stats = engine.stats()
    assert stats.useful_tokens == 4 * (9 + 30 - 1)
    assert stats.processed_tokens == sum(rows * new for rows, new, _ in runner.shapes)
    real = sum(
        int(batch.last_B[row]) + 1
        for batch in runner.batches
        for row in range(batch.shape[0])
        if batch.lengths_B[row]
    )
    assert stats.useful_tokens + stats.recomputed_tokens == real


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InputError, match="request r: an empty prompt"):
        engine_of(plan_of()).add(greedy("r", []))


def test_an_id_under_way_is_refused_and_may_come_again_later() -> None:
    engine = engine_of(plan_of())
    engine.add(greedy("r", [1]))
    with pytest.raises(InputError, match="request r: a request of that id is under way"):
        engine.add(greedy("r", [2]))
    drain(engine)
    engine.add(greedy("r", [2]))


def test_a_step_with_nothing_to_do_gives_nothing_and_runs_nothing() -> None:
    plan = plan_of()
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner)
    assert engine.step() == []
    assert not engine.has_work
    assert runner.shapes == []


def test_the_wall_clock_of_each_step_is_told_as_prefills_or_decodes() -> None:
    plan = plan_of(rows=1)
    runner = ContextRunner(plan)
    ticks = itertools.count()
    engine = Engine(runner, plan, eos_ids=frozenset({EOS}), clock=lambda: float(next(ticks)))
    engine.add(Request("a", (1,) * 70, Sampling(6, 0.0, ignore_eos=True)))
    drain(engine)
    decodes = sum(new == 1 for _, new, _ in runner.shapes)
    assert decodes == 5
    assert engine.stats().decode_s == decodes
    assert engine.stats().prefill_s == len(runner.shapes) - decodes


def test_a_request_tells_how_long_it_waited_for_its_first_admission() -> None:
    plan, ticks = plan_of(rows=1), itertools.count()
    engine = Engine(ContextRunner(plan), plan, eos_ids=frozenset({EOS}), clock=lambda: float(next(ticks)))
    engine.add(
        Request("a", (1, 2), Sampling(3, 0.0, ignore_eos=True))
    )  # at 0; its three steps begin at 2, 4, 6
    engine.add(Request("b", (1, 2), Sampling(1, 0.0, ignore_eos=True)))  # at 1; admitted in the step at 8
    outputs = drain(engine)
    assert {one.waited_s for one in outputs if one.request_id == "a"} == {2.0}
    assert {one.waited_s for one in outputs if one.request_id == "b"} == {7.0}


def test_steps_that_fail_have_their_seconds_too() -> None:
    plan = plan_of(rows=1)
    runner = FailingRunner(plan, RuntimeError("broken"))
    runner.fails = lambda batch: True
    ticks = itertools.count()
    engine = Engine(runner, plan, eos_ids=frozenset({EOS}), clock=lambda: float(next(ticks)))
    engine.add(greedy("a", range(1, 9)))
    drain(engine)
    assert engine.stats().prefill_s == 1
