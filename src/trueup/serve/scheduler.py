"""Who computes what in the next step: admission in the order of arrival, prompts in chunks, decoding in turn.

Where prompts wait for their chunks and others decode, steps of the two kinds alternate, so neither waits for
more than one step of the other. A prompt that begins like one under way waits for what the two have in
common, which is thereby computed once; nobody overtakes it, and the wait ends with that part. Blocks for all
known tokens of a request are taken when it is admitted; one that needs a further block while none is free
takes it from the youngest, which is computed again later. So the oldest always advances, and everybody
becomes the oldest.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from .blocks import BlockManager, BlockTable
from .plan import ROWS_FILLED, ServingPlan, StepShape
from .request import Request


@dataclass(eq=False)
class Sequence:
    """A request under way. `tokens` are the prompt and what was generated, `computed` those of them whose
    keys and values are in its blocks, `furthest` the most that ever were: below it work is done again."""

    request: Request
    seed: int
    tokens: list[int]
    table: BlockTable | None = None  # None: it waits
    computed: int = 0
    furthest: int = 0
    cached_tokens: int = 0  # of the prompt, at its first admission
    added_s: float = 0.0  # by the engine's clock, as is the next
    admitted_s: float | None = None  # for the first time

    @property
    def remaining(self) -> int:
        """Known tokens still to compute: 1 in decoding; after the last of them one is sampled."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True)
class Row:
    sequence: Sequence
    table: BlockTable
    start: int  # tokens computed before
    new: int  # tokens to compute

    @property
    def samples(self) -> bool:
        """Whether its last new token is the last known, so that the next is sampled from its logits."""
        return self.start + self.new == len(self.sequence.tokens)


@dataclass(frozen=True)
class Step:
    rows: tuple[Row, ...]
    shape: StepShape

    @property
    def decodes(self) -> bool:
        return self.shape[1] == 1


