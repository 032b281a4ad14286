"""The guard beside a loop: orders, events, hooks' documents, control files, memory across processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trueup.analysis.guard_values import Facts
from trueup.recipe.survival import GuardSection
from trueup.schema import Price, Sample, Step
from trueup.telemetry import MemorySink, Timeline
from trueup.train.control import Control
from trueup.train.guard import Guard, NewSamples
from trueup.train.orders import NOTHING, Orders, agreed
from trueup.train.world import World

HOT = {"watch": "temperature_c", "above": 90, "window_s": 5, "action": "pause", "resume": 80}


class Bench:
    """A guard under a clock that the test moves; sleeping moves it too."""

    def __init__(
        self, folder: Path | None = None, state: dict[str, Any] | None = None, **section: Any
    ) -> None:
        self.now_s = 0.0
        self.sink = MemorySink()
        self.samples: list[Sample] = []
        self.heat: Callable[[float], float | None] = lambda at_s: 50.0
        self.clock: dict[str, float] = {}
        self.new = NewSamples(self.samples)
        self.timeline = Timeline(self.sink, 0.0, lambda: self.now_s)
        self.guard = Guard(
            GuardSection(**section),
            timeline=self.timeline,
            price=Price(usd_per_hour=3.6, source="a test"),
            total_steps=100,
            stop_usd=None,
            run_folder=folder,
            missing={"power_w": "no meter here"},
            state=state,
            facts=Facts(usd_per_hour=3.6, total_steps=100),
            sleep=self.go,
        )

    def go(self, seconds: float) -> None:
        """Time passes, with two samples a second."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 0.5)
            heat = self.heat(self.now_s)
            values = self.clock | {"power_w_": 100.0} | ({} if heat is None else {"temperature_c": heat})
            self.samples.append(Sample(at_s=self.now_s, values=values))

    def step(self, seconds: float = 1.0, **more: Any) -> Orders:
        self.go(seconds)
        return self.guard.look(None, self.new(), **more)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.sink.events]


def a_step(number: int, end_s: float, **fields: Any) -> Step:
    given: dict[str, Any] = {
        "step": number, "start_s": end_s - 1, "step_s": 1, "data_wait_s": 0, "loss": 2, "grad_norm": 1,
        "lr": 1, "useful_tokens": 1, "supervised_tokens": 1, "processed_tokens": 1, "head_rows": 1,
        "attention_sum_sq": 1, "micro_batches": 1, "shape": (1, 1),
    }  # fmt: skip
    return Step(**(given | fields))


def test_it_pauses_waits_and_goes_on() -> None:
    bench = Bench(rules=[HOT], min_pause_s=10)
    assert bench.step() == NOTHING
    bench.heat = lambda at_s: 95.0 if at_s < 30 else 40.0
    orders = [bench.step() for _ in range(8)][-1]
    assert orders.pause
    assert orders.stop is None
    orders = bench.guard.wait_out_pause(bench.new, lambda: None)
    assert not orders.pause
    assert orders.stop is None
    assert 30 < bench.now_s < 40
    assert bench.kinds() == ["guard_pause", "guard_resume"]
    pause = bench.sink.events[0]
    assert pause.data["action"] == "pause"
    assert pause.data["level"] == 90
    assert pause.data["rule"] == "temperature_c above 90: pause"


def test_a_pause_is_saved_where_the_recipe_says_so() -> None:
    for save in (True, False):
        bench = Bench(rules=[HOT], checkpoint_on_pause=save)
        bench.heat = lambda at_s: 95.0
        looks = [bench.step() for _ in range(10)]
        assert sum(orders.checkpoint for orders in looks) == save
        assert sum(orders.pause for orders in looks) >= 4


def test_a_pause_that_does_not_end_stops_the_run_saved() -> None:
    bench = Bench(rules=[HOT], max_pause_s=130)
    bench.heat = lambda at_s: 95.0
    orders = [bench.step() for _ in range(10)][-1]
    rounds = 0
    while orders.pause:
        orders, rounds = bench.guard.wait_out_pause(bench.new, lambda: None), rounds + 1
    assert rounds == 3  # it is heard from every minute
    assert "guard.max_pause_s" in (orders.stop or "")
    assert orders.checkpoint
    assert bench.guard.look(a_step(1, bench.now_s), bench.new()).stop is None


def test_a_run_that_is_asked_to_end_ends_while_paused() -> None:
    bench = Bench(rules=[HOT])
    bench.heat = lambda at_s: 95.0
    assert [bench.step() for _ in range(10)][-1].pause

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.guard.wait_out_pause(bench.new, interrupted)
    began_s = bench.now_s
    assert bench.guard.wait_out_pause(bench.new, lambda: True) == Orders(pause=True)
    assert bench.now_s == began_s


def test_dollars_go_on_while_paused_without_a_sampler(tmp_path: Path) -> None:
    rule = {"watch": "usd_spent", "above": 0.1, "action": "stop"}
    bench = Bench(tmp_path, rules=[rule])
    put(tmp_path, "control/pause")
    orders = bench.guard.look(a_step(1, 0.0), [])
    assert orders.pause
    while orders.pause:
        orders = bench.guard.wait_out_pause(list, lambda: None)
    assert "usd_spent" in (orders.stop or "")
    assert bench.now_s == pytest.approx(100, abs=1)


