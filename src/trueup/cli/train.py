"""`trueup train RECIPE`."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import typer

from trueup.home import Home, find_home

from .output import JSON_OPTION, print_json, say, stdout_reserved
from .recipe import RECIPE_ARGUMENT, SET_OPTION
from .records import records_of
from .resume import Found, NothingToResumeError, find_checkpoint, held, take_up
from .run_names import new_id, new_name

if TYPE_CHECKING:
    from trueup.recipe import LoadedRecipe
    from trueup.schema import RunRecord
    from trueup.train.run import Outcome

FAILED_SAVES = ("checkpoint_failed", "upload_failed")
MOST_UPLOADS = 3  # that failed, to speak of: the newest; a network may be away for hours


def train(
    recipe: str = RECIPE_ARGUMENT,
    overrides: list[str] = SET_OPTION,
    name: str | None = typer.Option(
        None, "--name", help="Name of the run; must be new. Default: the recipe's."
    ),
    trust_cache: bool = typer.Option(
        False, "--trust-cache", help="Use compiled code that another home signed: you trust who made it."
    ),
    strict_shapes: bool = typer.Option(
        False,
        "--strict-shapes",
        help="End the run as failed when anything is compiled after the warm-up, or could not be in it.",
    ),
    resume: str | None = typer.Option(
        None,
        "--resume",
        metavar="auto|RUN|PATH",
        help="Go on with a run that ended early: with the newest of this recipe (auto; a new one if there is "
        "none), a run, or the folder of a checkpoint.",
    ),
    allow_change: list[str] = typer.Option(
        [], "--allow-change", metavar="KEY", help="With --resume: let this key of the recipe differ."
    ),
    enforce: bool = typer.Option(
        False,
        "--enforce",
        help="Exit with 3 where the bill is over the recipe's budget, as `bill --enforce`.",
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Run a recipe and record it. Ctrl-C ends it after the current step, saved; what was measured is kept."""
    from trueup.recipe import load_recipe
    from trueup.schema import InputError

    if resume is not None and name is not None:
        raise InputError("a run that is resumed keeps its name: leave out --name")
    if allow_change and resume is None:
        raise InputError("--allow-change is for --resume")
    loaded = load_recipe(recipe, overrides)
    if enforce:
        _require_red_line(loaded)
    if os.environ.get("RANK", "0") == "0":  # the first process of torchrun's, or the only one
        say("loading PyTorch")  # which takes seconds
    home = find_home().for_writing()
    try:
        found = None if resume is None else find_checkpoint(resume, loaded, home, allow_change)
    except NothingToResumeError as nothing:
        found = None
        if nothing.finished is not None:
            say(f"run {nothing.finished} of this recipe has finished; to train anew leave out --resume")
            _show(nothing.finished, as_json)
            if enforce:
                _enforce(records_of([nothing.finished])[0])
            return
        say("there is no run of this recipe to go on with: a new one is started")
    with stdout_reserved():
        outcome, leads, whole = _run(
            *(loaded, home, name, found),
            allowed=allow_change,
            trust_cache=trust_cache,
            strict_shapes=strict_shapes,
        )
    if leads:
        _tell(outcome, as_json)
    if outcome.error is not None:
        raise typer.Exit(getattr(outcome.error, "exit_code", 1))
    if not whole:
        raise typer.Exit(1)
    if enforce and leads:
        _enforce(outcome.record)


def _require_red_line(loaded: LoadedRecipe) -> None:
    from trueup.schema import InputError

    recipe = loaded.recipe
    if recipe.budget.usd_per_million_tokens is None:
        raise InputError(f"{loaded.path}: --enforce needs a red line: give budget.usd_per_million_tokens")
    if recipe.price is None and recipe.platform.instance is None:
        raise InputError(
            f"{loaded.path}: --enforce needs a price: give price.usd_per_hour or platform.instance"
        )


def _enforce(record: RunRecord) -> None:
    """Exit with 3 where the run's bill is over its recipe's budget."""
    from trueup.analysis.bill import make_bill

    from .bill import enforce_budget

    enforce_budget([make_bill(record)], None)


