"""One execution of a recipe, always recorded: finished, failed or interrupted, with what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO

from trueup import __version__
from trueup.analysis.bill import make_bill
from trueup.analysis.measure import summarize
from trueup.analysis.outcomes import of_wall_clock
from trueup.device import Device
from trueup.recipe import LoadedRecipe, Recipe
from trueup.schema import (
    Calibration,
    InputError,
    Measurement,
    PlatformProfile,
    Price,
    RunHeader,
    RunRecord,
    RunState,
    SpanName,
    TrueupError,
)
from trueup.schema.protocols import Sink
from trueup.telemetry import MemorySink, Sampler, TeeSink, Timeline, collect, identity, process_origin
from trueup.telemetry.scrub import scrub_arguments

from .compile_cache import compile_cache
from .compiling import undo_compile
from .failure import Failure, explain, saved_step
from .foresight import foretell
from .interruption import Interrupted, Interruption
from .loop import Ending, run_loop
from .measured import measured_here
from .progress import Progress
from .resume import Resume, decided, earlier_time, remember
from .session import Places, Session, open_session
from .stop import StopRule
from .training import opened
from .warm_up import warmed_up
from .world import World


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `error` is what ended it, where something did."""

    header: RunHeader
    measurements: dict[str, Measurement]
    error: BaseException | None
    record: RunRecord  # the whole of it, from memory: whatever became of the disk and the database


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
    calibration: Calibration | None = None,
    strict_shapes: bool = False,
    trust_cache: bool = False,
    resume: Resume | None = None,
) -> Outcome:
    """Run the recipe and emit its record to `sink`.

    `stream` is where a person watches, or None; `profile` what earlier runs taught of this platform, and
    `calibration` what was measured of it, from which the run is foretold; with `strict_shapes` a compile
    after the warm-up ends the run; with `trust_cache` compiled code that another home signed is used; with
    `resume` the run of that checkpoint goes on, under its own `run_id` and `name`. Never raises for what ends
    a run: see `Outcome.error`. On ranks other than the leading one nothing is recorded.
    """
    kept = MemorySink()
    sink = TeeSink(kept, sink) if world.leads else kept
    timeline, started_at = _clock(sink, resume)
    if resume is not None:
        remember(resume, kept)
    header = _first_header(loaded, run_id, name, price, world, started_at)
    running = _Running(header, loaded.recipe, world, device, timeline, places, kept, sink, stream, resume)
    sampler = Sampler(device, sink, timeline.now, loaded.recipe.telemetry.hz)
    failure: Failure | None = None
    with Interruption() as interruption:
        try:
            running.tell()  # only now: whoever writes 'running' must be able to write how it ended
            with sampler:
                running.open(interruption, profile, strict_shapes=strict_shapes)
                running.train(calibration, trust_cache=trust_cache)
                interruption.concluding = True
        except (Exception, Interrupted) as error:
            interruption.concluding = True
            if not running.is_done():
                given = scrub_arguments(loaded.arguments)
                failure = explain(error, running.session, kept.steps, given)
                timeline.event(failure.state, failure.reason, **failure.data)
            else:
                running.tell_later(error)
        return running.conclude(sampler, _end(failure, running.ending, resume, kept))


