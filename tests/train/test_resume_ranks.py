"""A run of two processes that ends and goes on in two: one run still, and the same one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from survivors import Runs, assert_whole
from test_ranks import torchrun

PROBE = Path(__file__).with_name("told_probe.py")
SAME_RATE = ("schedule.kind=constant", "schedule.warmup_steps=0")  # however many steps there are
FOUR, SIX = "train.max_steps=4", "train.max_steps=6"


class Ranks:
    """`trueup` in two processes, on the recipe of `Runs`."""

    def __init__(self, folder: Path, home: Path | None = None) -> None:
        self.runs = Runs(folder, *SAME_RATE, home=home)
        self.out = folder / "told"

    def train(self, environment: dict[str, str], *settings: str, more: tuple[str, ...] = ()) -> Any:
        sets = [part for one in settings for part in ("--set", one)]
        arguments = ("train", self.runs.server.recipe, *self.runs.overrides, *sets, *more)
        return torchrun(2, {**environment, "TRUEUP_HOME": str(self.runs.home)}, PROBE, self.out, *arguments)

    def told(self) -> list[Any]:
        """What each rank said of its run."""
        return [json.loads(Path(f"{self.out}.{rank}").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture
def ended(once: Path, tmp_path: Path, environment: dict[str, str]) -> Ranks:
    """A run of two processes, four steps long, in a home of this test's own."""
    if not (once / "home").exists():
        done = Ranks(once).train(environment, FOUR)
        assert done.returncode == 0, done.stderr
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    return Ranks(tmp_path, home=tmp_path / "home")


def test_both_ranks_know_the_run_by_one_id(ended: Ranks) -> None:
    assert ended.told() == [{"run": ended.runs.only.name, "state": "finished"}] * 2


def test_it_goes_on_in_two_as_the_same_run(ended: Ranks, environment: dict[str, str]) -> None:
    before = ended.runs.only.name
    more = ("--resume", "last", "--allow-change", "train.max_steps")
    done = ended.train(environment, SIX, more=more)
    assert done.returncode == 0, done.stderr
    assert ended.told() == [{"run": before, "state": "finished"}] * 2
    assert [step.step for step in ended.runs.record().steps] == [1, 2, 3, 4, 5, 6]
    assert_whole(ended.runs)


@pytest.mark.slow
def test_it_computes_what_two_that_never_ended_do(
    ended: Ranks, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Bit for bit: each rank has its own random states again."""
    straight = Ranks(tmp_path / "straight")
    assert straight.train(environment, SIX).returncode == 0
    more = ("--resume", "last", "--allow-change", "train.max_steps")
    assert ended.train(environment, SIX, more=more).returncode == 0
    found, expected = ended.runs.told(), straight.runs.told()
    assert found.steps == expected.steps
    assert found.last["tensors"] == expected.last["tensors"]


def test_a_refusal_ends_both_and_changes_nothing(ended: Ranks, environment: dict[str, str]) -> None:
    before = ended.runs.record()
    done = ended.train(environment, "optimizer.lr=0.5", FOUR, more=("--resume", "last"))
    assert done.returncode != 0
    assert "optimizer.lr: 0.0005 then, 0.5 now" in done.stderr
    assert ended.runs.record() == before


def test_one_process_alone_is_refused(ended: Ranks) -> None:
    arguments = ("--set", SIX, "--resume", "last", "--allow-change", "train.max_steps")
    done = ended.runs.train(*arguments)
    assert done.code == 2
    assert "the checkpoint is of 2 processes, this run has 1; resume with as many" in done.err
