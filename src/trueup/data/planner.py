"""Choosing the shapes of a job: a pure function of its lengths, the recipe, the device's rules and what the
platform profile knows. Every alternative is laid out on the real lengths and priced; the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from trueup.recipe.models import ShapesSection
from trueup.schema import (
    STRATEGIES,
    Alternative,
    CompileMode,
    DeviceRules,
    InputError,
    PlatformProfile,
    Shape,
    ShapePlan,
    Strategy,
    TrueupError,
)

from .arrangement import arrange, check_lengths
from .buckets import bucket_widths, heights
from .costs import Costs
from .job import JobData
from .layout import Layout, lay_out, reason, verdict
from .packing import pack_shape


@dataclass(frozen=True)
class Planner:
    """Everything a plan follows from. `job_tokens` are the useful tokens of the whole job
    (job.job_tokens); `modes` the compile modes to choose from; `chunk_rows` the rows of the head's chunks;
    `positions` the longest example the model can take. Without a profile plans are ranked by processed
    tokens."""

    data: JobData
    shapes: ShapesSection
    tokens_per_step: int
    job_tokens: float
    chunk_rows: int
    profile: PlatformProfile | None = None
    modes: tuple[CompileMode, ...] = ("none",)
    positions: int | None = None

    def plan(self) -> ShapePlan:
        """The plan with the least total time, and every alternative with the reason why it was not taken.

        Raises InputError for an example without tokens or longer than the model's positions or than a
        micro-batch, and for buckets that miss the longest example or suit the device's rules ill."""
        self._check()
        wanted = [one for one in STRATEGIES if self.shapes.strategy in ("auto", one)]
        layouts = {
            (strategy, mode): self._lay_out(strategy, mode)
            for mode, strategy in product(self.modes, STRATEGIES)
            if strategy != "longest" or not self._static(mode)
        }
        possible = [layout for layout in layouts.values() if layout.strategy in wanted]
        if not possible:
            raise InputError(
                "shapes.strategy: longest has no fixed shapes, and this device or compile mode wants them; "
                "set shapes.strategy: auto, or compile nothing"
            )
        timed = all(layout.total_s is not None for layout in possible)
        best = min(possible, key=lambda layout: (layout.price(timed), layout.shapes))
        alternatives = tuple(self._alternatives(layouts, wanted, best))
        why = reason(self.shapes.strategy, possible, best, timed) + self._because_of_memory()
        return self._plan_of(best, alternatives, why)

    def smaller(self, plan: ShapePlan, refused: Shape) -> ShapePlan:
        """The next plan to try after the device had no memory for `refused`: the same strategy and compile
        mode within half as many tokens, or one row of the longest example. An optimizer step holds as many
        tokens as before, in more micro-batches. Raises TrueupError where nothing smaller is left."""
        least = self._longest_row if not self.shapes.buckets else self.shapes.buckets[-1]
        tokens = refused[0] * refused[1]
        if tokens <= least:
            raise TrueupError(
                f"the device has no memory for a micro-batch of {refused[0]} x {refused[1]} tokens, and none "
                "smaller holds the longest example: lower data.max_length, or take a smaller model"
            )
        budget = max(least, tokens // 2)
        section = self.shapes.model_copy(update={"strategy": plan.strategy, "tokens_per_microbatch": budget})
        found = replace(self, shapes=section, modes=(plan.compile,)).plan()
        because = f"micro-batches of at most {budget} tokens: no memory for {refused[0]} x {refused[1]}"
        return found.model_copy(update={"reason": because})

    def evaluating(self, plan: ShapePlan) -> ShapePlan:
        """`plan`, made for the same training examples, with the shapes of those that are evaluated on now:
        what is trained stays as it was. Raises InputError where one of them is longer than its rows."""
        data = self.data
        shapes = arrange(
            data.evaluation_N, plan.strategy, plan.full, static=plan.static, multiple=plan.multiple
        ).shapes
        rows = self._head_rows({*plan.training, *shapes}) if plan.chunk_rows is not None else ()
        return plan.model_copy(update={"evaluation": shapes, "head_rows": rows, "data": data.digest})

    def _check(self) -> None:
        for lengths_N in (self.data.lengths_N, self.data.evaluation_N):
            check_lengths(lengths_N)
        longest, budget = self.data.longest, self._budget
        if self.positions is not None and longest > self.positions:
            raise InputError(
                f"the longest example has {longest} tokens, and the model positions for {self.positions}; "
                "lower data.max_length"
            )
        if longest > budget or (self._rules.static and self._longest_row > budget):
            wide = "" if self._longest_row == longest else f", in rows of {self._longest_row},"
            raise InputError(
                f"an example of {longest} tokens{wide} does not fit into a micro-batch of {budget}; "
                "raise shapes.tokens_per_microbatch or lower data.max_length"
                + (" (this device fits no more)" if budget < self.shapes.tokens_per_microbatch else "")
            )
        self._check_buckets()

    def _check_buckets(self) -> None:
        buckets, longest = self.shapes.buckets, self.data.longest
        if not buckets:
            return
        if buckets[-1] < longest:
            raise InputError(
                f"shapes.buckets ends at {buckets[-1]}, and the longest example has {longest} tokens; "
                "add a bucket for it, or lower data.max_length"
            )
        if buckets[-1] > self._budget:
            raise InputError(
                f"a row of {buckets[-1]} (shapes.buckets) does not fit into a micro-batch of {self._budget}; "
                "raise shapes.tokens_per_microbatch"
            )
        odd = [width for width in buckets if self._rules.static and width % self._rules.multiple]
        if odd:
            raise InputError(
                f"shapes.buckets: this device wants widths that are multiples of {self._rules.multiple}, "
                f"not {odd[0]}"
            )

    @property
    def _rules(self) -> DeviceRules:
        return DeviceRules() if self.profile is None else self.profile.rules

    @property
    def _budget(self) -> int:
        """Most tokens of a micro-batch: the recipe's, or what fits the device where that is less. Where
        earlier runs ran out of memory it is what they went on with, but not too small for the longest row."""
        limits = [self.shapes.tokens_per_microbatch, *(rows * width - 1 for rows, width in self._edges)]
        if self.profile is not None and self.profile.micro_batch_tokens is not None:
            multiple = self._rules.multiple
            rows = [-(-self.data.longest // multiple) * multiple, *(self.shapes.buckets or ())]
            limits.append(max(self.profile.micro_batch_tokens, *rows))
        return min(limits)

    @property
    def _edges(self) -> tuple[Shape, ...]:
        return () if self.profile is None else self.profile.memory_edges

    def _because_of_memory(self) -> str:
        """What earlier runs' memory made of the recipe's tokens, as a further part of a plan's reason."""
        if self._budget >= self.shapes.tokens_per_microbatch or not self._edges:
            return ""
        rows, width = min(self._edges, key=lambda shape: shape[0] * shape[1])
        return (
            f"; micro-batches of at most {self._budget} tokens, not {self.shapes.tokens_per_microbatch}: an "
            f"earlier run on this device had no memory for {rows} x {width}"
        )

    @property
    def _longest_row(self) -> int:
        """Width of a row for the longest example."""
        multiple = self._rules.multiple
        aligned = -(-self.data.longest // multiple) * multiple
        return aligned if self._rules.static else max(self.data.longest, min(aligned, self._budget))

    def _static(self, mode: CompileMode) -> bool:
        return self._rules.static or mode != "none"

    @property
    def _chunk_rows(self) -> int | None:
        """Only a static device needs whole chunks: torch.compile is given the decoder, not the head."""
        return self.chunk_rows if self._rules.static else None

    def _lay_out(self, strategy: Strategy, mode: CompileMode) -> Layout:
        static = self._static(mode)
        costs = Costs() if self.profile is None else Costs.of(self.profile, mode)
        return lay_out(
            self.data,
            strategy,
            mode,
            self._full(strategy, costs, static),
            static=static,
            multiple=self._rules.multiple,
            chunk_rows=self._chunk_rows,
            costs=costs,
            passes=self._passes,
        )

    @property
    def _passes(self) -> float:
        """Epochs of the job."""
        return self.job_tokens / max(1, self.data.useful_tokens)

    def _full(self, strategy: Strategy, costs: Costs, static: bool) -> tuple[Shape, ...]:
        """The shape of a full micro-batch, of each bucket."""
        budget, longest = self._budget, self._longest_row
        if not longest:
            return ()
        lengths_N = self.data.lengths_N.astype(np.int64)
        multiple = self._rules.multiple
        if strategy == "pack":
            best = pack_shape(
                *(lengths_N, budget, longest),
                costs=costs,
                multiple=multiple,
                static=static,
                supervised=int(self.data.supervised_N.sum(dtype=np.int64)),
                chunk_rows=self._chunk_rows,
            )
            return (best,)
        if strategy == "bucket":
            widths = list(self.shapes.buckets or ()) or bucket_widths(
                *(lengths_N, budget),
                supervised=self.data.supervised_N,
                chunk_rows=self._chunk_rows,
                costs=costs,
                passes=self._passes,
                shape_s=costs.shape_s((1, budget)),
                multiple=multiple,
                static=static,
                longest=longest,
            )
            return tuple(heights(widths, budget))
        return tuple(heights([longest], budget))

    def _alternatives(
        self, layouts: dict[tuple[Strategy, CompileMode], Layout], wanted: list[Strategy], best: Layout
    ) -> Iterator[Alternative]:
        for mode, strategy in product(self.modes, STRATEGIES):
            layout = layouts.get((strategy, mode))
            if layout is None:
                why = "its shapes follow the data, and fixed ones are wanted here"
                yield Alternative(strategy=strategy, compile=mode, verdict=why)
            elif layout is best:
                yield layout.alternative("chosen")
            elif strategy in wanted:
                yield layout.alternative(verdict(layout, best))
            else:
                yield layout.alternative(f"the recipe sets {self.shapes.strategy}")

    def _plan_of(self, best: Layout, alternatives: tuple[Alternative, ...], why: str) -> ShapePlan:
        per_step = max(1, self.tokens_per_step // best.micro_batch_tokens)
        shapes = {*best.training.shapes, *best.evaluation}
        return ShapePlan(
            strategy=best.strategy,
            compile=best.mode,
            static=best.static,
            full=best.full,
            training=best.training.shapes,
            evaluation=best.evaluation,
            chunk_rows=self._chunk_rows,
            head_rows=() if self._chunk_rows is None else self._head_rows(shapes),
            tokens_per_microbatch=self._budget,
            multiple=self._rules.multiple,
            micro_batches_per_step=per_step,
            steps_per_epoch=-(-best.training.batches // per_step),
            data=self.data.digest,
            reason=why,
            alternatives=alternatives,
        )

    def _head_rows(self, shapes: Collection[Shape]) -> tuple[int, ...]:
        """Every number of rows, in whole chunks, that micro-batches of these shapes may send through the
        head."""
        most = max((rows * width for rows, width in shapes), default=0)
        return tuple(n * self.chunk_rows for n in range(1, -(-most // self.chunk_rows) + 1))


def padding_shares(lengths_N: NDArray[np.int32], shapes: ShapesSection) -> dict[Strategy, float]:
    """Share of processed tokens that would be padding under each strategy, on an eager device."""
    data = JobData(lengths_N, np.zeros_like(lengths_N), lengths_N[:0])
    plan = Planner(data, shapes, shapes.tokens_per_microbatch, data.useful_tokens, chunk_rows=1).plan()
    return {one.strategy: one.padding_share or 0.0 for one in plan.alternatives}
