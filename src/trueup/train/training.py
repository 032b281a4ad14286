"""From a warmed-up session to its training: what stands beside the loop is opened, a run that is resumed goes
on where it was, and in the end all of it is closed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from trueup.analysis.totals import steps_of
from trueup.checkpoint.manifest import CheckpointManifest
from trueup.schema import RunHeader, SpanName
from trueup.schema.protocols import Sink
from trueup.schema.run import MEASUREMENTS_FILE
from trueup.telemetry import MemorySink

from .guard import Guard, NewSamples
from .loop import Loop
from .progress import Progress
from .recovery import Recovery
from .resume import Resume, restore
from .saves import open_saves
from .session import Session, seed_everything
from .spot import SpotWatch, is_on_ec2
from .state import Tally
from .stop import StopRule, stop_rule


@contextlib.contextmanager
def opened(
    session: Session,
    header: RunHeader,
    sink: Sink,
    kept: MemorySink,
    progress: Callable[[StopRule], Progress],
    resume: Resume | None,
) -> Iterator[Loop]:
    """A loop to run in the block. `kept` is where the sampler's readings are found. The first signal ends
    neither the block nor the saves and uploads after it at once; a second one does."""
    with session.timeline.span(SpanName.PREPARE):
        rule = stop_rule(session.recipe, session.price, session.plan.steps_per_epoch)
        recovery, tally = Recovery.of(session), Tally()
        on_ec2 = is_on_ec2(header.environment.get("instance", {}))
        spot = SpotWatch() if session.world.leads and on_ec2 else None
        shown = progress(rule)
        guard = _guard(session, rule, shown.note, spot, resume.manifest if resume else None)
        saves = open_saves(session, header, settle=sink.flush, remember=lambda: _remembered(recovery, guard))
    loop = Loop(session, rule, sink, shown, saves, recovery, guard, NewSamples(kept.samples), tally)
    session.interruption.polite = True
    try:
        if spot is not None:
            spot.start()
        if resume is None:
            seed_everything(session.recipe.train.seed)  # warming up draws as often as time allows
        else:
            _go_on(loop, resume)
        yield loop
    finally:
        shown.close()
        saves.close()
        session.interruption.polite = False
        if guard is not None:
            guard.close()
        if spot is not None:
            spot.close()


def _guard(
    session: Session,
    rule: StopRule,
    say: Callable[[str], None],
    spot: SpotWatch | None,
    manifest: CheckpointManifest | None,
) -> Guard | None:
    """The leading rank guards all."""
    if not session.world.leads:
        return None
    return Guard(
        session.recipe.guard,
        timeline=session.timeline,
        price=session.price,
        total_steps=rule.total_steps,
        stop_usd=session.recipe.train.stop.usd,
        run_folder=session.run_folder,
        missing=session.device.missing(),
        state=manifest.state["guard"] if manifest else None,
        device=session.device,
        spot=spot,
        say=say,
    )


def _remembered(recovery: Recovery, guard: Guard | None) -> dict[str, Any]:
    return {"recovery": recovery.state(), "guard": guard.state() if guard is not None else None}


def _go_on(loop: Loop, resume: Resume) -> None:
    session, before = loop.session, resume.record.header
    with session.timeline.span(SpanName.LOAD):
        restore(session, resume.folder, resume.manifest, loop.tally)
        if session.world.leads:  # a summary of what is not the whole any more
            with contextlib.suppress(OSError):
                (session.run_folder / MEASUREMENTS_FILE).unlink()
        loop.recovery.restore(resume.manifest.state["recovery"])
        loop.saves.mark_saved(loop.tally)
        loop.saves.upload(resume.folder)
    stood, _ = steps_of(resume.record)
    last = max((step.step for step in stood), default=resume.step)
    given_up = f"; steps {resume.step + 1} to {last} no longer count" if last > resume.step else ""
    session.timeline.event(
        "resume",
        f"goes on after step {resume.step}; it was {before.state} before ({before.reason}){given_up}",
        step=resume.step,
        last_step=last,
        down_s=session.timeline.down_s,
        before=_of_process(before.environment),
    )


def _of_process(environment: dict[str, Any]) -> dict[str, Any]:
    """What says on which machine and by which versions the run went before."""
    return {key: environment[key] for key in ("host", "process", "versions", "device") if key in environment}
