"""What fails: steps that raise, memory that runs out, numbers that are none. The engine lives on, and nobody
else notices."""

from __future__ import annotations

import math
import random

import pytest
import torch
from engine_fakes import (
    SPOILT,
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

from trueup.model.step_batch import StepBatch
from trueup.schema import TrueupError
from trueup.serve.request import Request, Sampling


def test_a_runner_that_raises_ends_that_steps_requests_with_the_reason_and_no_others() -> None:
    plan = plan_of()
    runner = FailingRunner(plan, RuntimeError("the device is lost"))
    engine = engine_of(plan, runner)
    engine.add(Request("hit", (1, 2, 3), Sampling(9, 0.0, ignore_eos=True)))
    runner.fails = lambda batch: True
    [output] = drain(engine)
    assert (output.finish, output.tokens) == ("error", ())
    assert output.reason == "a step of 1 request failed: RuntimeError: the device is lost"
    runner.fails = lambda batch: False
    after = greedy("after", [1, 2, 3])
    engine.add(after)
    assert answers(drain(engine))["after"] == answer_alone(after)
    stats = engine.stats()
    assert (stats.failed_steps, stats.blocks_used) == (1, 0)


def test_what_a_failed_step_wrote_is_never_served_from_the_prefix_cache() -> None:
    plan = plan_of(chunk=16)
    runner = FailingRunner(plan, RuntimeError("broken"))
    engine = engine_of(plan, runner)
    runner.fails = lambda batch: int(batch.lengths_B.max()) > 16  # the second chunk
    prompt = tuple(range(1, 31))
    engine.add(Request("hit", prompt, Sampling(4, 0.0)))
    assert drain(engine)[-1].finish == "error"
    runner.fails = lambda batch: False
    again = greedy("again", prompt)
    engine.add(again)
    outputs = drain(engine)
    assert outputs[0].cached_tokens == 16
    assert answers(outputs)["again"] == answer_alone(again)


def test_a_runner_of_wrong_logits_is_told_so() -> None:
    plan = plan_of()
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner)
    runner.run = lambda batch: torch.zeros(3)  # type: ignore[method-assign]
    engine.add(greedy("r", [1]))
    [output] = drain(engine)
    assert "gave logits of (3,) for 1 row" in (output.reason or "")


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_steps_that_fail_at_random_end_their_own_requests_and_leave_the_others_as_they_were(
    prefix_cache: bool,
) -> None:
    plan = plan_of(usable=30, rows=6, context=48, chunk=16)
    chance = random.Random(8)
    runner = FailingRunner(plan, RuntimeError("broken"))
    runner.fails = lambda batch: chance.random() < 0.03
    engine = engine_of(plan, runner, prefix_cache=prefix_cache)
    requests = random_requests(80, 9, longest=48)
    for request in requests:
        engine.add(request)
    told = answers(drain(engine))
    ends = [told[request.id][1] for request in requests]
    assert 0 < ends.count("error") < 60
    for request in requests:
        tokens, finish = told[request.id]
        whole, end = answer_alone(request)
        assert tokens == whole[: len(tokens)]
        assert finish == "error" or (tokens, finish) == (whole, end)
    assert engine.stats().blocks_used == 0


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("no room"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_memory_that_runs_out_in_decoding_makes_batches_smaller_and_loses_nothing(error: Exception) -> None:
    plan = plan_of(rows=8)
    runner = FailingRunner(plan, error)
    runner.fails = lambda batch: batch.shape[1] == 1 and batch.shape[0] > 2
    engine = engine_of(plan, runner)
    requests = [Request(name, (ord(name),) * 5, Sampling(6, seed=1, ignore_eos=True)) for name in "abcdefgh"]
    for request in requests:
        engine.add(request)
    assert answers(drain(engine)) == {request.id: answer_alone(request) for request in requests}
    assert engine.stats().rows_allowed == 2


def test_memory_that_runs_out_over_a_prompt_makes_chunks_smaller_and_loses_nothing() -> None:
    plan = plan_of(chunk=64)
    runner = FailingRunner(plan, torch.OutOfMemoryError("no room"))
    runner.fails = lambda batch: batch.shape[0] * batch.shape[1] > 16
    engine = engine_of(plan, runner)
    requests = [greedy(f"{length}", range(1, length)) for length in (12, 13, 14, 80)]
    for request in requests:
        engine.add(request)
    assert answers(drain(engine)) == {request.id: answer_alone(request) for request in requests}
    assert engine.stats().failed_steps == 2


def test_memory_too_small_for_one_row_ends_that_request_with_the_reason() -> None:
    plan = plan_of()
    runner = FailingRunner(plan, torch.OutOfMemoryError("no room"))
    runner.fails = lambda batch: True
    engine = engine_of(plan, runner)
    engine.add(greedy("r", range(1, 30)))
    outputs = drain(engine)
    assert outputs[-1].finish == "error"
    assert "OutOfMemoryError: no room" in (outputs[-1].reason or "")


class Broken(ContextRunner):
    """Numbers overflow from the 13th token on in contexts that begin with 33: logits and what is kept."""

    bad = math.nan

    def run(self, batch: StepBatch) -> torch.Tensor:
        logits_BV = super().run(batch).clone()
        for row in range(batch.shape[0]):
            if batch.lengths_B[row] > 12 and self.context(batch, row)[0] == 33:
                logits_BV[row, 7] = self.bad
                self.slots[batch.slots_BQ[row].numpy()] = SPOILT
        return logits_BV


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_end_the_request_and_never_become_token_0(bad: float) -> None:
    """vllm#14126, vllm#13035."""
    plan = plan_of()
    runner = Broken(plan)
    runner.bad = bad
    engine = engine_of(plan, runner)
    whole = Request("whole", (1, 2, 3), Sampling(15, 0.0, ignore_eos=True))
    engine.add(Request("broken", (33,) * 10, Sampling(15, 0.0, ignore_eos=True)))
    engine.add(whole)
    outputs = drain(engine)
    told = answers(outputs)
    assert (len(told["broken"][0]), told["broken"][1]) == (3, "error")
    reason = next(output.reason for output in outputs if output.finish == "error")
    assert "after token 13 are not finite" in (reason or "")
    assert told["whole"] == answer_alone(whole)


def test_blocks_of_a_request_that_overflowed_are_cleared_before_another_has_them() -> None:
    """The fake runner fails where a table names a block with anything spoilt in it."""
    plan = plan_of(usable=8, rows=2)
    engine = engine_of(plan, Broken(plan))
    for turn in range(6):
        engine.add(Request(f"broken-{turn}", (33, *range(1, 20 + turn % 3)), Sampling(4, 0.0)))
        good = Request(f"good-{turn}", tuple(range(turn + 1, turn + 20)), Sampling(9, 0.0, ignore_eos=True))
        engine.add(good)
        told = answers(drain(engine))
        assert told[f"broken-{turn}"] == ((), "error")
        assert told[good.id] == answer_alone(good)


def test_a_warm_up_that_fails_for_another_reason_gives_no_advice_about_memory() -> None:
    plan = plan_of()
    runner = FailingRunner(plan, RuntimeError("sizes do not match"))
    runner.fails = lambda batch: True
    with pytest.raises(TrueupError, match=r"failed: RuntimeError: sizes do not match$"):
        engine_of(plan, runner).warm_up()


def test_a_warm_up_that_fails_names_the_shape_and_what_to_plan() -> None:
    plan = plan_of()
    runner = FailingRunner(plan, torch.OutOfMemoryError("no room"))
    runner.fails = lambda batch: True
    with pytest.raises(TrueupError, match=r"warm-up: .* of \(\d+, \d+, \d+\) failed: .*no room; plan fewer"):
        engine_of(plan, runner).warm_up()
