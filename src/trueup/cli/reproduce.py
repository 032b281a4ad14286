"""`trueup reproduce RUN`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from trueup.home import find_home

from .compare import compared_run
from .output import JSON_OPTION, print_json, print_rich, say, stdout_reserved
from .records import RUN_ARGUMENT, open_store

if TYPE_CHECKING:
    from trueup.analysis.comparable import ComparedRun
    from trueup.schema import RunHeader
    from trueup.store import Store


def reproduce(
    ref: str = RUN_ARGUMENT,
    against: str | None = typer.Option(
        None, "--against", metavar="RUN", help="Compare with this run, instead of running the recipe again."
    ),
    name: str | None = typer.Option(
        None, "--name", help="Name of the new run; must be new. Default: the old one's, numbered."
    ),
    allow_difference: list[str] = typer.Option(
        [], "--allow-difference", metavar="KEY", help="Run though this has changed since: data, model."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Run a stored recipe again, as it was decided then, and say of each measurement whether it came out as
    expected."""
    from trueup.analysis.compare_reproduction import reproduction
    from trueup.schema import InputError

    if against is not None and (name is not None or allow_difference):
        option = "--name" if name is not None else "--allow-difference"
        raise InputError(f"{option} is for a new run, and with --against none is made")
    if unknown := sorted(set(allow_difference) - {"data", "model"}):
        raise InputError(f"--allow-difference {unknown[0]}: it is one of data, model")
    with open_store() as store:
        run_id = store.resolve(ref)
        other = None if against is None else store.resolve(against)
    if other is None:
        other = _run_again(run_id, name, allow_difference)
    with open_store() as store:
        original, again = (compared_run(store, one) for one in (run_id, other))
        found = reproduction(original, again, _repeats(store, original, again))
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    from trueup.report.reproduce import reproduction_text

    print_rich(reproduction_text(found))


def _run_again(run_id: str, name: str | None, allowed: list[str]) -> str:
    """The id of a new run of this run's recipe, made by `trueup train` in a process of its own. Ends the
    command with its exit code where it fails: it has said why."""
    from trueup.analysis.compare_reproduction import recipe_to_repeat

    with open_store() as store:
        header = store.record(run_id).header
    with TemporaryDirectory(prefix="trueup-reproduce-") as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(_yaml(recipe_to_repeat(header)), encoding="utf-8")
        _require_unchanged(header, path, allowed)
        say(f"running the recipe of run {header.id} ({header.name}) again")
        named = [] if name is None else ["--name", name]
        code, out = _finished([sys.executable, "-m", "trueup", "train", str(path), "--json", *named])
    if code:
        raise typer.Exit(code)
    return str(json.loads(out)["id"])


def _require_unchanged(header: RunHeader, recipe: Path, allowed: list[str]) -> None:
    """InputError where data or base model are not what the run was trained on: what came out then would be no
    repetition, and would be known hours later."""
    from trueup.schema import InputError

    told = {key: words for key, words in _changes(header, recipe) if key not in allowed}
    if told:
        keys = " ".join(f"--allow-difference {key}" for key in told)
        raise InputError(
            f"run {header.id} cannot be done again as it was. {'. '.join(told.values())}. Bring back what "
            f"was there then, or run all the same with {keys}"
        )


def _changes(header: RunHeader, recipe: Path) -> Iterator[tuple[str, str]]:
    """What of base model and data has changed since the run, with both digests."""
    from trueup.data import digest_now
    from trueup.model.builtin import resolve_model
    from trueup.model.folder import digest_of
    from trueup.model.load import load_tokenizer, read_config
    from trueup.recipe import load_recipe

    asked = load_recipe(recipe).recipe
    with stdout_reserved():
        resolved = resolve_model(asked.model.path, find_home().path, say=say)
        base = header.environment.get("base_model")
        then = base.get("digest") if isinstance(base, dict) else None  # older runs have none
        now = digest_of(resolved.folder)
        if then is not None and then != now:
            yield "model", f"The base model is another: its digest was {then[:12]}, now it is {now[:12]}"
        if header.dataset is not None:
            then, size = header.dataset.digest, int(read_config(resolved)["vocab_size"])
            now = digest_now(asked.data, load_tokenizer(resolved), vocab_size=size)
            if then != now:
                yield "data", f"The data are others: their digest was {then[:12]}, now it is {now[:12]}"


def _finished(command: list[str]) -> tuple[int, str]:
    """Exit code and stdout of a command. What stops this process stops it too, once, and is waited for: it
    saves itself. In a session of its own, because Ctrl-C in a terminal would reach it a second time."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, _ = child.communicate()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    return child.returncode, out


def _yaml(recipe: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)


def _repeats(store: Store, original: ComparedRun, again: ComparedRun) -> list[ComparedRun]:
    """All runs of the recipe, as it was given then or as it was repeated."""
    digests: dict[str, RunHeader] = {run.header.recipe_digest: run.header for run in (original, again)}
    ids = [one for digest in digests for one in store.meant_by(f"recipe_digest={digest}")]
    return [compared_run(store, one) for one in dict.fromkeys(ids)]
