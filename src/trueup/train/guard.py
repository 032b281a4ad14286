"""The guard beside the loop: reads what came since the last step, decides, says so, and gives orders."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from trueup.analysis.guard import advance, restarted
from trueup.analysis.guard_records import Action, GuardState, Reading
from trueup.analysis.guard_values import (
    Facts,
    Observed,
    after_pause,
    after_restart,
    end_of,
    observe,
    spike,
)
from trueup.analysis.guard_words import fallen_silent, heard_again, not_watched
from trueup.device import Device
from trueup.recipe.survival import GuardSection
from trueup.schema import Price, Sample, Step
from trueup.telemetry import Timeline

from .control import Control
from .guard_policy import facts_of, policy_of
from .hooks import Hooks
from .orders import NOTHING, Orders
from .spot import SpotWatch

TICK_S = 0.2
# A wait is cut into rounds, so that ranks that wait for the leading one hear from it
ROUND_S = 60.0
DISK_EVERY_S = 5.0


class NewSamples:
    """Calling it gives the samples that were added to a list since the last call; at first, since now."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._next = len(samples)

    def __call__(self) -> Sequence[Sample]:
        new = self._samples[self._next :]
        self._next += len(new)
        return new


class Guard:
    """Watches one run; on the leading rank alone.

    `missing`: sensors the machine does not have, with reasons; `state`: what `state()` gave in the process
    that this one goes on from; `spot`: started by the caller. With no rules and nothing asked, a look costs
    two questions to the file system.
    """

    def __init__(
        self,
        section: GuardSection,
        *,
        timeline: Timeline,
        price: Price | None,
        total_steps: int | None,
        stop_usd: float | None,
        run_folder: Path | None,
        missing: Mapping[str, str],
        state: dict[str, Any] | None = None,
        device: Device | None = None,
        facts: Facts | None = None,
        spot: SpotWatch | None = None,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeline = timeline
        self._clock = clock or timeline.now
        self._sleep = sleep
        self._say = say
        self._run_folder = run_folder
        self._spot = spot
        self._save_on_pause = section.checkpoint_on_pause
        if facts is None and (section.rules or section.presets):
            facts = facts_of(device, price, total_steps, timeline.down_s)
        self._facts = facts or Facts()
        self._missing = {**missing, **self._facts.unknowable()}
        self.policy, notes = policy_of(section, self._facts, stop_usd)
        # not after now: some sandboxes give a process's birth in the future
        born_unix_s = min(psutil.Process().create_time(), time.time())
        self._control = Control(run_folder, since_unix_s=born_unix_s)
        self._hooks = Hooks(section.command, section.webhook, self._hook_failed)
        self._since_s = self._clock()
        self._state, self._observed, self._said = _restored(state, self._since_s)
        self._disk_due_s = self._since_s
        self._spike_told = False
        for note in notes:
            self._tell_once(note, note)

    def look(
        self, step: Step | None, samples: Sequence[Sample], *, checkpoint_in_flight: bool = False
    ) -> Orders:
        """After a step, or while paused (`step` None): what to do now. `samples`: those since the last look.
        `checkpoint_in_flight`: one is being written; a spike meanwhile is put down to it."""
        asked = (*self._control.taken(), *(self._spot.taken() if self._spot is not None else ()))
        if not (self.policy.rules or asked or self._state.pause):
            return NOTHING
        was_paused = self._state.pause is not None
        now_s = self._clock()
        readings = self._readings(step, samples, now_s, checkpoint_in_flight) if self.policy.rules else []
        self._state, actions = advance(self.policy, self._state, readings, now_s, asked)
        for action in actions:
            self._carry_out(action, checkpoint_in_flight)
        if was_paused and self._state.pause is None:
            self._observed = after_pause(self._observed, now_s)
        self._tell_missing(now_s)
        return self._orders(actions, was_paused)

    def wait_out_pause(
        self, samples_since: Callable[[], Sequence[Sample]], check: Callable[[], object]
    ) -> Orders:
        """Look on while paused, in short ticks; returns when the pause has ended, when a checkpoint is asked
        for, and at least every minute. `pause` of what it returns says whether to wait on. `check` is called
        at each tick: it raises, or returns what is true, when the run was asked to end."""
        round_ends_s = self._clock() + ROUND_S
        while True:
            if check():
                return Orders(pause=True)
            self._sleep(TICK_S)
            samples = samples_since()
            # the clock runs without a sampler too, and dollars with it
            orders = self.look(None, samples or [Sample(at_s=self._clock(), values={})])
            if orders.stop or orders.checkpoint or not orders.pause or self._clock() >= round_ends_s:
                return orders

    def state(self) -> dict[str, Any]:
        """All it remembers, JSON-able, for a checkpoint."""
        return {
            "state": self._state.model_dump(mode="json"),
            "observed": self._observed.model_dump(mode="json"),
            "said": sorted(self._said),
        }

    def close(self) -> None:
        """Let hooks in flight end, 5 s at most."""
        self._hooks.close()

    def _readings(
        self, step: Step | None, samples: Sequence[Sample], now_s: float, checkpoint_in_flight: bool
    ) -> list[Reading]:
        records: list[Step | Sample] = [*samples, *([step] if step is not None else ())]
        records.sort(key=end_of)
        readings: list[Reading] = []
        for record in records:
            if checkpoint_in_flight and isinstance(record, Sample):
                self._tell_spike(record)
            paused = self._state.pause is not None
            self._observed, new = observe(self._facts, self._observed, record, paused=paused)
            readings += new
        if not checkpoint_in_flight:
            self._spike_told = False
        return [*readings, *self._disk(now_s), Reading(at_s=now_s, between_steps=True)]

    def _disk(self, now_s: float) -> list[Reading]:
        if (
            "disk_free_bytes" not in self.policy.watched
            or self._run_folder is None
            or now_s < self._disk_due_s
        ):
            return []
        self._disk_due_s = now_s + DISK_EVERY_S
        try:
            free = shutil.disk_usage(self._run_folder).free
        except OSError:
            return []
        if "disk_free_bytes" not in self._observed.heard:
            heard = (*self._observed.heard, "disk_free_bytes")
            self._observed = self._observed.model_copy(update={"heard": heard})
        # nobody looked in between, so that it stands for the whole time between two looks
        return [Reading(at_s=now_s, values={"disk_free_bytes": float(free)}, holds_s=DISK_EVERY_S)]

    def _orders(self, actions: Sequence[Action], was_paused: bool) -> Orders:
        kinds = {action.kind for action in actions}
        stop = next((action.message for action in actions if action.kind == "stop"), None)
        begun = "pause" in kinds and not was_paused and self._save_on_pause
        return Orders(
            checkpoint="checkpoint" in kinds or begun or stop is not None,
            pause=self._state.pause is not None,
            stop=stop,
        )

    def _carry_out(self, action: Action, checkpoint_in_flight: bool) -> None:
        data = action.data()
        if checkpoint_in_flight:
            data["checkpoint_in_flight"] = True
        data["action"] = data.pop("kind")
        self._timeline.event(f"guard_{action.kind}", action.message, at_s=action.at_s, **data)
        self._say(f"guard: {action.message}")
        run = self._run_folder.name if self._run_folder is not None else None
        self._hooks.call(
            {
                "run": run,
                "host": socket.gethostname(),
                "at_s": action.at_s,
                "message": action.message,
                **data,
            }
        )

    def _tell_spike(self, sample: Sample) -> None:
        words = None if self._spike_told else spike(self._observed, sample)
        if words is not None:
            self._spike_told = True
            message = f"while a checkpoint was written, {words}"
            self._timeline.event("spike_during_checkpoint", message, at_s=sample.at_s, **sample.values)

    def _tell_missing(self, now_s: float) -> None:
        """What rules watch and is not read: never yet, or no more. And what is read now and was not."""
        heard = set(self._observed.heard)
        for name in sorted(self._said & heard & self.policy.watched):
            self._said.discard(name)
            self._tell("guard_heard", heard_again(name))
        if lacking := self.policy.watched - heard - self._said:
            found = not_watched(lacking, self._observed.heard, self._missing, now_s - self._since_s)
            for name, message in found.items():
                self._tell_once(name, message)
        for name, message in fallen_silent(self._last_read(), now_s).items():
            heard_now = tuple(one for one in self._observed.heard if one != name)
            self._observed = self._observed.model_copy(update={"heard": heard_now})
            self._tell_once(name, message)

    def _last_read(self) -> dict[str, float]:
        """When each value that rules watch was last read, of those that were."""
        windows, heard = self._state.windows, self._observed.heard
        return {
            rule.watch: windows[rule.name].last_s or 0.0
            for rule in self.policy.rules
            if rule.watch in heard and rule.name in windows
        }

    def _tell_once(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._tell("guard_missing", message)

    def _tell(self, kind: str, message: str) -> None:
        self._timeline.event(kind, message)
        self._say(f"guard: {message}")

    def _hook_failed(self, message: str) -> None:
        self._timeline.event("guard_hook_failed", f"{message}; the run goes on")


def _restored(state: dict[str, Any] | None, at_s: float) -> tuple[GuardState, Observed, set[str]]:
    """What another process remembered. What cannot be read is left out: a guard with no memory still
    guards."""
    if not state:
        return GuardState(at_s=at_s), Observed(), set()
    try:
        kept = GuardState.model_validate(state["state"])
        observed = Observed.model_validate(state["observed"])
        said = {str(one) for one in state["said"]}
    except (KeyError, TypeError, ValueError):
        return GuardState(at_s=at_s), Observed(), set()
    return restarted(kept, at_s), after_restart(observed), said
