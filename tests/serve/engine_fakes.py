"""A runner without a model, whose logits are a pure function of the context it is shown through the block
tables: a wrong slot, table, position or length changes them or fails. And how a test drives an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch

from trueup.model.step_batch import StepBatch
from trueup.serve.engine import Engine
from trueup.serve.plan import ServingPlan, plan_serving
from trueup.serve.request import FinishReason, Output, Request, Sampling, Token
from trueup.serve.sampling import Draw, choose

VOCABULARY = 50
EOS = 0
SPOILT = -9  # what a NaN is in a model's pool


def logits_of(context: Iterable[int]) -> torch.Tensor:
    """(V,) fp32 logits after this context."""
    digest = hashlib.shake_128(np.asarray(list(context), dtype=np.int64).tobytes()).digest(4 * VOCABULARY)
    return torch.from_numpy(np.frombuffer(digest, dtype=np.uint32).astype(np.float32) / 2.0**30)


class ContextRunner:
    """Keeps token and position in each slot where a model has keys and values."""

    def __init__(self, plan: ServingPlan, *, drops_padding: bool = False) -> None:
        self.plan = plan
        self.drops_padding = drops_padding
        self.allowed = frozenset(plan.shapes())
        self.slots = np.full((plan.blocks * plan.block_size, 2), -1, dtype=np.int64)
        self.shapes: list[tuple[int, int, int]] = []
        self.batches: list[StepBatch] = []

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> torch.Tensor:
        assert self.drops_padding or batch.shape in self.allowed
        self.shapes.append(batch.shape)
        self.batches.append(batch)
        rows = batch.shape[0]
        for row in range(rows):
            length, count = int(batch.lengths_B[row]), int(batch.last_B[row]) + 1
            count = count if length else 0
            slots = batch.slots_BQ[row].numpy()
            assert (slots[count:] < self.plan.block_size).all(), "padding writes outside the null block"
            assert (slots[:count] >= self.plan.block_size).all(), "a token is written to the null block"
            positions = batch.positions_BQ[row, :count].numpy()
            assert positions.tolist() == list(range(length - count, length))
            self.slots[slots] = np.stack(
                [batch.tokens_BQ[row].numpy(), batch.positions_BQ[row].numpy()], axis=1
            )
        self.slots[: self.plan.block_size] = -7  # nobody reads the null block
        return torch.stack([self.logits(self.context(batch, row)) for row in range(rows)])

    def context(self, batch: StepBatch, row: int) -> list[int]:
        """The tokens that a row attends to."""
        size, length = self.plan.block_size, int(batch.lengths_B[row])
        table = batch.tables_BW[row].numpy()
        needed = -(-length // size)
        assert (table[:needed] > 0).all()
        assert (table[needed:] == 0).all()
        positions = np.arange(length)
        seen = self.slots[table[positions // size] * size + positions % size]
        assert (seen[:, 1] == positions).all(), "a slot holds another position's keys and values"
        named = self.slots.reshape(-1, size, 2)[table[:needed]]
        assert (named != SPOILT).all(), "what somebody spoilt is in a block of another, attended to or not"
        return [int(one) for one in seen[:, 0]]

    def logits(self, context: list[int]) -> torch.Tensor:
        return logits_of(context)

    def processed_tokens(self, step: StepBatch) -> int:
        return int(step.new_of_rows.sum()) if self.drops_padding else step.tokens_BQ.numel()

    def clear(self, slots_N: torch.Tensor) -> None:
        self.slots[slots_N.numpy()] = -1


class FailingRunner(ContextRunner):
    """Raises `error` in the runs for which `fails` says so, after it has spoilt the slots to be written."""

    def __init__(self, plan: ServingPlan, error: Exception) -> None:
        super().__init__(plan)
        self.error = error
        self.fails = lambda batch: False

    def run(self, batch: StepBatch) -> torch.Tensor:
        if self.fails(batch):
            self.slots[batch.slots_BQ.numpy().ravel()] = SPOILT
            raise self.error
        return super().run(batch)


def plan_of(
    *,
    usable: int = 64,
    rows: int = 8,
    context: int = 512,
    block_size: int = 4,
    chunk: int = 32,
    most_shapes: int = 500,
) -> ServingPlan:
    return plan_serving(
        max_context=context,
        blocks=usable + 1,
        concurrency=rows,
        block_size=block_size,
        prefill_chunk=chunk,
        most_shapes=most_shapes,
    )


def engine_of(plan: ServingPlan, runner: ContextRunner | None = None, *, prefix_cache: bool = True) -> Engine:
    return Engine(runner or ContextRunner(plan), plan, eos_ids=frozenset({EOS}), prefix_cache=prefix_cache)


def greedy(name: str, prompt: Iterable[int], max_tokens: int = 8) -> Request:
    return Request(name, tuple(prompt), Sampling(max_tokens, temperature=0.0))


def answer_alone(request: Request) -> tuple[tuple[Token, ...], FinishReason]:
    """What the fake model answers, without any engine."""
    sampling = request.sampling
    assert sampling.seed is not None or sampling.temperature == 0
    tokens: list[Token] = []
    while True:
        context = [*request.prompt, *(token.id for token in tokens)]
        draw = Draw(sampling, sampling.seed or 0, len(tokens))
        tokens += choose(logits_of(context)[None], [draw])
        stops = tokens[-1].id in sampling.stop_token_ids
        if stops or (tokens[-1].id == EOS and not sampling.ignore_eos):
            return tuple(tokens), "stop"
        if len(tokens) == sampling.max_tokens:
            return tuple(tokens), "length"


def drain(engine: Engine, most_steps: int = 20_000) -> list[Output]:
    """Steps until there is nothing to do; fails where that takes too many."""
    outputs: list[Output] = []
    for _ in range(most_steps):
        if not engine.has_work:
            return outputs
        outputs += engine.step()
    raise AssertionError(f"work left after {most_steps} steps: {engine.stats()}")


def answers(outputs: Iterable[Output]) -> dict[str, tuple[tuple[Token, ...], FinishReason]]:
    """Of each request its tokens and how it ended; fails where one ends twice or goes on after its end."""
    tokens: dict[str, tuple[Token, ...]] = {}
    ended: dict[str, FinishReason] = {}
    for output in outputs:
        assert output.request_id not in ended, f"{output.request_id} goes on after its end"
        tokens[output.request_id] = tokens.get(output.request_id, ()) + output.tokens
        if output.finish is not None:
            ended[output.request_id] = output.finish
    return {name: (tokens[name], ended[name]) for name in tokens}
