"""A whole run under the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trueup.analysis.bill import make_bill

ENDLESS = ("train.max_steps=100000", "train.epochs=100000", "evaluate.every=null")
# Memory of a process is always above one byte: the pause that it asks for never ends by itself.
RULE = "guard.rules=[{watch: host_rss_bytes, above: 1, window_s: 0.3, action: pause}]"
BRIEF = ("guard.min_pause_s=0", "guard.max_pause_s=0.5")


def test_a_run_paused_for_too_long_ends_as_stopped_with_the_pause_on_its_bill(
    run_tiny: Callable[..., tuple[Any, Any]],
) -> None:
    outcome, sink = run_tiny(*ENDLESS, RULE, *BRIEF)
    assert outcome.error is None
    assert outcome.header.state == "stopped"
    assert "guard.max_pause_s" in outcome.header.reason
    guard = {event.kind: event.at_s for event in sink.events if event.kind.startswith("guard_")}
    assert list(guard) == ["guard_pause", "guard_stop"]
    (pause,) = [span for span in outcome.record.spans if span.name == "pause"]
    assert pause.count >= 1
    assert 0 < pause.seconds < outcome.header.wall_s
    # sensors were read on, and nothing was trained, while it was paused
    assert any(guard["guard_pause"] < sample.at_s < guard["guard_stop"] for sample in sink.samples)
    assert all(step.start_s < guard["guard_pause"] for step in sink.steps)
    (line,) = [line for line in make_bill(outcome.record).lines if line.name == "pause"]
    assert line.seconds == pytest.approx(pause.seconds)


def test_a_run_without_a_guard_says_nothing_of_one(run_tiny: Callable[..., tuple[Any, Any]]) -> None:
    outcome, sink = run_tiny("train.max_steps=2")
    assert outcome.header.state == "finished"
    assert not [event for event in sink.events if event.kind.startswith("guard_")]
