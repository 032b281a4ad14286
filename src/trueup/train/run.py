"""One execution of a recipe, always recorded: finished, failed or interrupted, with what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TextIO

from trueup import __version__
from trueup.analysis.bill import make_bill
from trueup.analysis.measure import summarize
from trueup.analysis.outcomes import of_wall_clock
from trueup.catalog import instance_price
from trueup.device import Device
from trueup.recipe import LoadedRecipe, Recipe
from trueup.schema import (
    InputError,
    Measurement,
    PlatformProfile,
    Price,
    RunHeader,
    RunRecord,
    RunState,
    SpanName,
)
from trueup.schema.protocols import Sink
from trueup.telemetry import MemorySink, Sampler, TeeSink, Timeline, collect, identity, process_origin

from .compile_cache import compile_cache
from .compiling import undo_compile
from .failure import Failure, explain
from .interruption import Interrupted, Interruption
from .loop import Ending
from .measured import measured_here
from .progress import Progress
from .resume import Resume, decided, earlier_time, remember
from .session import Places, Session, open_session
from .stop import StopRule
from .training import train
from .warm_up import warmed_up
from .world import World


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `error` is what ended it, where something did."""

    header: RunHeader
    measurements: dict[str, Measurement]
    error: BaseException | None
    record: RunRecord  # the whole of it, from memory: whatever became of the disk and the database


def price_of(recipe: Recipe) -> Price | None:
    """The recipe's own price, else the catalog's for its instance, else none."""
    if recipe.price is not None:
        return Price(**recipe.price.model_dump())
    if recipe.platform.instance is not None:
        return instance_price(recipe.platform.instance)
    return None


def execute(
    loaded: LoadedRecipe,
    *,
    run_id: str,
    name: str,
    price: Price | None,
    world: World,
    device: Device,
    places: Places,
    sink: Sink,
    stream: TextIO | None,
    profile: PlatformProfile | None = None,
    strict_shapes: bool = False,
    trust_cache: bool = False,
    resume: Resume | None = None,
) -> Outcome:
    """Run the recipe and emit its record to `sink`.

    `stream` is where a person watches, or None; `profile` what earlier runs taught of this platform; with
    `strict_shapes` a compile after the warm-up ends the run; with `trust_cache` compiled code that another
    home signed is used; with `resume` the run of that checkpoint goes on, under its own `run_id` and `name`.
    Never raises for what ends a run: see `Outcome.error`. On ranks other than the leading one nothing is
    recorded.
    """
    kept = MemorySink()
    tee = TeeSink(kept, sink) if world.leads else kept
    timeline, started_at = _clock(tee, resume)
    if resume is not None:
        remember(resume, kept)
    header = _first_header(loaded, run_id, name, price, world, started_at)
    session: Session | None = None
    sampler = Sampler(device, tee, timeline.now, loaded.recipe.telemetry.hz)
    failure: Failure | None = None
    ending: Ending | None = None
    with Interruption() as interruption:
        try:
            tee.header(header)  # only now: whoever writes 'running' must be able to write how it ended
            with sampler:
                header = _with_environment(header, loaded.recipe, device, world, timeline)
                tee.header(header)
                session, header = _open(
                    *(loaded.recipe, header, world, device, timeline, places, stream, interruption),
                    *(profile, strict_shapes, resume),
                )
                tee.header(header)
                cache = compile_cache(
                    session, places.home, trust=trust_cache, resume=resume, say=_speaker(stream)
                )
                with cache as seal:
                    session = _warmed_up(session, stream)
                    seal()
                    header = _with_choices(header, session)
                    tee.header(header)
                    ending = train(session, header, tee, kept, partial(_progress, session, stream), resume)
                    device.synchronize()  # may raise what the device did not say before
                interruption.concluding = True
        except (Exception, Interrupted) as error:
            interruption.concluding = True
            failure = explain(error, session, kept.steps)
            timeline.event(failure.state, failure.reason, **failure.data)
        end = _end(failure, ending, resume, kept)
        return _conclude(header, kept, tee, timeline, session, sampler, end)


def _clock(sink: Sink, resume: Resume | None) -> tuple[Timeline, str]:
    """The run's timeline, and when its clock started: with this process, or with the run's first."""
    origin_perf, started_at = process_origin()
    if resume is None:
        return Timeline(sink, origin_perf), started_at
    earlier = earlier_time(resume, started_at)
    timeline = Timeline(sink, origin_perf - earlier.started_s, earlier=earlier)
    return timeline, resume.record.header.started_at


def _first_header(
    loaded: LoadedRecipe, run_id: str, name: str, price: Price | None, world: World, started_at: str
) -> RunHeader:
    return RunHeader(
        id=run_id,
        name=name,
        state="running",
        trueup_version=__version__,
        recipe=loaded.recipe.model_dump(mode="json"),
        recipe_digest=loaded.digest,
        recipe_sources=loaded.sources,
        environment={**identity(), "world": {"size": world.size}},
        price=price,
        started_at=started_at,
    )


