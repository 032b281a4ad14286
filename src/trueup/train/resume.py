"""Going on with a run that ended before its time: what may have changed since, and what is taken over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trueup.checkpoint.folder import load_tensors
from trueup.checkpoint.manifest import OPTIMIZER, RANDOM, WEIGHTS, CheckpointManifest
from trueup.recipe import Recipe
from trueup.schema import InputError, RunRecord, Segment
from trueup.telemetry import EarlierTime, MemorySink

from .session import Decided, Session
from .state import Tally, put_back

# What may differ without a word: it changes neither what is computed nor which weights are the best.
HARMLESS = (
    *("name", "price", "budget", "telemetry", "checkpoint", "guard", "failure", "warm_up"),
    *("platform.instance", "platform.metadata"),
)


@dataclass(frozen=True)
class Resume:
    """A whole checkpoint, and what the run's earlier processes recorded. The record is that of a run that has
    ended: its wall clock is known."""

    folder: Path
    manifest: CheckpointManifest
    record: RunRecord
    segments: tuple[Segment, ...]

    @property
    def step(self) -> int:
        return self.manifest.step


def changes(then: Mapping[str, Any], now: Recipe) -> dict[str, tuple[Any, Any]]:
    """Keys of the recipe that differ in a way that could change the result: dotted key -> (then, now)."""
    before, after = dict(_leaves(then)), dict(_leaves(now.model_dump(mode="json")))
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not _within(key, HARMLESS)
    }


def require_unchanged(manifest: CheckpointManifest, recipe: Recipe, allowed: Collection[str]) -> list[str]:
    """What has changed and is allowed, in words. InputError for what has changed and is not, and for a key
    that no recipe has."""
    known = dict(_leaves(manifest.origin.recipe)) | dict(_leaves(recipe.model_dump(mode="json")))
    if wrong := [name for name in allowed if not any(_within(key, [name]) for key in known)]:
        raise InputError(f"--allow-change {wrong[0]}: a recipe has no such key")
    found = changes(manifest.origin.recipe, recipe)
    refused = {key: values for key, values in found.items() if not _within(key, allowed)}
    if refused:
        lines = [f"  {key}: {then!r} then, {now!r} now" for key, (then, now) in refused.items()]
        raise InputError(
            f"run {manifest.origin.run} was trained by another recipe; to go on by this one would change its "
            "result:\n"
            + "\n".join(lines)
            + "\nTake the recipe it was trained by, start a new run without --resume, or say "
            + " ".join(f"--allow-change {key}" for key in refused)
        )
    return [f"{key} is now {now!r}; it was {then!r}" for key, (then, now) in found.items()]


def require_same_device(manifest: CheckpointManifest, kind: str, allowed: Collection[str]) -> None:
    """InputError where the run was trained on another kind of device, and that is not allowed to change."""
    then = manifest.origin.choices["device"]["value"]
    if then != kind and not _within("platform.device", allowed):
        raise InputError(
            f"run {manifest.origin.run} was trained on {then}, and this device is {kind}: the result would "
            "be another; go on there, or say --allow-change platform.device"
        )


def earlier_time(resume: Resume, process_started_at: str) -> EarlierTime:
    """Where on the run's clock the earlier processes ended and this one began."""
    header = resume.record.header
    began = datetime.fromisoformat(process_started_at) - datetime.fromisoformat(header.started_at)
    until_s = header.wall_s or 0.0
    totals: dict[str, tuple[float, int]] = {}
    for segment in resume.segments:
        seconds, count = totals.get(segment.name, (0.0, 0))
        totals[segment.name] = (seconds + segment.end_s - segment.start_s, count + segment.opens)
    return EarlierTime(
        totals=totals,
        claimed_s=max((segment.end_s for segment in resume.segments), default=0.0),
        until_s=until_s,
        started_s=max(until_s, began.total_seconds()),  # clocks can be set back
    )


def remember(resume: Resume, kept: MemorySink) -> None:
    """Give the sink what earlier processes recorded, so that the run is summed up as one."""
    record = resume.record
    kept.segments.extend(resume.segments)
    kept.events.extend(record.events)
    kept.steps.extend(record.steps)
    kept.evaluations.extend(record.evaluations)
    kept.samples.extend(record.samples)


REPLANNED = ("data", "shapes", "compile", "model", "tune", "train.tokens_per_step")  # plans follow from these


def decided(resume: Resume, recipe: Recipe) -> Decided:
    """What the run had decided and keeps. Another plan is made only where the recipe's change asks for it."""
    origin = resume.manifest.origin
    changed = changes(origin.recipe, recipe)
    data = any(_within(key, ("data", "model")) for key in changed)
    chosen: Any = origin.choices["precision"]["value"]
    return Decided(
        plan=None if any(_within(key, REPLANNED) for key in changed) else origin.shape_plan,
        other_evaluation=any(_within(key, ("evaluate",)) for key in changed),
        precision=recipe.precision.policy if "precision.policy" in changed else chosen,
        data_digest=None if data else origin.data_digest,
        model_digest=None if any(_within(key, ("model",)) for key in changed) else origin.model_digest,
    )


def restore(session: Session, folder: Path, manifest: CheckpointManifest, tally: Tally) -> None:
    """Session and tally as they were when the checkpoint was made."""
    tensors = {stem: load_tensors(folder, stem) for stem in (WEIGHTS, OPTIMIZER, RANDOM)}
    put_back(session, tensors, manifest.state["random"])
    tally.go_back_to(manifest.state["tally"])


def _within(key: str, names: Collection[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
