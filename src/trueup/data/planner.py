"""Choosing the shapes of a job: a pure function of its lengths, the recipe, the device's rules and what the
platform profile knows. Every alternative is laid out on the real lengths and priced; the cheapest is taken.

Shapes: N training examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from trueup.recipe.models import ShapesSection
from trueup.schema import (
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

from .arrangement import Arrangement, arrange, check_lengths
from .buckets import bucket_widths, heights
from .costs import Costs
from .job import JobData
from .packing import pack_shape

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, eq=False)
class _Layout:
    """One strategy under one compile mode, laid out and priced."""

    strategy: Strategy
    mode: CompileMode
    static: bool
    full: tuple[Shape, ...]
    training: Arrangement
    evaluation: tuple[Shape, ...]
    processed_tokens: int  # of an epoch
    padding_share: float
    head_padding_share: float
    compile_s: float | None
    total_s: float | None

    @property
    def shapes(self) -> int:
        return len({*self.training.shapes, *self.evaluation})


@dataclass(frozen=True)
class Planner:
    """Everything a plan follows from. `job_tokens` are the useful tokens of the whole job (`job_tokens`
    below); `modes` the compile modes to choose from; `chunk_rows` the rows of the head's chunks; `positions`
    the longest example the model can take. Without a profile plans are ranked by processed tokens."""

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
        layouts: dict[tuple[Strategy, CompileMode], _Layout] = {}
        for mode in self.modes:
            for strategy in STRATEGIES:
                if strategy != "longest" or not self._static(mode):
                    layouts[strategy, mode] = self._lay_out(strategy, mode)
        possible = [layouts[key] for key in layouts if key[0] in wanted]
        if not possible:
            raise InputError(
                "shapes.strategy: longest has no fixed shapes, and this device or compile mode wants them; "
                "set shapes.strategy: auto, or compile nothing"
            )
        timed = all(layout.total_s is not None for layout in possible)
        best = min(possible, key=lambda layout: (_price(layout, timed), layout.shapes))
        alternatives = tuple(self._alternatives(layouts, wanted, best, timed))
        return self._plan_of(best, alternatives, _reason(self.shapes, possible, best, timed))

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
        """Most tokens of a micro-batch: the recipe's, or what fits the device where that is less."""
        edges = () if self.profile is None else self.profile.memory_edges
        refused = [rows * width - 1 for rows, width in edges]
        fits = self._rules.max_tokens
        return min([self.shapes.tokens_per_microbatch, *refused, *([] if fits is None else [fits])])

    @property
    def _longest_row(self) -> int:
        """Width of a row for the longest example."""
        multiple = self._rules.multiple
        aligned = -(-self.data.longest // multiple) * multiple
        return aligned if self._rules.static else max(self.data.longest, min(aligned, self._budget))

    def _static(self, mode: CompileMode) -> bool:
        return self._rules.static or mode != "none"

    def _lay_out(self, strategy: Strategy, mode: CompileMode) -> _Layout:
        data, static = self.data, self._static(mode)
        costs = Costs() if self.profile is None else Costs.of(self.profile, mode)
        full = self._full(strategy, costs, static)
        multiple = self._rules.multiple
        training = arrange(data.lengths_N, strategy, full, static=static, multiple=multiple)
        evaluation = arrange(data.evaluation_N, strategy, full, static=static, multiple=multiple).shapes
        epoch = training.epoch(0, 0)
        supervised_B = epoch.per_batch(data.supervised_N)
        chunks_B = np.maximum(1, -(-supervised_B // self.chunk_rows))  # as batches.head_rows
        head_B = chunks_B * self.chunk_rows if static else supervised_B
        head_rows = int(head_B.sum())
        seconds = float(costs.seconds(epoch.height_B, epoch.width_B).sum()) + head_rows * costs.head_row_s
        warm_up = sum(float(costs.seconds(*shape)) for shape in training.shapes)
        compile_s = costs.compile_s(len(training.shapes), len(evaluation))
        total_s = None
        if costs.known and compile_s is not None:
            total_s = compile_s + warm_up + self._passes * seconds
        return _Layout(
            *(strategy, mode, static, full, training, evaluation, epoch.processed_tokens),
            padding_share=epoch.padding_share,
            head_padding_share=1 - int(supervised_B.sum()) / head_rows if head_rows else 0.0,
            compile_s=compile_s,
            total_s=total_s,
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
            return (pack_shape(lengths_N, budget, longest, costs=costs, multiple=multiple, static=static),)
        if strategy == "bucket":
            widths = list(self.shapes.buckets or ()) or bucket_widths(
                *(lengths_N, budget),
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
        self,
        layouts: dict[tuple[Strategy, CompileMode], _Layout],
        wanted: list[Strategy],
        best: _Layout,
        timed: bool,
    ) -> Iterator[Alternative]:
        for mode in self.modes:
            for strategy in STRATEGIES:
                layout = layouts.get((strategy, mode))
                if layout is None:
                    verdict = "its shapes follow the data, and fixed ones are wanted here"
                    yield Alternative(strategy=strategy, compile=mode, verdict=verdict)
                    continue
                verdict = _verdict(layout, best, timed)
                if strategy not in wanted:
                    verdict = f"the recipe sets {self.shapes.strategy}; {verdict}"
                yield Alternative(
                    strategy=strategy,
                    compile=mode,
                    full=layout.full,
                    shapes=layout.shapes,
                    padding_share=layout.padding_share,
                    head_padding_share=layout.head_padding_share,
                    compile_s=layout.compile_s,
                    total_s=layout.total_s,
                    verdict="chosen" if layout is best else verdict,
                )

    def _plan_of(self, best: _Layout, alternatives: tuple[Alternative, ...], reason: str) -> ShapePlan:
        batches = best.training.batches
        largest = max((rows * width for rows, width in best.full), default=1)
        if best.strategy == "longest" and batches:  # its micro-batches are far from their limit
            largest = -(-best.processed_tokens // batches)
        per_step = max(1, self.tokens_per_step // largest)
        most = max((rows * width for rows, width in {*best.training.shapes, *best.evaluation}), default=0)
        chunks = range(1, -(-most // self.chunk_rows) + 1)
        return ShapePlan(
            strategy=best.strategy,
            compile=best.mode,
            static=best.static,
            full=best.full,
            training=best.training.shapes,
            evaluation=best.evaluation,
            chunk_rows=self.chunk_rows if best.static else None,
            head_rows=tuple(n * self.chunk_rows for n in chunks) if best.static else (),
            tokens_per_microbatch=self._budget,
            multiple=self._rules.multiple,
            micro_batches_per_step=per_step,
            steps_per_epoch=-(-batches // per_step),
            padding_share=best.padding_share,
            head_padding_share=best.head_padding_share,
            compile_s=best.compile_s,
            total_s=best.total_s,
            data=self.data.digest,
            reason=reason,
            alternatives=alternatives,
        )


def padding_shares(lengths_N: NDArray[np.int32], shapes: ShapesSection) -> dict[Strategy, float]:
    """Share of processed tokens that would be padding under each strategy, on an eager device."""
    data = JobData(lengths_N, np.zeros_like(lengths_N), lengths_N[:0])
    plan = Planner(data, shapes, shapes.tokens_per_microbatch, data.useful_tokens, chunk_rows=1).plan()
    return {one.strategy: one.padding_share or 0.0 for one in plan.alternatives}


def _price(layout: _Layout, timed: bool) -> float:
    if timed:
        assert layout.total_s is not None
        return layout.total_s
    return float(layout.processed_tokens)


def _verdict(layout: _Layout, best: _Layout, timed: bool) -> str:
    """Why `layout` is not the one to take, in words."""
    if not timed or layout.total_s is None or best.total_s is None:
        more = layout.processed_tokens / max(1, best.processed_tokens) - 1
        return f"{more:.1%} more processed tokens, {layout.padding_share:.1%} of its own padding"
    words = []
    if layout.compile_s is not None and best.compile_s is not None and layout.compile_s > best.compile_s:
        words.append(f"{layout.compile_s - best.compile_s:.0f} s more compiling")
    if layout.padding_share > best.padding_share + 0.0005:
        words.append(f"{layout.padding_share:.1%} padding against {best.padding_share:.1%}")
    if layout.training.batches > best.training.batches:
        words.append(f"{layout.training.batches - best.training.batches} more micro-batches an epoch")
    longer = layout.total_s - best.total_s
    return f"{longer:.1f} s longer" + (f": {', '.join(words)}" if words else "")


def _reason(shapes: ShapesSection, possible: list[_Layout], best: _Layout, timed: bool) -> str:
    if len(possible) == 1:
        return "set by the recipe"
    what = "least expected time" if timed else "fewer processed tokens an epoch"
    if shapes.strategy != "auto":
        what = f"set by the recipe, compile mode by {what}"
    shares: dict[Strategy, float] = {}
    for layout in sorted(possible, key=lambda layout: _price(layout, timed), reverse=True):
        shares[layout.strategy] = layout.padding_share
    listed = ", ".join(f"{name} {share:.1%}" for name, share in sorted(shares.items(), key=lambda s: s[1]))
    return f"{what}; padding {listed}; {best.shapes} shapes"
