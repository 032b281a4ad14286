"""A million lengths planned and one epoch's order made, every strategy and two compile modes weighed.

    python bench/plan_million.py

The case is a length sampler that took minutes (transformers#10909). Exits with 1 above 20 s or 1 GB.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from trueup.analysis.profile import estimated_profile
from trueup.data import JobData, Planner
from trueup.recipe.models import ShapesSection
from trueup.schema import ModelDims

EXAMPLES = 1_000_000
MOST_S, MOST_BYTES = 20.0, 1e9
SMOLLM2 = ModelDims(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152, tied_head=True,
    parameters=136_358_208, trainable_parameters=1_843_200, lora_parameters=1_843_200,
)  # fmt: skip


def main() -> int:
    rng = np.random.default_rng(0)
    lengths_N = np.clip(rng.lognormal(5.0, 1.0, EXAMPLES), 16, 2048).astype(np.int32)
    data = JobData(lengths_N, lengths_N // 2, lengths_N[:100])
    began = time.perf_counter()
    planner = Planner(
        data=data,
        shapes=ShapesSection(tokens_per_microbatch=4096),
        tokens_per_step=16384,
        job_tokens=data.useful_tokens,
        chunk_rows=128,
        profile=estimated_profile("cpu", "any", SMOLLM2, static=False),
        modes=("none", "layer"),
    )
    plan = planner.plan()
    planned_s = time.perf_counter() - began
    for one in plan.alternatives:
        padding = "" if one.padding_share is None else f"{one.padding_share:.1%} padding"
        print(f"  {one.strategy:8} {one.compile:6} {padding:15} {one.verdict}")
    slowest = 0.0
    for strategy in ("pack", "bucket", "max", "longest"):
        section = planner.shapes.model_copy(update={"strategy": strategy})
        alone = Planner(data, section, planner.tokens_per_step, planner.job_tokens, planner.chunk_rows).plan()
        began = time.perf_counter()
        steps = data.arranged(alone).epoch(0, 1, alone.micro_batches_per_step).steps
        last = steps[len(steps) - 1]
        seconds = time.perf_counter() - began
        slowest = max(slowest, seconds)
        print(
            f"order of an epoch, {strategy:8} {seconds:5.2f} s, {len(steps):,} steps, {len(last)} in the last"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"{EXAMPLES:,} lengths: planned in {planned_s:.1f} s, an epoch's order in at most {slowest:.1f} s;")
    print(f"peak memory of the process {peak / 1e6:.0f} MB")
    return int(planned_s + slowest > MOST_S or peak > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
