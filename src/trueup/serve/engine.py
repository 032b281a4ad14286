"""The engine: requests in, tokens out, one fixed-shape step at a time. Tokens only; one thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch

from trueup.device.memory_errors import is_out_of_memory
from trueup.model.step_batch import StepBatch, padding_batch
from trueup.schema import InputError, TrueupError
from trueup.schema.counting import counted, counted_as

from .batch import assemble
from .blocks import BlockManager
from .plan import ServingPlan, StepShape
from .protocols import EngineStats, Runner
from .request import FinishReason, Output, RefusedError, Request, Token
from .sampling import Draw, choose, finite_rows
from .scheduler import Row, Scheduler, Sequence, Step


class Engine:
    def __init__(
        self,
        runner: Runner,
        plan: ServingPlan,
        *,
        eos_ids: frozenset[int],
        prefix_cache: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.plan = plan
        self._clock = clock
        self._runner = runner
        self._eos_ids = eos_ids
        self._blocks = BlockManager(plan.blocks, plan.block_size, prefix_cache)
        self._scheduler = Scheduler(plan, self._blocks, packs=runner.drops_padding)
        self._under_way: dict[str, Sequence] = {}
        self._cancelled: list[Output] = []  # told by the next step
        self._useful = self._recomputed = self._processed = self._generated = 0
        self._steps = self._failed_steps = 0
        self._prefill_s = self._decode_s = 0.0

    def warm_up(
        self,
        after: Callable[[StepShape], None] | None = None,
        *,
        shapes: tuple[StepShape, ...] | None = None,
    ) -> None:
        """Runs each of `shapes`, or of the plan's, once, on padding alone; `after` is told each. Raises
        TrueupError, which names the shape, where one fails."""
        for shape in self.plan.shapes() if shapes is None else shapes:
            try:
                self._runner.run(padding_batch(shape))
            except Exception as error:
                way = "; plan fewer rows, a smaller chunk or less context" if is_out_of_memory(error) else ""
                raise TrueupError(
                    f"warm-up: (rows, new tokens, context blocks) of {shape} failed: {_words(error)}{way}"
                ) from error
            if after is not None:
                after(shape)

    def add(self, request: Request) -> Request:
        """Accepts it, and gives it back with its seed. Raises RefusedError where it can never fit, InputError
        where it is no request or its id is under way."""
        prompt, sampling = request.prompt, request.sampling
        if not prompt:
            raise InputError(f"request {request.id}: an empty prompt; expected one token or more")
        if request.id in self._under_way:
            raise InputError(f"request {request.id}: a request of that id is under way")
        self._refuse_what_never_fits(len(prompt), sampling.max_tokens)
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(63))
            request = replace(request, sampling=sampling)
        assert sampling.seed is not None
        sequence = Sequence(request, sampling.seed, list(prompt), added_s=self._clock())
        self._under_way[request.id] = sequence
        self._scheduler.waiting.append(sequence)
        return request

    def cancel(self, request_id: str) -> None:
        """Its blocks return now; the next step tells. Nothing happens where it is over or unknown."""
        sequence = self._under_way.get(request_id)
        if sequence is not None:
            self._cancelled.append(self._finish(sequence, (), "cancelled"))

    def step(self) -> list[Output]:
        """Schedules, runs and samples one step. A step that raises ends its own requests with "error", or
        shrinks where memory ran out and it can; the engine lives on."""
        outputs, self._cancelled = self._cancelled, []
        began = self._clock()
        step = self._scheduler.next_step(began)
        if step is None:
            return outputs
        outputs += self._computed(step)
        if step.decodes:
            self._decode_s += self._clock() - began
        else:
            self._prefill_s += self._clock() - began
        return outputs

    @property
    def has_work(self) -> bool:
        """Whether a step has something to do or to tell."""
        return bool(self._under_way or self._cancelled)

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            blocks=self.plan.usable_blocks,
            blocks_used=self._blocks.used,
            preemptions=scheduler.preemptions,
            prefix_tokens_asked=scheduler.prefix_tokens_asked,
            prefix_tokens_hit=scheduler.prefix_tokens_hit,
            useful_tokens=self._useful,
            recomputed_tokens=self._recomputed,
            processed_tokens=self._processed,
            generated_tokens=self._generated,
            steps=self._steps,
            failed_steps=self._failed_steps,
            rows_allowed=scheduler.rows_allowed,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
        )

    def _refuse_what_never_fits(self, prompt: int, max_tokens: int) -> None:
        wanted, plan = prompt + max_tokens, self.plan
        asked = f"a prompt of {counted_as(str(prompt), 'token')} and max_tokens {max_tokens}"
        if wanted > plan.max_context:
            raise RefusedError(
                f"{asked} need {wanted} tokens of context; this model serves {plan.max_context}: "
                "shorten the prompt or lower max_tokens",
                needs=wanted,
                has=plan.max_context,
                unit="tokens",
            )
        blocks = plan.blocks_for(wanted - 1)  # the last token is sampled and never computed
        if blocks > plan.usable_blocks:
            raise RefusedError(
                f"{asked} need {blocks} blocks of {counted(plan.block_size, 'token')}; the whole pool has "
                f"{plan.usable_blocks}: shorten the prompt, lower max_tokens or serve with a larger pool",
                needs=blocks,
                has=plan.usable_blocks,
                unit="blocks",
            )

    def _computed(self, step: Step) -> list[Output]:
        batch = assemble(step, self.plan.block_size)
        try:
            logits_BV = self._run(step, batch)
            finite = finite_rows(logits_BV)
            sampled = [at for at, row in enumerate(step.rows) if row.samples and finite[at]]
            tokens = choose(logits_BV[sampled], [_draw(step.rows[at].sequence) for at in sampled])
        except Exception as error:
            self._clear(batch.slots_BQ)
            return self._failed(step, error)
        self._processed += self._runner.processed_tokens(batch)
        self._count(step)
        outputs: list[Output] = []
        chosen = dict(zip(sampled, tokens, strict=True))
        for at, row in enumerate(step.rows):
            if finite[at]:
                outputs += self._advance(row, chosen.get(at))
            else:
                self._clear(batch.slots_BQ[at])
                outputs.append(self._not_finite(row))
        return outputs

    def _run(self, step: Step, batch: StepBatch) -> torch.Tensor:
        """(rows of the step, V) logits, fp32 on the CPU."""
        self._steps += 1
        logits_BV = self._runner.run(batch)
        if logits_BV.ndim != 2 or logits_BV.shape[0] != step.shape[0]:
            rows = counted(step.shape[0], "row")
            raise TrueupError(f"the runner gave logits of {tuple(logits_BV.shape)} for {rows}")
        return logits_BV[: len(step.rows)].float().cpu()

    def _clear(self, slots: torch.Tensor) -> None:
        # Where not even this can be done, the device will say so again at the next step.
        with suppress(Exception):
            self._runner.clear(slots.flatten())

    def _advance(self, row: Row, token: Token | None) -> list[Output]:
        """The row's new tokens are computed; `token` is what was sampled after the last known one."""
        sequence = row.sequence
        sequence.computed = row.start + row.new
        sequence.furthest = max(sequence.furthest, sequence.computed)
        self._blocks.seal(row.table, sequence.tokens, sequence.computed)
        if token is None:
            return []
        sequence.tokens.append(token.id)
        self._generated += 1
        finish = self._finish_reason(sequence, token.id)
        if finish is not None:
            return [self._finish(sequence, (token,), finish)]
        return [_output(sequence, (token,), None)]

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        sampling = sequence.request.sampling
        if token in sampling.stop_token_ids or (token in self._eos_ids and not sampling.ignore_eos):
            return "stop"
        return "length" if sequence.generated >= sampling.max_tokens else None

    def _failed(self, step: Step, error: Exception) -> list[Output]:
        self._failed_steps += 1
        if is_out_of_memory(error) and self._scheduler.shrink(step):
            return []
        reason = f"a step of {counted(len(step.rows), 'request')} failed: {_words(error)}"
        return [self._finish(row.sequence, (), "error", reason) for row in step.rows]

    def _not_finite(self, row: Row) -> Output:
        at = row.start + row.new
        reason = f"the model's logits after token {at} are not finite; no token can be chosen from them"
        return self._finish(row.sequence, (), "error", reason)

    def _finish(
        self, sequence: Sequence, tokens: tuple[Token, ...], finish: FinishReason, reason: str | None = None
    ) -> Output:
        self._scheduler.drop(sequence)
        del self._under_way[sequence.request.id]
        return _output(sequence, tokens, finish, reason)

    def _count(self, step: Step) -> None:
        for row in step.rows:
            again = max(0, min(row.sequence.furthest, row.start + row.new) - row.start)
            self._recomputed += again
            self._useful += row.new - again


def _draw(sequence: Sequence) -> Draw:
    return Draw(sequence.request.sampling, sequence.seed, sequence.generated)


def _output(
    sequence: Sequence, tokens: tuple[Token, ...], finish: FinishReason | None, reason: str | None = None
) -> Output:
    prompt, admitted_s = len(sequence.request.prompt), sequence.admitted_s
    waited_s = None if admitted_s is None else admitted_s - sequence.added_s
    return Output(sequence.request.id, tokens, finish, prompt, sequence.cached_tokens, reason, waited_s)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
