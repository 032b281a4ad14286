"""Fairness: nobody waits for ever, prompts and answers take turns, the order of arrival holds."""

from __future__ import annotations

import pytest
from engine_fakes import (
    ContextRunner,
    FailingRunner,
    answer_alone,
    answers,
    drain,
    engine_of,
    greedy,
    plan_of,
)

from trueup.serve.engine import Engine
from trueup.serve.plan import ServingPlan
from trueup.serve.request import Output


def kinds(runner: ContextRunner) -> list[str]:
    return ["decode" if new == 1 else "prefill" for _, new, _ in runner.shapes]


def steps_until(engine: Engine, name: str) -> int:
    """Steps until `name` gets its next token."""
    for step in range(1, 10_000):
        if any(output.request_id == name and output.tokens for output in engine.step()):
            return step
    raise AssertionError(f"{name} gets nothing")


def test_a_long_prompt_delays_a_decoding_request_by_one_chunk_at_most() -> None:
    plan = plan_of(usable=300, context=1000)
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner)
    engine.add(greedy("talks", [1, 2, 3], 100))
    steps_until(engine, "talks")
    engine.add(greedy("long", range(1, 901), 5))
    waits = [steps_until(engine, "talks") for _ in range(20)]
    assert max(waits) == 2
    assert kinds(runner)[2:8] == ["prefill", "decode"] * 3


def test_decoding_requests_delay_a_prompt_by_one_step_a_chunk() -> None:
    plan = plan_of(usable=300, context=1000)
    engine = engine_of(plan)
    for name in "abc":
        engine.add(greedy(name, [1, 2, ord(name)], 400))
        steps_until(engine, name)
    engine.add(greedy("long", range(1, 322), 5))
    assert steps_until(engine, "long") <= 2 * (320 // 32 + 1) + 2


def test_requests_are_admitted_in_the_order_of_arrival_even_where_a_later_one_would_fit() -> None:
    engine = engine_of(plan_of(usable=20, rows=8))
    engine.add(greedy("holds", range(1, 49), 20))
    engine.step()
    engine.add(greedy("large", range(1, 61), 10))
    engine.add(greedy("small", [1, 2], 4))
    ends = [output.request_id for output in drain(engine) if output.finish]
    assert ends.index("holds") < ends.index("large")
    firsts: list[str] = []
    engine.add(greedy("holds", range(1, 49), 20))
    engine.step()
    engine.add(greedy("large", range(1, 61), 10))
    engine.add(greedy("small", [1, 2], 4))
    for output in drain(engine):
        if output.request_id not in firsts:
            firsts.append(output.request_id)
    assert firsts == ["holds", "large", "small"]


def test_the_youngest_is_preempted_and_comes_back_before_those_who_came_later() -> None:
    plan = plan_of(usable=12, rows=4)
    engine = engine_of(plan, prefix_cache=False)
    for name in "abc":
        engine.add(greedy(name, [ord(name)] * 12, 30))
    outputs: list[Output] = []
    while engine.stats().preemptions == 0:
        outputs += engine.step()
    engine.add(greedy("late", [5], 3))
    outputs += drain(engine)
    last = {output.request_id: at for at, output in enumerate(outputs) if output.finish}
    first_late = next(at for at, output in enumerate(outputs) if output.request_id == "late")
    assert last["a"] < last["c"]
    assert last["b"] < first_late


def test_a_stream_of_newcomers_never_starves_one_who_waits() -> None:
    engine = engine_of(plan_of(usable=16, rows=4))
    engine.add(greedy("large", range(1, 50), 12))
    served = False
    for at in range(400):
        engine.add(greedy(f"new-{at}", [at % 40 + 1] * 9, 6))
        served = served or any(output.request_id == "large" and output.finish for output in engine.step())
    assert served


def test_prompts_of_like_length_share_a_step() -> None:
    plan = plan_of(usable=64, chunk=64)
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner)
    for name in "abcd":
        engine.add(greedy(name, [ord(name)] * 14, 2))
    engine.step()
    assert runner.shapes == [(4, 16, 64)]


def test_a_short_prompt_is_not_padded_to_a_long_ones_chunk() -> None:
    plan = plan_of(usable=64, chunk=64)
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner)
    engine.add(greedy("long", range(1, 60), 2))
    engine.add(greedy("short", [1, 2, 3, 4], 2))
    engine.step()
    assert runner.shapes[0][:2] == (1, 64)


def test_measured_padding_stays_within_what_the_plan_tells() -> None:
    plan = plan_of(usable=200, rows=7, chunk=64)
    engine = engine_of(plan)
    for at in range(60):
        engine.add(greedy(f"r{at}", [at % 40 + 1] * (17 + 7 * at % 80), 1 + at % 9))
    assert len(answers(drain(engine))) == 60
    stats = engine.stats()
    padding = stats.processed_tokens - stats.useful_tokens - stats.recomputed_tokens
    assert padding >= 0
    worst = plan.worst_padding()
    assert padding / stats.processed_tokens <= max(worst["prefill_tokens"], worst["decode_rows"])