@dataclass
class Scheduler:
    """`packs`: padding is not computed, and shapes are free. `rows_allowed` and
    `tokens_allowed` (of a prefill step) are the plan's until memory runs out."""

    plan: ServingPlan
    blocks: BlockManager
    packs: bool = False
    waiting: deque[Sequence] = field(default_factory=deque)  # all younger than those in `running`
    running: list[Sequence] = field(default_factory=list)  # the oldest first
    preemptions: int = 0
    prefix_tokens_asked: int = 0
    prefix_tokens_hit: int = 0

    def __post_init__(self) -> None:
        self.rows_allowed = self.plan.max_rows
        self.tokens_allowed = max(rows * tokens for rows, tokens in self.plan.prefill_shapes)
        self._decode_next = False

    def next_step(self, now_s: float = 0.0) -> Step | None:
        """None where nobody has anything to compute."""
        self._admit(now_s)
        prefill = [one for one in self.running if one.remaining > 1]
        if prefill and not self._decode_next:
            return self._prefill_step(prefill)
        rows = self._with_room([one for one in self.running if one.remaining == 1])
        if rows:
            self._decode_next = False
            return self._step([(one, 1) for one in rows])
        prefill = [one for one in self.running if one.remaining > 1]
        return self._prefill_step(prefill) if prefill else None

    def drop(self, sequence: Sequence) -> None:
        """Takes it out, wherever it is; its blocks return."""
        if sequence.table is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self.blocks.release(sequence.table)
            sequence.table = None

    def shrink(self, step: Step) -> bool:
        """After a device had no memory for `step`: allow only smaller ones from now on. False where there is
        none smaller."""
        rows, new, _ = step.shape
        if step.decodes:
            fewer = [count for count in self.plan.decode_rows if count < rows]
            self.rows_allowed = max(fewer, default=self.rows_allowed)
            while fewer and len(self.running) > self.rows_allowed:
                self._preempt_youngest()
            return bool(fewer)
        tokens = sum(row.new for row in step.rows) if self.packs else rows * new
        fewer = [count * chunk for count, chunk in self.plan.prefill_shapes if count * chunk < tokens]
        self.tokens_allowed = max(fewer, default=self.tokens_allowed)
        return bool(fewer)

    def _admit(self, now_s: float) -> None:
        while self.waiting and len(self.running) < self.rows_allowed:
            one = self.waiting[0]
            if self._shares_unfinished(one):
                return
            # A block is left for each that runs: else the next to grow would throw this one out again.
            table = self.blocks.open(one.tokens, spare=len(self.running))
            if table is None:
                return
            self.waiting.popleft()
            self.running.append(one)
            one.table = table
            one.computed = table.cached_tokens
            one.furthest = max(one.furthest, one.computed)
            if one.admitted_s is None:
                one.admitted_s = now_s
                one.cached_tokens = table.cached_tokens
                self.prefix_tokens_asked += len(one.request.prompt)
                self.prefix_tokens_hit += one.cached_tokens

    def _shares_unfinished(self, one: Sequence) -> bool:
        """Whether somebody is computing blocks that it begins with and the cache does not have yet."""
        if not self.blocks.prefix_cache:
            return False
        cached = len(self.blocks.cached(one.tokens)) * self.plan.block_size
        return any(
            self._common(one, other) > max(cached, other.computed)
            for other in self.running
            if other.remaining > 1
        )

    def _common(self, one: Sequence, other: Sequence) -> int:
        """Tokens in the whole blocks that both begin with; of `one` a token is left to compute."""
        size, common = self.plan.block_size, 0
        most = min(len(one.tokens) - 1, len(other.tokens))
        while (end := common + size) <= most and one.tokens[common:end] == other.tokens[common:end]:
            common = end
        return common

    def _with_room(self, decoding: list[Sequence]) -> list[Sequence]:
        """Those of `decoding` that have a slot for their last token after blocks were given out, the oldest
        first."""
        for one in decoding:
            while one.table is not None and len(one.tokens) > len(one.table.blocks) * self.plan.block_size:
                if not self.blocks.grow(one.table):
                    self._preempt_youngest()
        return [one for one in decoding if one.table is not None]

    def _preempt_youngest(self) -> None:
        one = self.running[-1]
        self.drop(one)
        one.computed = 0
        self.waiting.appendleft(one)
        self.preemptions += 1

    def _prefill_step(self, prefill: list[Sequence]) -> Step:
        """The oldest decides the chunk; others join where theirs fills more than half of it. Packed, the step
        takes what it can of the oldest, then of the next."""
        self._decode_next = True
        most = self.tokens_allowed
        if self.packs:
            return self._step(list(self._packed(prefill)))
        first = self.plan.next_chunk(prefill[0].remaining, most)
        chunk = self.plan.chunks[bisect_left(self.plan.chunks, first)]
        rows = [(prefill[0], first)]
        rows += [(one, min(one.remaining, chunk)) for one in prefill[1:] if one.remaining > chunk // 2]
        allowed = [count for count in self.plan.prefill_rows(chunk) if count * chunk <= most] or [1]
        filled = max(count for count in allowed if len(rows) >= math.ceil(ROWS_FILLED * count))
        return self._step(rows[:filled])

    def _packed(self, prefill: list[Sequence]) -> Iterator[tuple[Sequence, int]]:
        left = self.tokens_allowed
        for one in prefill:
            new = min(one.remaining, self.plan.prefill_chunk, left)
            if new > 0:
                yield one, new
            left -= new

    def _step(self, chosen: list[tuple[Sequence, int]]) -> Step:
        rows = tuple(Row(one, one.table, one.computed, new) for one, new in chosen if one.table is not None)
        blocks = max(self.plan.blocks_for(row.start + row.new) for row in rows)
        shape = len(rows), max(row.new for row in rows), blocks
        return Step(rows, shape if self.packs else self.plan.shape_for(*shape))
