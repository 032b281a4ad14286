"""The pool at its limit: all requests end as they would alone, nothing hangs, all blocks return."""

from __future__ import annotations

import random

import pytest
from engine_fakes import (
    ContextRunner,
    answer_alone,
    answers,
    drain,
    engine_of,
    greedy,
    plan_of,
)

from trueup.serve.request import Output, RefusedError, Request, Sampling


def random_requests(count: int, seed: int, longest: int) -> list[Request]:
    """Greedy and drawn ones, of all lengths up to `longest` together, many with a common beginning."""
    chance = random.Random(seed)
    common = [chance.randrange(1, 50) for _ in range(longest)]
    requests = []
    for at in range(count):
        shared = chance.choice((0, 0, 4, 9, 17))
        prompt = common[:shared] + [chance.randrange(1, 50) for _ in range(chance.randint(1, 20))]
        sampling = Sampling(
            max_tokens=chance.randint(1, longest - len(prompt)),
            temperature=chance.choice((0.0, 0.0, 0.7, 1.3)),
            top_k=chance.choice((0, 5)),
            top_p=chance.choice((1.0, 0.8)),
            seed=chance.randrange(2**40),
            ignore_eos=chance.random() < 0.5,
            stop_token_ids=chance.choice(((), (3, 4))),
        )
        requests.append(Request(f"r{at}", tuple(prompt), sampling))
    return requests


@pytest.mark.parametrize(("count", "prefix_cache"), [(500, True), (150, False)])
def test_hundreds_of_requests_through_a_pool_for_three_all_end_as_they_would_alone(
    count: int, prefix_cache: bool
) -> None:
    """llama.cpp#12253: what two said at once was garbage as soon as their cells had been moved."""
    plan = plan_of(usable=3 * 12, rows=8, context=48, chunk=16)  # 12 blocks hold the longest
    engine = engine_of(plan, prefix_cache=prefix_cache)
    requests = random_requests(count, 1, longest=48)
    chance = random.Random(2)
    outputs: list[Output] = []
    for request in requests:
        engine.add(request)
        for _ in range(chance.choice((0, 0, 1, 3))):
            outputs += engine.step()
    outputs += drain(engine)
    assert answers(outputs) == {request.id: answer_alone(request) for request in requests}
    stats = engine.stats()
    assert (stats.waiting, stats.running, stats.blocks_used) == (0, 0, 0)
    assert stats.preemptions > 0
    assert stats.generated_tokens == sum(len(output.tokens) for output in outputs)


@pytest.mark.parametrize("usable", [12, 13, 24])
def test_a_pool_that_holds_one_or_two_serves_many(usable: int) -> None:
    plan = plan_of(usable=usable, rows=8, context=48, chunk=16)
    engine = engine_of(plan)
    requests = random_requests(60, usable, longest=48)
    for request in requests:
        engine.add(request)
    assert answers(drain(engine)) == {request.id: answer_alone(request) for request in requests}
    assert engine.stats().blocks_used == 0