def test_what_is_missing_is_said_once() -> None:
    rules = [{"watch": "power_w", "above": 1}, {"watch": "temprature_c", "above": 1}]
    bench = Bench(rules=rules, presets=["budget"])
    for _ in range(200):
        assert bench.step() == NOTHING
    messages = [event.message for event in bench.sink.events]
    assert bench.kinds() == ["guard_missing"] * 3
    assert "train.stop.usd" in messages[0]
    assert messages[1] == "rules on power_w cannot act: no meter here"
    assert "did you mean temperature_c?" in messages[2]
    again = Bench(rules=rules, presets=["budget"], state=json.loads(json.dumps(bench.guard.state())))
    assert [again.step() for _ in range(200)][-1] == NOTHING
    assert again.kinds() == []


def test_what_falls_silent_is_said_once_and_again_when_it_is_back() -> None:
    bench = Bench(rules=[HOT | {"action": "warn", "resume": None}])
    bench.step(30)
    bench.heat = lambda at_s: None
    assert [bench.step(10) for _ in range(60)] == [NOTHING] * 60
    (event,) = bench.sink.events
    assert event.kind == "guard_missing"
    assert event.message == "rules on temperature_c cannot act now: no reading of it in the last 120 s"
    bench.heat = lambda at_s: 50.0
    assert [bench.step(10) for _ in range(60)] == [NOTHING] * 60
    assert bench.sink.events[-1].message == "rules on temperature_c can act: it is read now"
    bench.heat = lambda at_s: None
    bench.step(300)
    assert bench.kinds() == ["guard_missing", "guard_heard", "guard_missing"]


def test_a_sensor_that_comes_late_is_said_to_be_there() -> None:
    bench = Bench(rules=[HOT | {"action": "warn", "resume": None}])
    bench.heat = lambda at_s: None
    bench.step(200)
    bench.heat = lambda at_s: 50.0
    bench.step(10)
    bench.step(10)
    assert bench.kinds() == ["guard_missing", "guard_heard"]


def test_a_pause_makes_nothing_silent(tmp_path: Path) -> None:
    """Neither what a step says nor the clock's share is read then, and dollars go on."""
    watched = ("loss", "clock_share", "usd_spent", "temperature_c")
    bench = Bench(tmp_path, rules=[{"watch": name, "above": 1e9, "window_s": 5} for name in watched])
    bench.clock = {"clock_mhz": 1000.0}
    bench.guard.look(a_step(1, 0.2), bench.new())
    bench.step(60)
    put(tmp_path, "control/pause")
    assert bench.step().pause
    assert "clock_share" in bench.guard.state()["observed"]["heard"]
    for _ in range(10):
        assert bench.guard.wait_out_pause(bench.new, lambda: None).pause
    assert "guard_missing" not in bench.kinds()


def test_a_spike_while_a_checkpoint_is_written_is_put_down_to_it() -> None:
    bench = Bench(rules=[HOT | {"above": 200, "resume": 200}])
    bench.step(60)
    bench.heat = lambda at_s: 60.0
    bench.step(2, checkpoint_in_flight=True)
    bench.step(2, checkpoint_in_flight=True)
    bench.step(2)
    assert bench.kinds() == ["spike_during_checkpoint"]
    assert "while a checkpoint was written, temperature_c rose to 60 °C" in bench.sink.events[0].message
    bench.step(2, checkpoint_in_flight=True)
    assert bench.kinds() == ["spike_during_checkpoint"] * 2


def test_free_disk_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"watch": "disk_free_bytes", "below": 1e18, "action": "warn"}
    bench = Bench(tmp_path, rules=[rule])
    for _ in range(20):
        bench.step()
    assert bench.kinds() == ["guard_warn"]
    bench = Bench(tmp_path / "gone", rules=[rule])
    for _ in range(20):
        assert bench.step() == NOTHING


def test_memory_goes_over_to_the_next_process() -> None:
    bench = Bench(rules=[HOT], max_pauses_per_hour=1)
    bench.heat = lambda at_s: 95.0
    assert [bench.step() for _ in range(10)][-1].pause
    kept = json.loads(json.dumps(bench.guard.state(), allow_nan=False))
    after = Bench(rules=[HOT | {"cooldown_s": 0}], max_pauses_per_hour=1, state=kept)
    after.heat = bench.heat
    orders = [after.step() for _ in range(9)]
    assert "max_pauses_per_hour" in next(one.stop for one in orders if one.stop)
    for damaged in ({}, {"state": 3}, {"state": {}, "observed": {}, "said": 4}):
        assert Bench(rules=[HOT], state=damaged).step() == NOTHING


