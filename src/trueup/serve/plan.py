"""The serving plan: the finite set of shapes the engine will ever show a device, chosen before it is opened.

A step is (B rows, Q new tokens in each, W blocks of context in each). Decode is Q = 1.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from trueup.schema import InputError
from trueup.schema.counting import counted

StepShape = tuple[int, int, int]  # (B, Q, W)

SMALLEST_CHUNK = 16  # tokens; below it a step costs about the same whatever its size
SMALLEST_CONTEXT = 256  # tokens; likewise
STEP_TOKENS = 32  # tokens of padding that are cheaper than one step more
ROWS_FILLED = 0.75  # share of a prefill shape's rows that must be there to take it
# Ratios of neighbouring buckets (decode rows, prefill rows, chunks, context), fine to coarse.
RATIOS = ((1.5, 4, 2, 2), (2, 4, 2, 2), (2, 4, 4, 2), (2, 4, 4, 4), (4, 16, 4, 4), (16, 64, 16, 16))


@dataclass(frozen=True)
class ServingPlan:
    """`blocks` of the pool include block 0, the null block, which no request gets. `prefill_shapes` are
    (rows, tokens); every number of tokens is there with one row. `context_blocks` reach `max_context`. Where
    padding is not computed (`protocols.Runner.drops_padding`), steps are of any shape, and of the plan rows,
    tokens of a step and context are left: none takes more than the largest of its shapes."""

    block_size: int  # tokens
    blocks: int
    max_context: int  # tokens, prompt and answer together
    max_rows: int  # requests under way at once
    prefill_chunk: int  # the most prompt tokens of one request in a step
    decode_rows: tuple[int, ...]
    prefill_shapes: tuple[tuple[int, int], ...]
    context_blocks: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises InputError where the shapes do not cover what the plan promises."""
        sizes = ("block_size", "blocks", "max_context", "max_rows", "prefill_chunk")
        for name, least in zip(sizes, (1, 2, 2, 1, 1), strict=True):
            if getattr(self, name) < least:
                raise InputError(f"serving plan: {name} is {getattr(self, name)}; expected at least {least}")
        covered = (
            _ascending(self.decode_rows, self.max_rows)
            and _ascending(self.context_blocks, self.blocks_for(self.max_context))
            and _ascending(self.chunks, self.prefill_chunk)
            and all((1, tokens) in self.prefill_shapes for _, tokens in self.prefill_shapes)
        )
        if not covered:
            raise InputError(
                f"serving plan: its shapes do not cover {counted(self.max_rows, 'row')}, chunks of "
                f"{self.prefill_chunk} and {self.max_context} tokens of context; make it by plan_serving"
            )

    @property
    def usable_blocks(self) -> int:
        return self.blocks - 1

    @property
    def most_tokens(self) -> int:
        """The longest request that is not refused, prompt and answer together. The last token of an answer
        needs no place in the pool."""
        return min(self.max_context, self.usable_blocks * self.block_size + 1)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Tokens of a prefill row, ascending."""
        return tuple(sorted({tokens for _, tokens in self.prefill_shapes}))

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def prefill_rows(self, tokens: int) -> tuple[int, ...]:
        """Row buckets of the chunk `tokens`, ascending; the first is 1."""
        return tuple(sorted(rows for rows, chunk in self.prefill_shapes if chunk == tokens))

    def shapes(self) -> tuple[StepShape, ...]:
        """Every shape the engine can show, the largest first."""
        decode = [(rows, 1, context) for rows in self.decode_rows for context in self.context_blocks]
        below = {1: 0, **{upper: lower for lower, upper in pairwise((0, *self.chunks))}}
        prefill = [
            (rows, tokens, context)
            for rows, tokens in self.prefill_shapes
            for context in self.context_blocks
            if context * self.block_size > below[tokens]  # fewer tokens take a smaller chunk
        ]
        return _largest_first({*decode, *prefill})

    def largest_shapes(self) -> tuple[StepShape, ...]:
        """For each number of new tokens the most rows over the longest context: no other shape takes more
        memory than one of these."""
        most = {1: self.max_rows}
        for rows, tokens in self.prefill_shapes:
            most[tokens] = max(rows, most.get(tokens, 0))
        return _largest_first({(rows, tokens, self.context_blocks[-1]) for tokens, rows in most.items()})

    def shape_for(self, rows: int, new_tokens: int, blocks: int) -> StepShape:
        """The smallest shape of the plan for these. Raises InputError where there is none."""
        try:
            context = self.context_blocks[bisect_left(self.context_blocks, blocks)]
            if new_tokens == 1:
                return self.decode_rows[bisect_left(self.decode_rows, rows)], 1, context
            tokens = self.chunks[bisect_left(self.chunks, new_tokens)]
            choice = self.prefill_rows(tokens)
            return choice[bisect_left(choice, rows)], tokens, context
        except IndexError:
            raise InputError(
                f"serving plan: no shape for {counted(rows, 'row')} of "
                f"{counted(new_tokens, 'new token')} over {counted(blocks, 'block')}"
            ) from None

    def next_chunk(self, remaining: int, most: int | None = None) -> int:
        """How many of a prompt's `remaining` tokens to take next: all that a step can, or a full chunk of the
        next smaller kind where padding would cost more than one step more. `most` bounds the chunk."""
        chunks = [chunk for chunk in self.chunks if most is None or chunk <= most] or [self.chunks[0]]
        at = min(bisect_left(chunks, remaining), len(chunks) - 1)
        padding = chunks[at] - remaining
        if at > 0 and padding > max(STEP_TOKENS, chunks[at] // 4):
            return chunks[at - 1]
        return min(remaining, chunks[at])

    def worst_padding(self) -> dict[str, float]:
        """The largest shares of padding that a step can have: `decode_rows`, of its rows; `prefill_tokens`,
        of its tokens where its oldest row has a smallest chunk or more; `context_blocks`, of a row's table
        beyond the smallest."""
        return {
            "decode_rows": max(
                ((upper - lower - 1) / upper for lower, upper in pairwise((0, *self.decode_rows))),
                default=0.0,
            ),
            "prefill_tokens": max(
                self._prefill_padding(rows, tokens) for rows, tokens in self.prefill_shapes
            ),
            "context_blocks": max(
                ((upper - lower - 1) / upper for lower, upper in pairwise(self.context_blocks)), default=0.0
            ),
        }

    def _prefill_padding(self, rows: int, tokens: int) -> float:
        least = next(
            new
            for new in range(self.chunks[0], tokens + 1)
            if self.next_chunk(new) == new and self.chunks[bisect_left(self.chunks, new)] == tokens
        )
        others = max(0, math.ceil(ROWS_FILLED * rows) - 1)
        return 1 - (least + others * (tokens // 2 + 1)) / (rows * tokens)


def _largest_first(shapes: set[StepShape]) -> tuple[StepShape, ...]:
    return tuple(sorted(shapes, key=lambda shape: (-math.prod(shape), shape)))


def _ascending(buckets: tuple[int, ...], last: int) -> bool:
    return bool(buckets) and buckets[-1] == last and all(a < b for a, b in pairwise((0, *buckets)))


def plan_serving(
    *,
    max_context: int,
    blocks: int,
    concurrency: int,
    block_size: int = 16,
    prefill_chunk: int = 256,
    most_shapes: int = 96,
) -> ServingPlan:
    """The finest plan of at most `most_shapes` shapes; each costs a compile where anything is compiled.

    `blocks` of `block_size` tokens are what memory has room for, the null block among them; `max_context` the
    model's limit or less. Raises InputError where even the coarsest plan has more shapes.
    """
    plans = list(_plans(max_context, blocks, concurrency, block_size, prefill_chunk))
    for plan in plans:
        if len(plan.shapes()) <= most_shapes:
            return plan
    raise InputError(
        f"serving plan: {counted(len(plans[-1].shapes()), 'shape')} at the least for "
        f"{counted(concurrency, 'row')} and {max_context} tokens of context; most_shapes is "
        f"{most_shapes}: raise it, or lower the context or the rows"
    )


def _plans(
    max_context: int, blocks: int, rows: int, block_size: int, prefill_chunk: int
) -> Iterator[ServingPlan]:
    if min(max_context, blocks, rows, block_size, prefill_chunk) < 1:
        raise InputError("serving plan: context, blocks, block size, rows and chunk are all at least 1")
    chunk = min(prefill_chunk, max(2, max_context))
    longest = -(-max_context // block_size)
    for decode, prefill, tokens, context in RATIOS:
        chunks = _geometric(min(SMALLEST_CHUNK, chunk), chunk, tokens)
        yield ServingPlan(
            block_size=block_size,
            blocks=blocks,
            max_context=max_context,
            max_rows=rows,
            prefill_chunk=chunk,
            decode_rows=_geometric(1, rows, decode),
            prefill_shapes=tuple(
                (count, size)
                for size in chunks
                for count in _geometric(1, min(rows, max(1, chunk // size)), prefill)
            ),
            context_blocks=_geometric(min(-(-SMALLEST_CONTEXT // block_size), longest), longest, context),
        )


def _geometric(first: int, last: int, ratio: float) -> tuple[int, ...]:
    """From `first` to `last`, each about `ratio` times the one before."""
    found = [first]
    while found[-1] < last:
        found.append(min(last, max(found[-1] + 1, int(found[-1] * ratio))))
    return tuple(found)
