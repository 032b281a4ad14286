"""When a run saves itself, and what it saves. The training loop pays for the copy alone: see
`trueup.checkpoint.writer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueup.checkpoint.folder import checkpoints_of, newest_step
from trueup.checkpoint.manifest import Origin
from trueup.checkpoint.retention import Retention
from trueup.checkpoint.snapshot import Snapshot
from trueup.checkpoint.writer import CheckpointWriter
from trueup.recipe import Recipe
from trueup.schema import Evaluation, RunHeader, SpanName
from trueup.schema.run import RECORD_FILES

from .session import Session
from .state import Tally, take

# Why a checkpoint was made.
EVERY, MINUTES, BEST, LAST = "every", "minutes", "best", "last"
ASKED, SIGNAL = "asked", "signal"  # by the guard or a person; by the system, to end

COMPILE_CACHE = "compile-cache.zip"  # in the run's folder of checkpoints, and in each of them


@dataclass
class Saves:
    """One run's saving. `writer` and `origin` are the leading rank's; the others only copy with it."""

    session: Session
    writer: CheckpointWriter | None
    origin: Origin | None
    remember: Callable[[], dict[str, Any]]  # what others keep from step to step, by the name of who does
    settle: Callable[[], None]  # write what the run's record holds in memory
    saved_at_s: float = 0.0
    _saved: tuple[int, int] | None = None  # step, and that of the last evaluation before it

    def due(self, tally: Tally, evaluation: Evaluation | None) -> tuple[str, ...]:
        """Why to save after this step, by the rules that every rank knows. None where nothing was trained."""
        asked = self.session.recipe.checkpoint
        rules = {
            EVERY: asked.every is not None and tally.step % asked.every == 0,
            BEST: asked.best and evaluation is not None and evaluation.best,
        }
        return tuple(why for why, holds in rules.items() if holds) if tally.step else ()

    def minutes_are_over(self) -> bool:
        """For the leading rank: clocks differ between processes."""
        minutes = self.session.recipe.checkpoint.minutes
        return minutes is not None and self.session.timeline.now() - self.saved_at_s >= 60 * minutes

    def save(self, tally: Tally, why: tuple[str, ...]) -> None:
        """Copy the state of now and hand it over. Waits only for a save that is still being written."""
        if not why or not tally.step or self._saved == (tally.step, tally.evaluated_at):
            return
        with self.session.timeline.span(SpanName.CHECKPOINT):
            tensors, state = take(self.session)
            self.saved_at_s = self.session.timeline.now()
            self.mark_saved(tally)
            tally.labels.append("after_checkpoint")
            if self.writer is not None and self.origin is not None:
                self.settle()
                self.writer.save(self._snapshot(self.origin, tally, why, tensors, state))

    def mark_saved(self, tally: Tally) -> None:
        """The checkpoint of this step is there, with its evaluation if there was one."""
        self._saved = (tally.step, tally.evaluated_at)

    def _snapshot(
        self,
        origin: Origin,
        tally: Tally,
        why: tuple[str, ...],
        tensors: Mapping[str, Mapping[str, Any]],
        state: dict[str, Any],
    ) -> Snapshot:
        run = self.session.run_folder
        cache = checkpoints_of(run) / COMPILE_CACHE
        return Snapshot(
            origin=origin,
            step=tally.step,
            best_step=tally.best_step,
            eval_loss=tally.eval_loss if tally.evaluated_at == tally.step else None,
            why=why,
            state={"tally": tally.as_json(), "random": state, **self.remember()},
            tensors=tensors,
            record=tuple(run / name for name in RECORD_FILES),
            attached={COMPILE_CACHE: cache} if cache.is_file() else {},
        )

    @property
    def in_flight(self) -> bool:
        return self.writer is not None and self.writer.in_flight

    def upload(self, folder: Path) -> None:
        """Send what the run goes on from, if it is not there yet, and remove there what the run has left:
        nobody must resume from that."""
        if self.writer is not None:
            self.writer.upload(folder)

    def wait(self) -> None:
        """Until what was handed over is on disk, or has failed. Uploads may go on: other ranks wait too."""
        if self.writer is not None:
            self.writer.wait_for_write()

    def close(self) -> None:
        """At the end, on the clock: until all is on disk and uploaded, or has failed once more."""
        if self.writer is not None:
            with self.session.timeline.span(SpanName.CHECKPOINT):
                self.writer.finish()


def open_saves(
    session: Session,
    header: RunHeader,
    *,
    remember: Callable[[], dict[str, Any]],
    settle: Callable[[], None],
) -> Saves:
    """Saving as the recipe asks for it; the leading rank writes."""
    writer = origin = None
    if session.world.leads:
        from trueup.model.folder import digest_of

        writer = CheckpointWriter(
            checkpoints_of(session.run_folder),
            retention=_retention(session.recipe),
            tell=session.timeline.event,
            upload=_upload(session.recipe, header.id),
        )
        origin = Origin(
            run=header.id,
            name=header.name,
            started_at=header.started_at,
            trueup_version=header.trueup_version,
            recipe=header.recipe,
            recipe_digest=header.recipe_digest,
            choices=header.choices,
            shape_plan=session.plan,
            data_digest=session.prepared.facts.digest,
            model_digest=digest_of(session.model.resolved.folder),
        )
    now_s = session.timeline.now()
    return Saves(session, writer, origin, remember=remember, settle=settle, saved_at_s=now_s)


def _upload(recipe: Recipe, run_id: str) -> Callable[[Path], None] | None:
    """Copies a checkpoint to the recipe's other place, and lets go there by the same rules. It may be an
    older one that had failed: which is the newest, the run's own folder says."""
    if recipe.checkpoint.to is None:
        return None
    from trueup.checkpoint.remote import Remote

    remote, retention = Remote(recipe.checkpoint.to), _retention(recipe)

    def upload(folder: Path) -> None:
        remote.upload(folder, run_id)
        newest = newest_step(folder.parent)
        if newest is not None:
            remote.retain(run_id, retention, newest=newest)

    return upload


def _retention(recipe: Recipe) -> Retention:
    """A divergence is seen after so many steps, and what was saved in them is no good to go back to."""
    asked = recipe.checkpoint
    most = None if asked.disk_gb is None else int(asked.disk_gb * 1e9)
    divergence = recipe.failure.divergence
    return Retention(
        keep=asked.keep,
        keep_every=asked.keep_every,
        keep_before=divergence.steps if divergence.action == "rollback" else None,
        disk_bytes=most,
    )
