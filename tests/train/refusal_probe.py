"""Run under torchrun: the second rank's device refuses shapes, then fails at one. Each rank writes what it
ended up with as JSON to OUT.RANK.

Arguments: recipe, home, out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from probe_session import opened

from trueup.schema import TrueupError
from trueup.train import warm_up
from trueup.train.stepper import gather, train_step

MOST_TOKENS = 100


def main(recipe_path: str, home: str, out: str) -> None:
    session, _ = opened(
        recipe_path, home, "compile.mode=none", "shapes.tokens_per_microbatch=192", "evaluate.every=null"
    )
    world, real = session.world, warm_up.micro_batch_loss

    def little_memory(session: Any, batch: Any, phase: Any) -> Any:
        if world.rank == 1 and batch.processed_tokens > MOST_TOKENS:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return real(session, batch, phase)

    def broken(session: Any, batch: Any, phase: Any) -> Any:
        if world.rank == 1:
            raise ValueError("a rank of its own kind")
        return little_memory(session, batch, phase)

    warm_up.micro_batch_loss = little_memory
    session = warm_up.warmed_up(session, lambda text: None)
    result = train_step(session, gather(session, session.epoch(0)[0]), lr=1e-2)
    found = {"plan": session.plan.model_dump(mode="json"), "loss": result.loss}
    warm_up.micro_batch_loss = broken
    try:
        warm_up.warmed_up(session, lambda text: None)
    except (TrueupError, ValueError) as error:
        found["error"] = str(error)
    Path(f"{out}.{world.rank}").write_text(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
