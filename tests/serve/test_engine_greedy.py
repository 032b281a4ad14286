"""Greedy answers are those of transformers' generate, token for token, whatever the engine does to get them:
block sizes, batch sizes, preemption, prefix cache and chunked prompts in a pairwise cover."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import answers, plan_of
from reference_runner import Reference, ReferenceRunner

from demo_model import demo_model
from trueup.model.inference import InferenceModel
from trueup.model.load import load_tokenizer
from trueup.model.tiny import write_tiny
from trueup.serve.engine import Engine
from trueup.serve.opening import end_ids_of
from trueup.serve.plan import ServingPlan
from trueup.serve.protocols import Runner
from trueup.serve.request import Output, Request, Sampling

EOS = 258
PREEMPTED_EVERY = 13  # steps; the longest prompt takes eight and has to get on


@dataclass(frozen=True)
class Setting:
    block_size: int
    rows: int
    preempted: bool
    prefix_cache: bool
    chunked: bool


LEVELS: tuple[tuple[Any, ...], ...] = (
    (4, 16, 64),
    (1, 2, 4, 8, 16),
    (False, True),
    (False, True),
    (False, True),
)


def pairwise_cover() -> list[Setting]:
    """Few settings in which each two levels of each two factors meet."""
    pairs = list(combinations(range(len(LEVELS)), 2))
    open_pairs = {(a, b, x, y) for a, b in pairs for x in LEVELS[a] for y in LEVELS[b]}
    cover: list[Setting] = []
    while open_pairs:
        best = max(
            product(*LEVELS), key=lambda one: sum((a, b, one[a], one[b]) in open_pairs for a, b in pairs)
        )
        open_pairs -= {(a, b, best[a], best[b]) for a, b in pairs}
        cover.append(Setting(*best))
    return cover


def test_the_cover_has_every_pair_of_levels() -> None:
    cover = pairwise_cover()
    assert len(cover) < 20
    for a, b in combinations(range(len(LEVELS)), 2):
        rows = [tuple(vars(one).values()) for one in cover]
        assert {(row[a], row[b]) for row in rows} == set(product(LEVELS[a], LEVELS[b]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny(folder, max_position_embeddings=256)
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


MakeRunner = Callable[[ServingPlan], Runner]


@pytest.fixture(
    scope="module", params=["transformers' forward pass", "the serving model", "by torch's operators"]
)
def make_runner(request: pytest.FixtureRequest, reference: Reference, folder: Path) -> MakeRunner:
    """With the first, only the engine can be wrong."""
    if request.param == "transformers' forward pass":
        return lambda plan: ReferenceRunner(plan, reference)
    model = InferenceModel.load(folder)
    if request.param == "by torch's operators":
        model = replace(model, decoder=None)

    def with_new_pool(plan: ServingPlan) -> Runner:
        model.new_pool(plan.blocks, plan.block_size)
        return model

    return with_new_pool


def prompts_of(count: int, seed: int = 6) -> list[tuple[int, ...]]:
    """Bytes; of 1 to 90 tokens, every third with a common beginning."""
    chance = random.Random(seed)
    common = [chance.randrange(256) for _ in range(40)]
    return [
        tuple(
            (common[: chance.choice((4, 16, 33))] if at % 3 == 0 else [])
            + [chance.randrange(256) for _ in range(chance.choice((1, 3, 8, 17, 50)))]
        )
        for at in range(count)
    ]


def served(
    make_runner: MakeRunner,
    prompts: list[tuple[int, ...]],
    max_tokens: int,
    setting: Setting,
    ends: frozenset[int],
) -> dict[str, list[int]]:
    plan = plan_of(
        usable=max(128 // setting.block_size, setting.rows * (128 // setting.block_size) // 2),
        rows=setting.rows,
        context=128,
        block_size=setting.block_size,
        chunk=16 if setting.chunked else 128,
    )
    engine = Engine(make_runner(plan), plan, eos_ids=ends, prefix_cache=setting.prefix_cache)
    for at, prompt in enumerate(prompts):
        engine.add(Request(f"{at}", prompt, Sampling(max_tokens, temperature=0.0)))
    outputs: list[Output] = []
    for step in range(1, 20_000):
        if not engine.has_work:
            break
        outputs += engine.step()
        if setting.preempted and step % PREEMPTED_EVERY == 0 and engine._scheduler.running:
            engine._scheduler._preempt_youngest()
    assert not engine.has_work
    assert engine.stats().blocks_used == 0
    assert not setting.preempted or engine.stats().preemptions > 0
    return {name: [token.id for token in tokens] for name, (tokens, _) in answers(outputs).items()}


def differences(
    reference: Reference,
    make_runner: MakeRunner,
    prompts: list[tuple[int, ...]],
    max_tokens: int,
    setting: Setting,
    ends: frozenset[int] = frozenset({EOS}),
) -> int:
    """How many answers part from transformers' where two tokens are as good as equal; fails where one does
    elsewhere."""
    got = served(make_runner, prompts, max_tokens, setting, ends)
    near = 0
    for at, prompt in enumerate(prompts):
        want = reference.generate(prompt, max_tokens)
        parts = [n for n, (a, b) in enumerate(zip(got[f"{at}"], want, strict=False)) if a != b]
        if parts:
            assert reference.near([*prompt, *want[: parts[0]]]), (at, got[f"{at}"], want)
            near += 1
        else:
            assert got[f"{at}"] == want
    return near


@pytest.mark.parametrize("setting", pairwise_cover(), ids=str)
def test_greedy_answers_are_those_of_transformers(
    reference: Reference, make_runner: MakeRunner, setting: Setting
) -> None:
    assert differences(reference, make_runner, prompts_of(16), 8, setting) == 0


@pytest.mark.slow
@pytest.mark.parametrize("setting", pairwise_cover(), ids=str)
def test_a_hundred_greedy_answers_are_those_of_transformers(
    reference: Reference, make_runner: MakeRunner, setting: Setting
) -> None:
    near = differences(reference, make_runner, prompts_of(100), 16, setting)
    assert near <= 2, f"{near} of 100 answers part at logits closer than 1e-4"


@pytest.mark.slow
def test_twenty_greedy_answers_of_the_demo_model_are_those_of_transformers(tmp_path: Path) -> None:
    """Eight at once, in chunks, preempted, with what they begin with in common computed once."""
    resolved = demo_model(tmp_path)
    tokenizer = load_tokenizer(resolved)
    subjects = ("rivers", "bread", "prime numbers", "a lost key", "tides", "chess", "rust", "glass", "tea")
    asked = [f"{verb} {one}." for one in (*subjects, "maps") for verb in ("Tell me about", "Write a line on")]
    prompts = [tuple(tokenizer(text)["input_ids"]) for text in asked]
    model = InferenceModel.load(resolved.folder)

    def with_new_pool(plan: ServingPlan) -> Runner:
        model.new_pool(plan.blocks, plan.block_size)
        return model

    setting = Setting(16, 8, preempted=True, prefix_cache=True, chunked=True)
    ends = end_ids_of(resolved.folder)
    near = differences(Reference(resolved.folder), with_new_pool, prompts, 40, setting, ends)
    assert near <= 2, f"{near} of 20 answers part at logits closer than 1e-4"
