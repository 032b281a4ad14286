"""Run in a process of its own: a step whose micro-batch needs more memory than the process may have.

Arguments: recipe, home, megabytes above what the process has after a small step. Prints JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from probe_session import opened

from trueup.train.recovery import Recovery
from trueup.train.split import within

OVERRIDES = (
    *("compile.mode=none", "shapes.strategy=max", "data.max_length=512"),
    *("data.split.validation=0", "data.split.test=0", "data.duplicates.near=ignore"),
    *("shapes.tokens_per_microbatch=65536", "train.tokens_per_step=65536", "platform.threads=1"),
)


def main(recipe_path: str, home: str, megabytes: str) -> None:
    session, sink = opened(recipe_path, home, *OVERRIDES)
    recovery = Recovery.of(session)
    planned = session.epoch(0)[0]
    (piece, *_) = within(planned, 4096, session.training.lengths, multiple=8)
    recovery.step(session, [piece], recovery.gather(session, [piece]), 0.0, step=1)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + int(megabytes) * (1 << 20), resource.RLIM_INFINITY))
    result = recovery.step(session, planned, recovery.gather(session, planned), 1e-3, step=2)
    causes = [event.data["cause"] for event in sink.events if event.kind == "out_of_memory"]
    print(json.dumps({"loss": result.loss, "micro_batches": result.batch.micro_batches, "causes": causes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
