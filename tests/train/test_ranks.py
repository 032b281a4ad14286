"""Rule 3: ranks are invisible. Two gloo processes give what one gives on the same global batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import rank_probe
import torch
from safetensors.torch import load_file

from trueup.checkpoint.folder import checkpoints_of, steps
from trueup.store.run_folder import read_run_parts

PROBE = Path(rank_probe.__file__)
PARTING_PROBE = PROBE.with_name("parting_probe.py")
REFUSAL_PROBE = PROBE.with_name("refusal_probe.py")


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
    alone, together = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    rank_probe.main(str(recipe_file), str(home), str(alone))
    done = torchrun(2, environment, PROBE, recipe_file, home, together)
    assert done.returncode == 0, done.stderr
    one, two = load_file(alone), load_file(together)
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


def test_what_one_rank_refuses_no_rank_tries_again(
    tmp_path: Path, home: Path, recipe_file: Path, environment: dict[str, str]
) -> None:
    """One without memory for a shape gives all the next smaller plan; one that fails otherwise ends all."""
    out = tmp_path / "found"
    done = torchrun(2, environment, REFUSAL_PROBE, recipe_file, home, out)
    assert done.returncode == 0, done.stderr
    leading, refusing = (json.loads((tmp_path / f"found.{rank}").read_text()) for rank in (0, 1))
    assert leading["plan"] == refusing["plan"]
    assert leading["plan"]["training"]
    assert all(rows * width <= 100 for rows, width in leading["plan"]["training"])
    assert "no memory" in leading["plan"]["reason"]
    assert leading["loss"] == refusing["loss"] > 0
    assert refusing["error"] == "a rank of its own kind"
    assert leading["error"].startswith("another process failed")


@pytest.mark.slow
def test_a_rank_that_dies_when_all_is_done_undoes_nothing(
    home: Path, recipe_file: Path, environment: dict[str, str]
) -> None:
    """The launcher ends the others: the leading one has finished all the same."""
    done = torchrun(2, environment, PARTING_PROBE, "train", recipe_file)
    assert done.returncode != 0
    (run,) = (home / "runs").iterdir()
    record = read_run_parts(run).record
    assert record.header.state == "finished", record.header.reason
    assert (record.header.reason or "").startswith("all 6 steps done; later: another process")
    assert [event.kind for event in record.events][-1] == "after_the_end"
    assert steps(checkpoints_of(run))[-1] == 6
    assert record.measurements["useful_tokens"].value
