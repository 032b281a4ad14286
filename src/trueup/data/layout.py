"""One strategy under one compile mode, laid out on the real lengths and priced; and why it lost, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trueup.schema import Alternative, CompileMode, Shape, Strategy

from .arrangement import Arrangement, arrange
from .batches import head_rows
from .costs import Costs
from .job import JobData


@dataclass(frozen=True, eq=False)
class Layout:
    """What an epoch and the job would be. Fields as in schema.Alternative; `total_s` is None where the
    profile does not know seconds."""

    strategy: Strategy
    mode: CompileMode
    static: bool
    full: tuple[Shape, ...]
    training: Arrangement
    evaluation: tuple[Shape, ...]
    processed_tokens: int  # of an epoch
    attended_width: float  # keys that attention is computed with for a processed token, on average
    padding_share: float
    head_padding_share: float
    compile_s: float | None
    total_s: float | None

    @property
    def shapes(self) -> int:
        return len({*self.training.shapes, *self.evaluation})

    @property
    def micro_batch_tokens(self) -> int:
        """Processed tokens of a micro-batch: of the largest one, or on average where each has its own
        width."""
        if self.strategy == "longest" and self.training.batches:
            return -(-self.processed_tokens // self.training.batches)
        return max((rows * width for rows, width in self.full), default=1)

    def price(self, timed: bool) -> float:
        """What the cheapest layout has least of: seconds of the job, or processed tokens of an epoch."""
        return self.total_s if timed and self.total_s is not None else float(self.processed_tokens)

    def alternative(self, verdict: str) -> Alternative:
        return Alternative(
            strategy=self.strategy,
            compile=self.mode,
            full=self.full,
            shapes=self.shapes,
            padding_share=self.padding_share,
            head_padding_share=self.head_padding_share,
            compile_s=self.compile_s,
            total_s=self.total_s,
            verdict=verdict,
        )


def lay_out(
    data: JobData,
    strategy: Strategy,
    mode: CompileMode,
    full: tuple[Shape, ...],
    *,
    static: bool,
    multiple: int,
    chunk_rows: int | None,
    costs: Costs,
    passes: float,
) -> Layout:
    """Everything but `full` is as in Planner; `passes` are the epochs of the job."""
    training = arrange(data.lengths_N, strategy, full, static=static, multiple=multiple)
    evaluation = arrange(data.evaluation_N, strategy, full, static=static, multiple=multiple).shapes
    epoch = training.epoch(seed=0, epoch=0)
    supervised_B = epoch.per_batch(data.supervised_N)
    through_head = int(head_rows(supervised_B, chunk_rows).sum())
    rows_pairs = int((epoch.height_B * epoch.width_B**2).sum())
    example_pairs = int((data.lengths_N.astype(np.int64) ** 2).sum())
    epoch_s = float(costs.seconds(epoch.height_B, epoch.width_B).sum())
    epoch_s += through_head * costs.head_row_s + example_pairs * costs.example_pair_s
    compile_s = costs.compile_s(len(training.shapes), len(evaluation))
    total_s = None
    if costs.known and compile_s is not None:
        warm_up_s = sum(float(costs.seconds(*shape)) for shape in training.shapes)
        total_s = compile_s + warm_up_s + passes * epoch_s
    pairs = example_pairs if costs.example_pair_s else rows_pairs
    return Layout(
        *(strategy, mode, static, full, training, evaluation, epoch.processed_tokens),
        attended_width=pairs / max(1, epoch.processed_tokens),
        padding_share=epoch.padding_share,
        head_padding_share=1 - int(supervised_B.sum()) / through_head if through_head else 0.0,
        compile_s=compile_s,
        total_s=total_s,
    )


def verdict(layout: Layout, best: Layout) -> str:
    """Why `layout` is not the one to take."""
    if layout.total_s is None or best.total_s is None:
        more = layout.processed_tokens / max(1, best.processed_tokens) - 1
        return f"{more:.1%} more processed tokens, {layout.padding_share:.1%} of them padding"
    why = []
    if layout.compile_s is not None and best.compile_s is not None and layout.compile_s > best.compile_s:
        why.append(f"{layout.compile_s - best.compile_s:.0f} s more compiling")
    elif layout.mode != best.mode:
        why.append("slower steps")
    if layout.padding_share > best.padding_share + 0.0005:
        why.append(f"{layout.padding_share:.1%} padding instead of {best.padding_share:.1%}")
    if layout.attended_width > 1.05 * best.attended_width:
        why.append(f"attention with {layout.attended_width:.0f} keys a token, not {best.attended_width:.0f}")
    more_batches = layout.training.batches - best.training.batches
    if more_batches > 0:
        why.append(f"{more_batches} more micro-batches an epoch")
    more_s = layout.total_s - best.total_s
    longer = f"{more_s:,.1f} s ({more_s / max(best.total_s, 1e-9):.0%}) longer"
    return f"{longer}: {', '.join(why)}" if why else longer


def reason(asked: str, possible: Sequence[Layout], best: Layout, timed: bool) -> str:
    """Why the best one was taken, on one line."""
    if len(possible) == 1:
        return f"set by the recipe; {best.padding_share:.1%} padding"
    what = "least expected time" if timed else "fewest processed tokens an epoch"
    if asked != "auto":
        what = f"strategy set by the recipe, compile mode by {what}"
    cheapest: dict[Strategy, Layout] = {}
    for layout in sorted(possible, key=lambda one: one.price(timed)):
        cheapest.setdefault(layout.strategy, layout)
    listed = ", ".join(f"{one.strategy} {one.padding_share:.1%}" for one in cheapest.values())
    return f"{what} of {len(possible)} plans; padding, the cheapest first: {listed}"