# --- prompts that begin alike -------------------------------------------------------------------------------


def test_a_common_beginning_of_prompts_that_come_together_is_computed_once() -> None:
    plan = plan_of(usable=200)
    engine = engine_of(plan)
    common = list(range(1, 42))
    requests = [greedy(name, [*common, ord(name) % 50], 3) for name in "abcd"]
    for request in requests:
        engine.add(request)
    outputs = drain(engine)
    assert answers(outputs) == {request.id: answer_alone(request) for request in requests}
    assert {output.request_id: output.cached_tokens for output in outputs} == {
        "a": 0,
        "b": 40,
        "c": 40,
        "d": 40,
    }
    stats = engine.stats()
    assert stats.prefix_tokens_hit == 3 * 40
    assert stats.useful_tokens == 42 + 3 * 2 + stats.generated_tokens - 4


def test_equal_prompts_that_come_together_leave_one_token_each_to_compute() -> None:
    engine = engine_of(plan_of(usable=200))
    requests = [greedy(name, range(1, 41), 2) for name in "abc"]
    for request in requests:
        engine.add(request)
    outputs = drain(engine)
    assert answers(outputs) == {request.id: answer_alone(request) for request in requests}
    assert [output.cached_tokens for output in outputs if output.finish] == [0, 36, 36]


def test_a_short_common_beginning_is_waited_for_and_not_the_rest_of_a_long_prompt() -> None:
    engine = engine_of(plan_of(usable=300, context=1000))
    engine.add(greedy("long", range(1, 901), 5))
    engine.add(greedy("short", [1, 2, 3, 4, 5, 6, 7, 8, 40, 41], 5))
    engine.step()
    assert engine.stats().running == 1
    engine.step()
    assert engine.stats().running == 2


def test_who_waits_for_a_common_beginning_goes_on_when_the_other_is_cancelled() -> None:
    engine = engine_of(plan_of(usable=300, context=1000))
    engine.add(greedy("gone", range(1, 901), 5))
    request = greedy("waits", range(1, 901), 5)
    engine.add(request)
    engine.step()
    assert engine.stats().waiting == 1
    engine.cancel("gone")
    outputs = drain(engine)
    assert answers(outputs)["waits"] == answer_alone(request)
    assert [output.cached_tokens for output in outputs if output.finish == "length"] == [32]  # one chunk


@pytest.mark.parametrize(("prefix_cache", "other"), [(False, 1), (True, 2)])
def test_prompts_that_share_nothing_that_is_kept_wait_for_nothing(prefix_cache: bool, other: int) -> None:
    engine = engine_of(plan_of(usable=200), prefix_cache=prefix_cache)
    engine.add(greedy("a", [1, *range(1, 60)], 3))
    engine.add(greedy("b", [other, *range(1, 60)], 3))
    engine.step()
    assert engine.stats().running == 2


def packed(plan: ServingPlan) -> tuple[Engine, ContextRunner]:
    runner = ContextRunner(plan, drops_padding=True)
    return engine_of(plan, runner), runner


def prefilled(runner: ContextRunner) -> list[list[int]]:
    """New tokens of each row of the prefill steps."""
    return [batch.new_of_rows.tolist() for batch in runner.batches if batch.shape[1] > 1]


def test_where_padding_is_not_computed_a_step_takes_prompts_of_any_lengths_up_to_its_tokens() -> None:
    engine, runner = packed(plan_of(chunk=32))
    for name, length in zip("abcd", (7, 20, 40, 3), strict=True):
        engine.add(greedy(name, [ord(name), *range(1, length)]))
    drain(engine)
    assert prefilled(runner) == [[7, 20, 5], [32], [3, 3]]
    stats = engine.stats()
    assert stats.processed_tokens == stats.useful_tokens + stats.recomputed_tokens


def test_packed_prompts_and_answers_still_take_turns() -> None:
    engine, runner = packed(plan_of(usable=300, context=1000))
    engine.add(greedy("talks", [1, 2, 3], 100))
    steps_until(engine, "talks")
    engine.add(greedy("long", range(1, 901), 5))
    assert max(steps_until(engine, "talks") for _ in range(20)) == 2
    assert kinds(runner)[2:8] == ["prefill", "decode"] * 3


def test_after_memory_ran_out_packed_steps_take_fewer_tokens() -> None:
    plan = plan_of(chunk=32)
    runner = FailingRunner(plan, MemoryError("no room"))
    runner.drops_padding = True
    runner.fails = lambda batch: int(batch.new_of_rows.sum()) > 20
    engine = engine_of(plan, runner)
    asked = [greedy(name, range(1, 28)) for name in "ab"]
    for one in asked:
        engine.add(one)
    assert answers(drain(engine)) == {one.id: answer_alone(one) for one in asked}
    assert max(sum(rows) for rows in prefilled(runner)) == 16
