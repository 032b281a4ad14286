"""What torch really compiled is found again by a fresh process, also after the home has moved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compile_probe import FACTS, VARIABLES

from trueup.cache import CacheStore, key_of

PROBE = Path(__file__).with_name("compile_probe.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++"),
]


def compiled(home: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROBE), str(home)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_fresh_process_compiles_nothing_that_is_kept(home: Path, tmp_path: Path) -> None:
    cold = compiled(home)
    assert (cold["hit"], cold["miss"] > 0, cold["said"]) == (0, True, [])
    store, key = CacheStore(home), key_of(FACTS)
    first = store.read(key)
    assert first is not None

    warm = compiled(home)
    assert (warm["hit"], warm["miss"], warm["said"]) == (cold["miss"], 0, [])
    assert warm["loss"] == cold["loss"]
    after = store.read(key)
    assert after is not None
    assert after.files == first.files  # nothing was built, nothing written anew

    shutil.move(home, tmp_path / "moved")
    moved = compiled(tmp_path / "moved")
    assert (moved["hit"], moved["miss"], moved["said"]) == (cold["miss"], 0, [])


def test_a_tampered_graph_is_dropped_said_and_compiled_anew(home: Path) -> None:
    cold = compiled(home)
    store, key = CacheStore(home), key_of(FACTS)
    kept = store.read(key)
    assert kept is not None
    tampered = [
        name for name in kept.files if name.startswith((f"{VARIABLES[0]}/fxgraph", f"{VARIABLES[0]}/aot"))
    ]
    for name in tampered:
        (store.folder / key / "files" / kept.files[name].sha256).write_bytes(b"evil")
    again = compiled(home)
    assert (again["hit"], again["miss"], again["loss"]) == (0, cold["miss"], cold["loss"])
    assert f"damaged: {len(tampered)} of {len(kept.files)} files" in again["said"][0]
    assert compiled(home)["miss"] == 0
