"""Run under torchrun: steps that fail on the last rank alone; the leading rank writes what became of them.

Arguments: recipe, home, output (.json). First memory runs out on the last rank above 100 tokens, then its
gradient is no number. With one process the same happens to that one.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from probe_session import opened

from trueup.model.reference import widen
from trueup.train import stepper
from trueup.train.recovery import Recovery
from trueup.train.session import Session

OVERRIDES = (
    *("compile.mode=none", "shapes.strategy=max", "failure.non_finite=skip"),
    *("shapes.tokens_per_microbatch=192", "train.tokens_per_step=768"),
)


def main(recipe_path: str, home: str, out: str) -> None:
    session, sink = opened(recipe_path, home, *OVERRIDES)
    world = session.world
    session = replace(session, model=widen(session.model))
    recovery = Recovery.of(session)
    fails_here = world.rank == world.size - 1
    if fails_here:
        _little_memory()
    losses = [_step(session, recovery, n).loss for n in (0, 1)]
    if fails_here:
        _no_number()
    losses.append(_step(session, recovery, 2).loss)
    skipped = _step(session, recovery, 3)
    if world.leads:
        events = {e.kind: e.data for e in sink.events if e.kind in ("out_of_memory", "non_finite")}
        weights = [float(p.detach().double().norm()) for _, p in session.model.trainable]
        found = {"losses": losses, "skipped": skipped.skipped, "events": events, "weights": weights}
        Path(out).write_text(json.dumps(found | {"most_tokens": recovery.most_tokens}))
    world.close()


def _step(session: Session, recovery: Recovery, n: int) -> stepper.StepResult:
    planned = session.epoch(0)[n]
    return recovery.step(session, planned, recovery.gather(session, planned), 1e-2, step=n + 1)


def _little_memory() -> None:
    original = stepper.micro_batch_loss

    def patched(session: Session, micro_batch: Any, phase: Any) -> torch.Tensor:
        loss = original(session, micro_batch, phase)
        if micro_batch.processed_tokens > 100:
            raise torch.OutOfMemoryError("out of memory")
        return loss

    stepper.micro_batch_loss = patched


def _no_number() -> None:
    """From the step after the next on, what a layer's feed-forward part makes is no number."""
    import trueup.model.decoder

    decoder: Any = trueup.model.decoder
    steps: Any = stepper
    original, accumulate, calls = decoder.gated, steps.accumulate, [0]

    def counted(*arguments: Any) -> Any:
        calls[0] += 1
        return accumulate(*arguments)

    def patched(x: torch.Tensor) -> Any:
        return original(x) * (math.nan if calls[0] > 1 else 1.0)

    steps.accumulate = counted
    decoder.gated = patched


if __name__ == "__main__":
    main(*sys.argv[1:])
