"""The weights a run keeps: the best by evaluation, the last, and the newest few on the way."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from trueup.schema import SpanName, StorageError

from .session import Session

BEST = "best"
LAST = "last"


def keep(session: Session, name: str, *, step: int, loss: float | None = None) -> None:
    """Save the trainable weights under `name`. A full disk is an event, not the end of the run: the weights
    saved before stay whole."""
    if not session.world.leads:
        return
    from trueup.model.export import save_weights

    run_folder = session.weights.parent
    if (
        not run_folder.is_dir()
    ):  # somebody removed it; making it anew would hide that from the record's keeper
        session.timeline.event(
            "checkpoint_failed", f"{run_folder} is gone; the weights of step {step} are not kept"
        )
        return
    about: dict[str, Any] = {"step": step, "eval_loss": loss}
    with session.timeline.span(SpanName.CHECKPOINT):
        try:
            save_weights(session.model, session.weights / name, about=about)
        except StorageError as error:
            session.timeline.event("checkpoint_failed", str(error), step=step, name=name)


def keep_periodic(session: Session, step: int) -> None:
    """Save this step's weights and drop the oldest beyond `checkpoint.keep`."""
    keep(session, f"step-{step:06d}", step=step)
    if session.world.leads:
        for old in sorted(session.weights.glob("step-*"))[: -session.recipe.checkpoint.keep]:
            shutil.rmtree(old, ignore_errors=True)


def kept(folder: Path) -> Path | None:
    """The weights to export: the best if evaluation chose any, else the last. None if the run kept none:
    a full disk leaves a folder without its manifest."""
    from trueup.model.export import WEIGHTS_MANIFEST

    return next(
        (folder / name for name in (BEST, LAST) if (folder / name / WEIGHTS_MANIFEST).is_file()), None
    )
