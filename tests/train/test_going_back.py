"""What a run leaves when it goes back to a checkpoint: here, at the other place, in its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trueup.analysis.totals import steps_of
from trueup.checkpoint.folder import checkpoints_of, steps
from trueup.checkpoint.remote import Remote
from trueup.train import loop
from trueup.train.recovery import Recovery, RollBack
from trueup.train.saves import Saves
from trueup.train.world import World

PLAIN = ("compile.mode=none", "evaluate.every=null")


@pytest.fixture
def goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its sixth step a run goes back to before its third, and then its machine falls over."""
    took_back: list[int] = []

    def look(self: Recovery, session: Any, result: Any, lr: float, *, step: int) -> None:
        if took_back:
            raise RuntimeError("the machine fell over")
        if step == 6:
            took_back.append(step)
            raise RollBack("it diverged", before=3)

    monkeypatch.setattr(Recovery, "look", look)


def test_what_a_rollback_gave_up_is_gone_at_the_other_place_before_the_next_save(
    run_tiny: Any, home: Path, goes_back: None
) -> None:
    """Resumed from there, the run would go on as if it had not gone back."""
    far = home / "far"
    keys = (f"checkpoint.to={far}", "checkpoint.every=2", "checkpoint.keep=9")
    outcome, _ = run_tiny(*PLAIN, *keys)
    assert outcome.header.state == "failed"
    assert steps(checkpoints_of(home / "run")) == [2]
    assert Remote(str(far)).steps(outcome.header.id) == [2]


def test_steps_that_a_rollback_gave_up_are_not_useful(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch, goes_back: None
) -> None:
    """Also where no step came after it."""
    do_step = loop._step

    def step(running: loop.Loop, planned: Any) -> None:
        if running.tally.step == 2 and running.last_step is not None and running.last_step.step == 6:
            raise RuntimeError("the machine fell over")
        do_step(running, planned)

    monkeypatch.setattr(loop, "_step", step)
    outcome, sink = run_tiny(*PLAIN, "checkpoint.every=2", "checkpoint.keep=9")
    assert [one.step for one in sink.steps] == [1, 2, 3, 4, 5, 6]
    assert [one.step for one in steps_of(outcome.record)[0]] == [1, 2]
    useful = sum(one.useful_tokens for one in sink.steps[:2])
    assert outcome.measurements["useful_tokens"].value == useful


def test_other_ranks_are_let_go_before_the_last_uploads(
    run_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have nothing to upload, and a far side may keep the leading rank for a long time."""
    done: list[str] = []
    close = Saves.close

    def closed(self: Saves) -> None:
        done.append("uploads")
        close(self)

    monkeypatch.setattr(World, "close", lambda self: done.append("ranks"))
    monkeypatch.setattr(Saves, "close", closed)
    run_tiny(*PLAIN)
    assert done == ["ranks", "uploads"]
