"""Killed anywhere, again and again, and resumed each time: in the end it is as if nothing had happened.

A kill strikes before, in the middle of, or after the n-th call of what touches a disk or a database, or at
any instant. `trueup train --resume auto` is all that is ever said, as a machine that starts again would.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from survivors import Runs, Told, assert_whole, undisturbed
from trouble import POINTS

from trueup.checkpoint.folder import newest_whole, steps, verified

KINDS: dict[str, tuple[str, ...]] = {
    "lora-pack": (),
    "lora-bucket": ("shapes.strategy=bucket", "train.tokens_per_step=96"),
    "full-pack": ("tune.method=full", "train.tokens_per_step=96"),
    "full-bucket": ("tune.method=full", "shapes.strategy=bucket"),
    "over-an-edge": ("train.tokens_per_step=864",),
}
KILLED = -9
SLOW_SEEDS = range(100, 120)
CALLS: dict[tuple[str, ...], dict[str, int]] = {}


def calls_of(folder: Path, overrides: tuple[str, ...]) -> dict[str, int]:
    """How often an undisturbed run calls each point."""
    if overrides not in CALLS:
        runs = Runs(folder / "counted", *overrides, f"checkpoint.to={folder / 'counted-remote'}")
        assert runs.train(trouble={"count": str(folder / "count")}).code == 0
        CALLS[overrides] = json.loads((folder / "count").read_text())
        assert set(POINTS) == set(CALLS[overrides])
    return CALLS[overrides]


def storm(folder: Path, overrides: tuple[str, ...], kills: list[dict[str, Any]]) -> tuple[Runs, int]:
    """Each run gets one of the kills, and the last goes on undisturbed. Returns how many struck."""
    runs = Runs(folder, *overrides, f"checkpoint.to={folder / 'remote'}")
    struck = 0
    for kill in [*kills, {}]:
        after_s = kill.get("after_s")
        trouble = {} if not kill or after_s is not None else {"kill": kill}
        done = runs.train("--resume", "auto", trouble=trouble, kill_after_s=after_s)
        assert done.code in (0, KILLED), (kill, done.err)
        struck += done.code == KILLED
        assert_down_is_shown(runs)
        if done.code == 0:  # it may have ended before its turn: then the others have nothing to strike
            break
    assert done.code == 0
    return runs, struck


def assert_down_is_shown(runs: Runs) -> None:
    """Whatever is left is a list of runs, none of which is said to run, and whole checkpoints or none."""
    assert {shown["state"] for shown in runs.document("runs", "list")} <= {"interrupted", "finished"}
    for run in (runs.home / "runs").glob("*"):
        root = run / "checkpoints"
        passed_over: list[str] = []
        found = newest_whole(root, passed_over.append)
        assert not passed_over
        assert (found is None) == (not steps(root))


def assert_as_if_nothing_had_happened(runs: Runs, expected: Told) -> None:
    headers = {run: runs.record(run).header for run in runs.folders if (run / "run.json").exists()}
    (finished,) = [run for run, header in headers.items() if header.state == "finished"]
    assert runs.told(finished) == expected
    assert_whole(runs, finished)
    away = runs.home.parent / "remote" / finished.name
    assert steps(away)[-1] == steps(runs.checkpoints(finished))[-1] == max(expected.steps)
    verified(away / f"{steps(away)[-1]:08d}")
    others = {header.state for run, header in headers.items() if run != finished}
    assert others <= {"interrupted"}  # killed before their first save


def any_kill(draw: random.Random, calls: dict[str, int], *, sure: bool = False) -> dict[str, Any]:
    """Some at an instant, most at a call; in its first half, if it is to strike for `sure`."""
    if not sure and draw.random() < 0.4:
        return {"after_s": draw.uniform(0.05, 1.2)}
    point = draw.choice(POINTS)
    when = draw.choice(("before", "middle", "after"))
    last = max(1, calls[point] // 2) if sure else calls[point]
    return {"point": point, "at": draw.randint(1, last), "when": when}


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        (
            "lora-pack",
            [
                {"point": "rename", "at": 9, "when": "after"},
                {"point": "fsync", "at": 30, "when": "before"},
                {"point": "save_file", "at": 5, "when": "middle"},
            ],
        ),
        (
            "full-pack",
            [
                {"after_s": 0.3},
                {"point": "unlink", "at": 14, "when": "after"},
                {"point": "write", "at": 14, "when": "middle"},
                {"point": "upload", "at": 4, "when": "middle"},
            ],
        ),
    ],
)
def test_killed_at_named_points(tmp_path: Path, kind: str, kills: list[dict[str, Any]]) -> None:
    runs, struck = storm(tmp_path, KINDS[kind], kills)
    assert struck == len(kills)
    assert_as_if_nothing_had_happened(runs, undisturbed(*KINDS[kind]))


def test_killed_before_the_last_checkpoint_is_away(tmp_path: Path) -> None:
    """All steps are done and the resumed run saves nothing more: it still sends what there is."""
    overrides = ("train.max_steps=2",)
    runs, struck = storm(tmp_path, overrides, [{"point": "upload", "at": 5, "when": "middle"}])
    assert struck == 1
    assert_as_if_nothing_had_happened(runs, undisturbed(*overrides))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_killed_anywhere(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int
) -> None:
    """One to five kills a run, of which at least one strikes: a hundred and more in all."""
    draw = random.Random(f"{kind} {seed}")
    calls = calls_of(tmp_path_factory.mktemp("calls"), KINDS[kind])
    kills = [any_kill(draw, calls, sure=number == 0) for number in range(draw.randint(1, 5))]
    runs, struck = storm(tmp_path, KINDS[kind], kills)
    assert struck
    assert_as_if_nothing_had_happened(runs, undisturbed(*KINDS[kind]))


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_call_of_a_kind(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, point: str
) -> None:
    """Evenly over the run, by turns before, in the middle and after."""
    overrides = ("train.max_steps=6",)
    calls = calls_of(tmp_path_factory.mktemp("calls"), overrides)[point]
    every = max(1, calls // 6)
    struck = 0
    for number, at in enumerate(range(1, calls + 1, every)):
        kill = {"point": point, "at": at, "when": ("before", "middle", "after")[number % 3]}
        runs, hit = storm(tmp_path / str(at), overrides, [kill])
        struck += hit
        assert_as_if_nothing_had_happened(runs, undisturbed(*overrides))
    assert struck >= min(calls, 5)