@dataclass
class _Running:
    """A run between its first header and its last, and what it works with until then."""

    header: RunHeader
    recipe: Recipe
    world: World
    device: Device
    timeline: Timeline
    places: Places
    kept: MemorySink
    sink: Sink  # to which all of it is emitted, `kept` among others
    stream: TextIO | None
    resume: Resume | None
    session: Session | None = None
    ending: Ending | None = None  # of its training; what comes after it is closing

    def tell(self, **changes: Any) -> None:
        """Emit the header, with what is known by now."""
        self.header = self.header.model_copy(update=changes)
        self.sink.header(self.header)

    def open(
        self, interruption: Interruption, profile: PlatformProfile | None, *, strict_shapes: bool
    ) -> None:
        """Collect the environment and open the session."""
        with self.timeline.span(SpanName.LOAD):
            found = collect(self.device, metadata=self.recipe.platform.metadata)
        self.tell(environment={**found, "world": {"size": self.world.size}})
        session = self.session = open_session(
            self.recipe,
            world=self.world,
            device=self.device,
            timeline=self.timeline,
            price=self.header.price,
            places=self.places,
            say=_speaker(self.stream),
            interruption=interruption,
            profile=profile,
            strict_shapes=strict_shapes,
            decided=decided(self.resume, self.recipe) if self.resume else None,
        )
        from trueup.model.folder import digest_of

        base = {"digest": digest_of(session.model.resolved.folder)}
        self.tell(
            model=session.model.dims,
            dataset=session.prepared.facts,
            environment={**self.header.environment, "base_model": base},
            **_choices_of(session),
        )

    def train(self, calibration: Calibration | None, *, trust_cache: bool) -> None:
        """Warm up, foretell and train, under the compile cache."""
        assert self.session is not None
        say, resume = _speaker(self.stream), self.resume
        cache = compile_cache(self.session, self.places.home, trust=trust_cache, resume=resume, say=say)
        with cache as seal:
            session = self.session = _warmed_up(self.session, self.stream)
            seal()
            self.tell(**_choices_of(session))
            if resume is None and session.world.leads:  # later, a prediction would know what came of it
                foretell(session, calibration)
            progress = partial(_progress, session, self.stream)
            with opened(session, self.header, self.sink, self.kept, progress, resume) as loop:
                self.ending = run_loop(loop)
                session.world.close()  # nothing more is done together: nobody waits for the last uploads
            self.device.synchronize()  # may raise what the device did not say before

    def is_done(self) -> bool:
        """Whether the training has ended and its last step is saved: nothing that happens now undoes that."""
        if self.ending is None or self.session is None:
            return False
        return not self.world.leads or saved_step(self.session) == self.ending.step

    def tell_later(self, error: BaseException) -> None:
        """What happened after all was done."""
        assert self.ending is not None
        foreseen = isinstance(error, TrueupError | Interrupted)
        what = str(error) if foreseen else f"{type(error).__name__}: {error}"
        message = f"after the run's work was done and saved: {what}"
        self.timeline.event("after_the_end", message, cause=type(error).__name__)
        self.ending = replace(self.ending, reason=f"{self.ending.reason}; later: {what}")

    def conclude(self, sampler: Sampler, end: Failure | Ending | None) -> Outcome:
        """Turn the records into measurements, stop the clock, write both. The arithmetic is on the clock,
        under the span `record`; only the wall clock itself and what follows from it are filled in after it
        stopped."""
        if self.session is not None:
            self.session.compiles.close()  # with what was compiled since the last step
            undo_compile(self.session)
        with self.timeline.span(SpanName.RECORD):
            extra = measured_here(self.session, self.timeline, sampler)
            measurements, steady = summarize(self._record(), extra=extra)
        wall_s = self.timeline.close()
        state: RunState = end.state if end else "finished"
        ended_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.header = self.header.model_copy(
            update={
                "state": state,
                "reason": end.reason if end else None,
                "ended_at": ended_at,
                "wall_s": wall_s,
                "steady": steady,
            }
        )
        final = self._record()
        measurements |= of_wall_clock(final)
        measurements |= _dollars(final.model_copy(update={"measurements": measurements}))
        self.sink.measurements(measurements)
        self.tell()
        self.sink.close()
        record = final.model_copy(update={"measurements": measurements})
        return Outcome(self.header, measurements, end.error if isinstance(end, Failure) else None, record)

    def _record(self) -> RunRecord:
        return RunRecord(
            header=self.header,
            spans=self.timeline.totals(),
            events=tuple(self.kept.events),
            steps=tuple(self.kept.steps),
            evaluations=tuple(self.kept.evaluations),
            samples=tuple(self.kept.samples),
        )


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


def _choices_of(session: Session) -> dict[str, Any]:
    """What was decided, as the header has it."""
    choices = {key: choice.as_dict() for key, choice in session.choices.items()}
    return {"shape_plan": session.plan, "choices": choices}


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
    """How the run ended. One that had finished stays so where it was to go on and could not begin to, unless
    it has given up some of what it had done by then."""
    if failure is None or resume is None:
        return failure or ending
    before, since = resume.record.header, kept.events[len(resume.record.events) :]
    nothing_done = len(kept.steps) == len(resume.record.steps)
    went_back = any(one.kind == "resume" and one.data["step"] < one.data["last_step"] for one in since)
    if before.state != "finished" or not nothing_done or went_back:
        return failure
    return replace(failure, state="finished", reason=f"{before.reason}; later: {failure.reason}")


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