def test_ranks_get_the_leaders_orders() -> None:
    given = Orders(checkpoint=True, stop="too hot")

    class Second(World):
        def agree(self, decision: bool) -> bool:
            return True

        def from_leader(self, text: str) -> str:
            return '{"checkpoint": true, "pause": false, "stop": "too hot"}'

    assert agreed(NOTHING, Second(rank=1, size=2)) == given
    assert agreed(given, World()) is given


def test_samples_are_given_once_and_from_now_on() -> None:
    samples = [Sample(at_s=0, values={})]
    new = NewSamples(samples)
    assert list(new()) == []
    samples.append(Sample(at_s=1, values={}))
    assert [one.at_s for one in new()] == [1]
    assert list(new()) == []


# --- the recipe -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ({"watch": "loss", "above": 1, "action": "pause"}, "makes no steps"),
        ({"watch": "usd_spent", "above": 1, "action": "pause"}, "never falls"),
        ({"watch": "power_w"}, "one level"),
        ({"watch": "power_w", "above": float("inf")}, "finite"),
    ],
)
def test_rules_that_could_never_end_or_act_are_refused(rule: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError, match=part):
        GuardSection.model_validate({"rules": [rule]})


def test_a_webhook_is_a_web_address() -> None:
    with pytest.raises(ValidationError, match="only http"):
        GuardSection(webhook="file:///etc/passwd")


# --- control files ----------------------------------------------------------------------------------------


def put(folder: Path, name: str, text: str = "", at_s: float | None = None) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    if at_s is not None:
        os.utime(file, (at_s, at_s))


def asked(control: Control) -> list[str]:
    return [one.kind for one in control.taken()]


def test_control_files_are_taken_once_in_their_order(tmp_path: Path) -> None:
    control = Control(tmp_path)
    assert control.taken() == ()
    put(tmp_path, "control/stop", at_s=30)
    put(tmp_path, "control/pause", "  moving\nhouse ", at_s=10)
    put(tmp_path, "checkpoint-now", at_s=20)
    put(tmp_path, "control/dance", at_s=1)
    first, *rest = control.taken()
    assert (first.kind, first.why) == ("pause", "moving house")
    assert [one.kind for one in rest] == ["checkpoint", "stop"]
    assert control.taken() == ()
    assert {path.name for path in tmp_path.rglob("*")} == {"control", "dance"}
    put(tmp_path, "checkpoint-now")
    assert asked(control) == ["checkpoint"]
    assert Control(None).taken() == ()


def test_what_was_asked_of_an_earlier_process_is_dropped(tmp_path: Path) -> None:
    put(tmp_path, "control/stop", at_s=10)
    put(tmp_path, "control/pause", at_s=30)
    assert asked(Control(tmp_path, since_unix_s=20)) == ["pause"]
    assert not (tmp_path / "control" / "stop").exists()


def test_an_order_is_obeyed_though_the_clock_was_set_back(tmp_path: Path) -> None:
    control = Control(tmp_path, since_unix_s=1e9)
    put(tmp_path, "control/pause", at_s=1e9 - 3600)
    put(tmp_path, "checkpoint-now", at_s=1e9 - 3500)
    assert asked(control) == ["pause", "checkpoint"]


def test_what_is_no_plain_file_is_no_order(tmp_path: Path) -> None:
    """Reading a named pipe would never end."""
    (tmp_path / "control" / "stop").mkdir(parents=True)
    os.mkfifo(tmp_path / "control" / "pause")
    os.mkfifo(tmp_path / "checkpoint-now")
    (tmp_path / "control" / "resume").symlink_to(tmp_path / "nowhere")
    assert asked(Control(tmp_path)) == []


def test_a_file_in_place_of_the_folder_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "control").write_text("stop")
    assert asked(Control(tmp_path)) == []


def test_on_a_read_only_disk_an_order_is_taken_once(
    disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess

    folder = disk("size=1m")
    put(folder, "checkpoint-now")
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    control = Control(folder)
    assert asked(control) == ["checkpoint"]
    assert asked(control) == []


def test_a_sick_disk_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "control/stop")
    put(tmp_path, "checkpoint-now")

    def sick(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("trueup.train.control.os.stat", sick)
    assert Control(tmp_path).taken() == ()


def test_orders_by_hand_need_no_rules(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.step() == NOTHING
    put(tmp_path, "checkpoint-now")
    assert bench.step() == Orders(checkpoint=True)
    assert bench.sink.events[-1].message == "a checkpoint was asked for: by hand, checkpoint-now"
    put(tmp_path, "control/pause")
    orders = bench.step()
    assert (orders.pause, orders.checkpoint) == (True, True)
    put(tmp_path, "checkpoint-now")
    orders = bench.guard.wait_out_pause(bench.new, lambda: None)
    assert (orders.pause, orders.checkpoint) == (True, True)
    put(tmp_path, "control/resume")
    assert not bench.guard.wait_out_pause(bench.new, lambda: None).pause
    put(tmp_path, "control/stop", "enough")
    orders = bench.step()
    assert orders.stop == "the run ends, saved: by hand, enough"
    assert orders.checkpoint
    assert bench.kinds() == [f"guard_{k}" for k in ("checkpoint", "pause", "checkpoint", "resume", "stop")]