def _with_environment(
    header: RunHeader, recipe: Recipe, device: Device, world: World, timeline: Timeline
) -> RunHeader:
    with timeline.span(SpanName.LOAD):
        found = collect(device, metadata=recipe.platform.metadata)
    return header.model_copy(update={"environment": {**found, "world": {"size": world.size}}})


def _open(
    recipe: Recipe,
    header: RunHeader,
    world: World,
    device: Device,
    timeline: Timeline,
    places: Places,
    stream: TextIO | None,
    interruption: Interruption,
    profile: PlatformProfile | None,
    strict_shapes: bool,
    resume: Resume | None,
) -> tuple[Session, RunHeader]:
    session = open_session(
        recipe,
        world=world,
        device=device,
        timeline=timeline,
        price=header.price,
        places=places,
        say=_speaker(stream),
        interruption=interruption,
        profile=profile,
        strict_shapes=strict_shapes,
        decided=decided(resume, recipe) if resume else None,
    )
    facts = {"model": session.model.dims, "dataset": session.prepared.facts}
    return session, _with_choices(header.model_copy(update=facts), session)


def _with_choices(header: RunHeader, session: Session) -> RunHeader:
    choices = {key: choice.as_dict() for key, choice in session.choices.items()}
    return header.model_copy(update={"shape_plan": session.plan, "choices": choices})


def _warmed_up(session: Session, stream: TextIO | None) -> Session:
    say = _speaker(stream if session.world.leads else None)
    for key, choice in session.choices.items():
        say(f"{key}: {choice.value} ({choice.reason})")
    say("warming up: every shape, the largest first")
    session.interruption.polite = True
    try:
        return warmed_up(session, say)
    finally:
        session.interruption.polite = False


def _speaker(stream: TextIO | None) -> Callable[[str], None]:
    def say(text: str) -> None:
        if stream is not None:
            print(text, file=stream, flush=True)

    return say


def _progress(session: Session, stream: TextIO | None, rule: StopRule) -> Progress:
    return Progress(stream if session.world.leads else None, rule.total_steps, session.price)


def _end(
    failure: Failure | None, ending: Ending | None, resume: Resume | None, kept: MemorySink
) -> Failure | Ending | None:
    """How the run ended. One that had finished stays so where it was to go on and could not begin to."""
    if failure is None or resume is None:
        return failure or ending
    before, nothing_done = resume.record.header, len(kept.steps) == len(resume.record.steps)
    if before.state != "finished" or not nothing_done:
        return failure
    return replace(failure, state="finished", reason=f"{before.reason}; later: {failure.reason}")


def _conclude(
    header: RunHeader,
    kept: MemorySink,
    sink: Sink,
    timeline: Timeline,
    session: Session | None,
    sampler: Sampler,
    end: Failure | Ending | None,
) -> Outcome:
    """Turn the records into measurements, stop the clock, write both. The arithmetic is on the clock, under
    the span `record`; only the wall clock itself and what follows from it are filled in after it stopped."""
    if session is not None:
        session.compiles.close()  # with what was compiled since the last step
        undo_compile(session)
    with timeline.span(SpanName.RECORD):
        extra = measured_here(session, timeline, sampler)
        so_far = _record(header, kept, timeline)
        measurements, steady = summarize(so_far, extra=extra)
    wall_s = timeline.close()
    state: RunState = end.state if end else "finished"
    header = header.model_copy(
        update={
            "state": state,
            "reason": end.reason if end else None,
            "ended_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "wall_s": wall_s,
            "steady": steady,
        }
    )
    final = _record(header, kept, timeline)
    measurements |= of_wall_clock(final)
    measurements |= _dollars(final.model_copy(update={"measurements": measurements}))
    sink.measurements(measurements)
    sink.header(header)
    sink.close()
    record = final.model_copy(update={"measurements": measurements})
    return Outcome(header, measurements, end.error if isinstance(end, Failure) else None, record)


def _record(header: RunHeader, kept: MemorySink, timeline: Timeline) -> RunRecord:
    return RunRecord(
        header=header,
        spans=timeline.totals(),
        events=tuple(kept.events),
        steps=tuple(kept.steps),
        evaluations=tuple(kept.evaluations),
        samples=tuple(kept.samples),
    )


def _dollars(record: RunRecord) -> dict[str, Measurement]:
    """The bill's two headline figures, stored with the run so that lists need not work them out again."""
    try:
        bill = make_bill(record)
    except InputError:  # no price was given: `trueup bill` says how to give one
        return {}
    return {
        "usd_per_million_useful_tokens": bill.usd_per_million_useful_tokens,
        "usd_per_million_useful_tokens_steady": bill.usd_per_million_useful_tokens_steady,
    }