def _run(
    loaded: LoadedRecipe,
    home: Home,
    name: str | None,
    found: Found | None,
    *,
    allowed: list[str],
    trust_cache: bool,
    strict_shapes: bool,
) -> tuple[Outcome, bool, bool]:
    """The run's outcome, whether this process is the rank that records and prints, and whether the home holds
    all that the run should leave there: its record and its weights."""
    from trueup.checkpoint.folder import checkpoints_of, steps
    from trueup.model.builtin import require_known
    from trueup.schema.run import HEADER_FILE
    from trueup.telemetry import MemorySink, RunFolder
    from trueup.train.resume import require_same_device
    from trueup.train.run import execute
    from trueup.train.session import Places, find_device

    from .calibrations import of_device
    from .price_book import price_of
    from .profiles import learnt

    # mistakes in the recipe, if they are any, before anything is recorded
    price = price_of(loaded.recipe)
    require_known(loaded.recipe.model.path)
    world, device = find_device(loaded.recipe, threads=found.threads if found else None)
    if found is not None:
        require_same_device(found.manifest, device.kind, allowed)
    run_id = found.manifest.origin.run if found else world.from_leader(new_id(home))
    run_name = found.manifest.origin.name if found else loaded.recipe.name
    if world.leads and not found:
        run_name = new_name(name, run_name)
    folder, outcome = home.runs / run_id, None
    try:
        with held(folder) if world.leads else nullcontext():
            resume = world.leader_first(partial(take_up, found, home, leads=world.leads)) if found else None
            if world.leads:
                say(f"run {run_id} ({run_name})" + (f" goes on after step {resume.step}" if resume else ""))
            sink = RunFolder(folder) if world.leads else MemorySink()
            outcome = execute(
                loaded,
                run_id=run_id,
                name=run_name,
                price=price,
                world=world,
                device=device,
                places=Places(home.path, home.data, folder),
                sink=sink,
                stream=sys.stderr if world.leads else None,
                profile=learnt(loaded.recipe, device) if world.leads else None,
                calibration=of_device(device) if world.leads else None,
                trust_cache=trust_cache,
                strict_shapes=strict_shapes,
                resume=resume,
            )
    finally:
        if outcome is None and world.leads and not (folder / HEADER_FILE).exists():
            shutil.rmtree(folder, ignore_errors=True)  # ended before there was anything to record
        device.close()
    for problem in sink.problems():
        say(f"note: {problem}")
    whole = not isinstance(sink, RunFolder) or (sink.complete and bool(steps(checkpoints_of(folder))))
    return outcome, world.leads, whole


def _tell(outcome: Outcome, as_json: bool) -> None:
    """Say how it ended, from memory: neither a full disk nor a locked database may spoil the answer."""
    from trueup.schema import InputError, StorageError

    header, record = outcome.header, outcome.record
    said = {kind: [e.message for e in record.events if e.kind == kind] for kind in FAILED_SAVES}
    for message in (*said["checkpoint_failed"], *said["upload_failed"][-MOST_UPLOADS:]):
        say(f"note: {message}")
    say(f"run {header.id} {header.state}: {header.reason}")
    try:
        from .records import open_store

        with open_store():
            pass  # opening takes the run in
    except (StorageError, InputError) as error:  # the run is whole in its folder; a later command takes it in
        say(f"note: not in the database yet: {error}")
    if as_json:
        _print_record(record)
    elif (cost := record.measurements.get("usd_per_million_useful_tokens")) and cost.value is not None:
        print(f"${cost.value:.4g} per million useful tokens, all in; `trueup bill {header.id}` says for what")


def _show(run_id: str, as_json: bool) -> None:
    """The document of a run that had finished, where it is in this home: it may be known from elsewhere."""
    if as_json and (find_home().runs / run_id).is_dir():
        _print_record(records_of([run_id])[0])


def _print_record(record: RunRecord) -> None:
    from .runs import run_document

    print_json(run_document(record))
