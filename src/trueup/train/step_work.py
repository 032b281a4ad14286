"""What the micro-batches of a plan ask of a device, counted before any of their arrays exist."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trueup.analysis.predict_terms import MicroBatchWork
from trueup.data import Arrangement, PlannedBatch, TokenTable
from trueup.data.batches import head_rows
from trueup.schema import AttentionMode, ShapePlan

MOST_STEPS = 512  # of an epoch, evenly spread: enough for a 99th percentile
MOST_MICRO_BATCHES = 8192  # of all steps together: to count them and to foretell their time takes about 3 s

StepWork = tuple[MicroBatchWork, ...]


def planned_work(
    plan: ShapePlan,
    arrangement: Arrangement,
    table: TokenTable,
    *,
    seed: int,
    attention: AttentionMode,
    steps: int | None = None,
) -> list[StepWork]:
    """The optimizer steps of the first epoch, or of as much of it as `steps` says: all, or as many of them as
    MOST_STEPS and MOST_MICRO_BATCHES allow, at least one, evenly spread. All ranks' micro-batches are in a
    step."""
    planned = arrangement.epoch(seed, 0, plan.micro_batches_per_step).steps
    count = planned_steps(plan, steps)
    most = max(1, min(MOST_STEPS, MOST_MICRO_BATCHES // plan.micro_batches_per_step))
    spread = np.linspace(0, max(0, count - 1), min(count, most)).round()
    chosen: list[int] = np.unique(spread.astype(np.int64)).tolist()
    return [
        tuple(work_of(one, table, chunk_rows=plan.chunk_rows, attention=attention) for one in planned[at])
        for at in chosen
    ]


def planned_steps(plan: ShapePlan, steps: int | None) -> int:
    """Optimizer steps of the first epoch, or of as much of it as `steps` says."""
    return plan.steps_per_epoch if steps is None else min(steps, plan.steps_per_epoch)


def work_of(
    planned: PlannedBatch, table: TokenTable, *, chunk_rows: int | None, attention: AttentionMode
) -> MicroBatchWork:
    """Counts of one planned micro-batch."""
    examples = np.asarray(planned.examples, dtype=np.int64)
    supervised = int(table.supervised[examples].sum(dtype=np.int64))
    rows, width = planned.shape
    return counted(
        [int(length) for length in table.lengths[examples]],
        rows=rows,
        width=width,
        supervised=supervised,
        head=int(head_rows(supervised, chunk_rows)),
        attention=attention,
    )


def counted(
    lengths: Sequence[int], *, rows: int, width: int, supervised: int, head: int, attention: AttentionMode
) -> MicroBatchWork:
    """Of a micro-batch with examples of these lengths. Attention with a mask computes all pairs of a row."""
    scores = again = rows * width * width
    groups = 1
    if attention == "example":
        from trueup.model.attention import scores_of  # loads torch

        scores, again, groups = scores_of(lengths)
    return MicroBatchWork(
        rows=rows,
        width=width,
        useful=sum(lengths),
        supervised=supervised,
        head_rows=head,
        attention_sum_sq=sum(length * length for length in lengths),
        scores=scores,
        scores_again=again,
        groups=groups,
        examples=len(lengths),
    )
