"""What a run compiles goes into the home's compile cache, and what earlier runs compiled is found there."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from trueup.cache import CacheStore, key_of, opened
from trueup.cache.archive import export_cache, import_cache
from trueup.checkpoint.folder import checkpoints_of
from trueup.schema import SpanName, TrueupError
from trueup.schema.counting import counted

from .resume import Resume
from .saves import COMPILE_CACHE
from .session import Session
from .world import World

TOKEN_BITS = 48  # ranks agree on a number through a sum of doubles, which hold it exactly


@contextmanager
def compile_cache(
    session: Session,
    home: Path,
    *,
    trust: bool,
    say: Callable[[str], None],
    resume: Resume | None = None,
) -> Iterator[Callable[[], None]]:
    """Open the cache before the first compile, seal it in the end, however that comes. Gives what seals it in
    between, for all ranks to call together, and puts a copy beside the run's checkpoints. A run that is
    resumed takes the copy of its checkpoint where the home has none. Does nothing where the plan compiles
    nothing."""
    if session.plan.compile == "none":
        yield lambda: None
        return

    def note(message: str) -> None:
        session.timeline.event("note", message)
        say(message)

    def seal() -> None:
        with session.timeline.span(SpanName.RECORD):
            session.world.wait_for_all()
            if session.world.leads:
                cache.seal()
                _put_beside_checkpoints(session, home, cache.key, note)

    with ExitStack() as stack:
        with session.timeline.span(SpanName.LOAD):
            facts = compile_facts(session)
            if resume is not None and session.world.leads:
                _take_from_checkpoint(resume, home, key_of(facts), trust, note)
            session.world.wait_for_all()
            opening = opened(
                home,
                facts,
                variables=session.device.compile_caches,
                trust=trust,
                say=note,
                shared_as=_name_for_all(session.world),
            )
            cache = stack.enter_context(opening)
        if cache.kept_files:
            note(f"compile cache {cache.key}: {counted(cache.kept_files, 'file')} of earlier runs")
        try:
            with _environment(cache.environment):
                yield seal
        finally:
            with session.timeline.span(SpanName.RECORD):
                stack.close()


def _put_beside_checkpoints(session: Session, home: Path, key: str, note: Callable[[str], None]) -> None:
    """Each checkpoint carries it from there: a run that goes on elsewhere compiles nothing anew."""
    folder = checkpoints_of(session.run_folder)
    try:
        folder.mkdir(exist_ok=True)  # a run folder that somebody removed is not made again
        export_cache(home, key, folder / COMPILE_CACHE)
    except (OSError, TrueupError) as error:
        note(f"checkpoints carry no compiled code: {error}")


def _take_from_checkpoint(
    resume: Resume, home: Path, key: str, trust: bool, note: Callable[[str], None]
) -> None:
    """What cannot be used is said and left: the checkpoint is good without it."""
    archive = resume.folder / COMPILE_CACHE
    kept = CacheStore(home).keys()
    if key in kept or not archive.is_file():
        return
    try:
        found = import_cache(home, archive, trust=trust)
    except TrueupError as error:
        note(f"compiled code of the checkpoint is not used: {error}")
        return
    if found.key != key:
        note(
            "compiled code of the checkpoint is of no use here: it was made for another version of torch, "
            "another device or other shapes; all is compiled anew"
        )


def compile_facts(session: Session) -> dict[str, Any]:
    """What decides which kept cache a run opens. Compilers look closer at each piece in it."""
    import torch

    plan = session.plan
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": session.device.compiled_for(),
        "model": session.model.dims.model_dump(),
        "compile": plan.compile,
        "precision": session.precision.policy,
        "shapes": {
            "training": plan.training,
            "evaluation": plan.evaluation,
            "chunk_rows": plan.chunk_rows,
            "head_rows": plan.head_rows,
        },
    }


def _name_for_all(world: World) -> str | None:
    """A name that the ranks of this run share and no other run has; None for one process."""
    if world.size == 1:
        return None
    mine = float(secrets.randbits(TOKEN_BITS)) if world.leads else 0.0
    return f"{int(world.sum([mine])[0]):x}"


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
