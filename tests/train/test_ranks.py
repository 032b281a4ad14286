"""Rule 3: ranks are invisible. Two gloo processes give what one gives on the same global batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

PROBE = Path(__file__).parent / "rank_probe.py"


def torchrun(
    ranks: int, environment: dict[str, str], *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
            *map(str, arguments),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_two_ranks_equal_one(
    tmp_path: Path, home: Path, recipe_file: Path, environment: dict[str, str]
) -> None:
    results = []
    for ranks in (1, 2):
        out = tmp_path / f"{ranks}.safetensors"
        done = torchrun(ranks, environment, PROBE, recipe_file, home, out)
        assert done.returncode == 0, done.stderr
        results.append(load_file(out))
    one, two = results
    assert len(one) > 1
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-9, atol=1e-12, msg=name)


def test_train_under_torchrun_leaves_one_run(
    home: Path, recipe_file: Path, environment: dict[str, str]
) -> None:
    done = torchrun(2, environment, "-m", "trueup", "train", recipe_file, "--json")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["state"] == "finished"
    assert run["environment"]["world"]["size"] == 2
    assert run["measurements"]["communication_share"]["value"] > 0
    assert len(list((home / "runs").iterdir())) == 1