@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
@pytest.mark.parametrize("chunk", [1, 3, 16, 48])
def test_chunks_and_blocks_of_any_size_go_together(block_size: int, chunk: int) -> None:
    """sglang-jax#20: what was padded did not go with the size of a page."""
    plan = plan_of(usable=-(-96 // block_size), rows=5, context=48, block_size=block_size, chunk=chunk)
    engine = engine_of(plan)
    requests = random_requests(25, block_size + chunk, longest=48)
    for request in requests:
        engine.add(request)
    assert answers(drain(engine)) == {request.id: answer_alone(request) for request in requests}


def test_a_preempted_answer_is_whole_and_no_token_is_told_twice() -> None:
    """vllm#16832: what a preempted request had said was missing."""
    plan = plan_of(usable=12, rows=4)
    engine = engine_of(plan)
    requests = [
        Request(name, (ord(name),) * 9, Sampling(30, seed=ord(name), ignore_eos=True)) for name in "abcd"
    ]
    for request in requests:
        engine.add(request)
    assert answers(drain(engine)) == {request.id: answer_alone(request) for request in requests}
    stats = engine.stats()
    assert stats.preemptions >= 3
    assert stats.recomputed_tokens > 0


def test_a_request_over_the_models_limit_is_refused_at_once_with_what_it_needs() -> None:
    engine = engine_of(plan_of(context=64))
    with pytest.raises(RefusedError, match="need 65 tokens of context; this model serves 64") as refusal:
        engine.add(greedy("long", range(1, 61), 5))
    assert (refusal.value.needs, refusal.value.has, refusal.value.unit) == (65, 64, "tokens")
    assert not engine.has_work


def test_a_request_that_fits_exactly_the_models_limit_is_served_to_its_end() -> None:
    engine = engine_of(plan_of(context=64))
    request = Request("full", tuple(range(1, 50)), Sampling(15, temperature=0.0, ignore_eos=True))
    engine.add(request)
    tokens, finish = answers(drain(engine))["full"]
    assert (len(tokens), finish) == (15, "length")


def test_a_request_larger_than_the_whole_pool_is_refused_and_does_not_hang() -> None:
    """vllm#35541: it waited for ever, and everybody behind it."""
    engine = engine_of(plan_of(usable=8, context=512))
    with pytest.raises(RefusedError, match="need 9 blocks of 4 tokens; the whole pool has 8") as refusal:
        engine.add(greedy("large", range(1, 31), 4))
    assert (refusal.value.needs, refusal.value.has, refusal.value.unit) == (9, 8, "blocks")
    engine.add(greedy("fits", range(1, 31), 3))  # its last token needs no place
    assert answers(drain(engine))["fits"][1] in ("length", "stop")


@pytest.mark.parametrize(("usable", "context"), [(8, 512), (200, 64)])
def test_the_plan_tells_the_longest_request_that_is_not_refused(usable: int, context: int) -> None:
    plan = plan_of(usable=usable, context=context)
    engine = engine_of(plan)
    engine.add(greedy("longest", [1], plan.most_tokens - 1))
    with pytest.raises(RefusedError):
        engine.add(greedy("longer", [1], plan.most_tokens))


def test_the_share_of_the_pool_in_use_is_what_requests_hold_and_reaches_one() -> None:
    """vllm#20302: the share that was told was not that."""
    engine = engine_of(plan_of(usable=8, context=512))
    engine.add(Request("all", tuple(range(1, 30)), Sampling(4, temperature=0.0, ignore_eos=True)))
    shares = []
    while engine.has_work:
        engine.step()
        stats = engine.stats()
        shares.append(stats.blocks_used / stats.blocks)
    assert max(shares) == 1.0
    assert shares[-1] == 0.0  # its blocks stay cached and are not in use


def test_contexts_cross_every_bucket_edge_up_to_the_limit() -> None:
    plan = plan_of(usable=700, rows=3, context=8192, block_size=16, chunk=256)
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner)
    edges = [blocks * plan.block_size for blocks in plan.context_blocks]
    requests = [
        Request(f"{edge}", tuple(1 + at % 49 for at in range(edge - 4)), Sampling(4, 0.0, ignore_eos=True))
        for edge in edges
    ]
    requests += [
        Request(
            f"over-{edge}", tuple(1 + at % 48 for at in range(edge - 2)), Sampling(6, 0.0, ignore_eos=True)
        )
        for edge in edges[:-1]
    ]
    for request in requests:
        engine.add(request)
    assert answers(drain(engine)) == {request.id: answer_alone(request) for request in requests}
    assert {width for _, _, width in runner.shapes} == set(plan.context_blocks)


def test_padding_of_a_shorter_row_never_reaches_its_neighbours() -> None:
    """Rows of unlike lengths in one step, none a multiple of the block or of a bucket."""
    plan = plan_of(usable=64, rows=4, context=256, block_size=4, chunk=64)
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner)
    requests = [greedy(f"{length}", range(length, 2 * length), 9) for length in (9, 11, 13, 14)]
    for request in requests:
        engine.add(request)
    assert answers(drain(engine)) == {request.id: answer_alone(request) for request in requests}
    assert runner.shapes[0][0] == 4


def test_warm_up_runs_every_shape_of_the_plan_and_serving_adds_none() -> None:
    plan = plan_of(usable=36, rows=6, context=48, chunk=16)
    runner = ContextRunner(plan)
    engine = engine_of(plan, runner)
    told: list[tuple[int, int, int]] = []
    engine.warm_up(told.append)
    assert runner.shapes == told == list(plan.shapes())
    for request in random_requests(60, 3, longest=48):
        engine.add(request)
    drain(engine)
    assert set(runner.shapes) == set(plan.shapes()) & set(runner.shapes)


def test_warm_up_runs_the_shapes_that_it_is_given() -> None:
    plan = plan_of(usable=36, rows=6, context=48, chunk=16)
    runner = ContextRunner(plan)
    engine_of(plan, runner).warm_up(shapes=plan.largest_shapes())
    assert runner.shapes == list(plan.largest_shapes())
