"""Memory that really runs out: the allocator's own error, in a process whose memory is limited."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).parent / "memory_probe.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")


@pytest.fixture
def records() -> list[dict[str, str]]:
    """Enough tokens that one micro-batch of them takes hundreds of megabytes."""
    return [
        {"prompt": f"What is {n}?", "completion": " ".join(str(n + k) for k in range(60))} for n in range(200)
    ]


@pytest.mark.slow
def test_a_step_without_memory_is_done_in_smaller_micro_batches(
    home: Path, recipe_file: Path, environment: dict[str, str]
) -> None:
    found = []
    for megabytes in (8192, 200):
        command = [sys.executable, str(PROBE), str(recipe_file), str(home), str(megabytes)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    enough, short = found
    assert not enough["causes"]
    assert short["causes"]
    assert all("allocate memory" in cause for cause in short["causes"])
    assert short["micro_batches"] > enough["micro_batches"]
    assert short["loss"] == pytest.approx(enough["loss"], rel=1e-5)
