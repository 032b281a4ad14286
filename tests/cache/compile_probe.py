"""A process that compiles a small module under a home's cache: prints torch's counters and what was said."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from trueup.cache import opened

FACTS = {"probe": 1}
VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def main() -> None:
    said: list[str] = []
    with opened(Path(sys.argv[1]), FACTS, variables=VARIABLES, say=said.append) as cache:
        os.environ.update(cache.environment)
        import torch
        from torch._dynamo.utils import counters

        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
        compiled = torch.compile(lambda x: module(x).softmax(-1).square().sum(), dynamic=False)
        loss = compiled(torch.randn(4, 32))
        loss.backward()
    counted = {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")}
    print(json.dumps({**counted, "loss": loss.item(), "said": said}))


if __name__ == "__main__":
    main()
