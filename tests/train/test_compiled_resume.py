"""A compiled run goes on without compiling: what it compiled came with its checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from survivors import Runs

# One shape to train on, and one to evaluate.
KEYS = ("compile.mode=layer", "train.tokens_per_step=96", "train.max_steps=4", "evaluate.every=null")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++")


def finds_all_of_it(folder: Path, *keys: str, **trouble: str) -> None:
    """On empty cache folders, as torch counts: nothing is looked for in vain, nor goes past the cache."""
    runs, counters = Runs(folder, *KEYS, *keys), folder / "counters.json"

    def counted(*names: str) -> int:
        found = json.loads(counters.read_text())
        return sum(count for name, count in found.items() if name.endswith(names))

    counting = {**trouble, "cache_counters": str(counters)}
    assert runs.train(trouble={"raise_in": 3, **counting}).code == 1
    assert (counted("_hit"), counted("_miss") > 0) == (0, True)
    shutil.rmtree(runs.home / "compile-cache")
    done = runs.train("--resume", "auto", trouble=counting)
    assert done.code == 0, done.err
    assert (counted("_miss", "_bypass"), counted("_hit") > 0) == (0, True)
    assert runs.record().measurements["compile_after_warm_up_count"].value == 0


def test_it_finds_what_was_compiled_of_a_part_of_each_layer(tmp_path: Path) -> None:
    """All that carries compiled code to another process is as it is for whole layers, which take long."""
    finds_all_of_it(tmp_path, "data.split={validation: 0, test: 0}", compile_only="input_layernorm")


@pytest.mark.slow
def test_it_finds_all_of_it_on_empty_cache_folders(tmp_path: Path) -> None:
    finds_all_of_it(tmp_path)
