"""A step that fails on one rank is the same failure on all: none waits for another, and one is as two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_ranks import torchrun

PROBE = Path(__file__).parent / "failure_probe.py"


def test_what_fails_on_one_rank_is_decided_on_all(
    tmp_path: Path, home: Path, recipe_file: Path, environment: dict[str, str]
) -> None:
    alone, together = tmp_path / "1.json", tmp_path / "2.json"
    command = [sys.executable, str(PROBE), str(recipe_file), str(home), str(alone)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    done = torchrun(2, environment, PROBE, recipe_file, home, together)
    assert done.returncode == 0, done.stderr
    results = [json.loads(out.read_text()) for out in (alone, together)]
    one, two = results
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-9)
    assert two["weights"] == pytest.approx(one["weights"], rel=1e-9)
    assert one["skipped"]
    assert two["skipped"]
    assert two["most_tokens"] == one["most_tokens"] <= 100
    for found in results:
        assert found["events"]["out_of_memory"]["done"] == "halved"
        finding = found["events"]["non_finite"]
        assert finding["module"] == "model.layers.0.mlp"
        assert finding["batch_examples"]
    others = set(one["events"]["non_finite"]["batch_examples"])
    assert not others & set(
        two["events"]["non_finite"]["batch_examples"]
    )  # the second rank's, not the first's
