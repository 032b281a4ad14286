"""`trueup parity A [B]`."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from trueup.schema import InputError

from .output import JSON_OPTION, print_json, print_rich, say, stdout_reserved
from .parity_batch import Given, SideOf, batch_for, side_of
from .sides import parse_side

if TYPE_CHECKING:
    from trueup.analysis.parity import Parity
    from trueup.model.batch import BatchTensors
    from trueup.model.parity import Side
    from trueup.model.parity_file import OutputFile
    from trueup.model.parity_watch import Take
    from trueup.schema.parity import SideFacts

SIDE_HELP = (
    "SUBJECT[:key=value,...]. SUBJECT: a run (RUN@best, RUN@last, RUN@STEP), a checkpoint, a model, or a "
    "file from --save. Keys: device, precision, attention, compile, threads."
)


def parity(
    a: str = typer.Argument(help=SIDE_HELP, metavar="A"),
    b: str | None = typer.Argument(None, help="The other side, likewise.", metavar="B"),
    data: str | None = typer.Option(
        None, "--data", metavar="RECIPE", help="Take the batch from this recipe's data, not the run's own."
    ),
    tokens: int | None = typer.Option(
        None, "--tokens", min=2, help="Tokens of the batch, at most; default 512, or what the file has."
    ),
    seed: int | None = typer.Option(
        None, "--seed", min=0, help="Random tokens of this seed instead of data; a model has no data: 0."
    ),
    tolerance: float | None = typer.Option(
        None, "--tolerance", help="Largest relative error; default that of the lower precision."
    ),
    no_gradient: bool = typer.Option(False, "--no-gradient", help="Forward pass and loss only."),
    save: Path | None = typer.Option(
        None, "--save", help="Keep A's outputs in this file, to compare with on another machine."
    ),
    rows: int = typer.Option(15, "--rows", min=1, help="How many of the worst outputs to show."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Run one batch through two sides and compare every output, worst first; exit code 1 where they differ by
    more than the tolerance."""
    from trueup.analysis.parity import require_tolerance

    if b is None and save is None:
        raise InputError(
            "give a second side to compare with, or --save FILE to keep the outputs of the first"
        )
    if tolerance is not None:
        require_tolerance(tolerance)
    gradient = not no_gradient
    with stdout_reserved():
        sides = [side_of(parse_side(text)) for text in (a, b) if text is not None]
        batch, source = batch_for(sides, Given(data, tokens, seed))
        with _outputs_of(sides[0], batch, source, save, gradient=gradient) as outputs:
            found = None if b is None else _compare(outputs, sides, batch, tolerance, gradient=gradient)
            facts = {"a": outputs.side, "batch": outputs.facts}
    if save is not None:
        _tell_saved(save, facts, as_json=as_json and found is None)
    if found is not None:
        _tell(found, rows, as_json=as_json)


def _tell(found: Parity, rows: int, *, as_json: bool) -> None:
    if as_json:
        print_json(_plain(found))
    else:
        from trueup.report.parity import parity_text

        print_rich(parity_text(found, rows=rows))
    if found.verdict == "over":
        raise typer.Exit(1)


def _tell_saved(path: Path, facts: dict[str, Any], *, as_json: bool) -> None:
    size = path.stat().st_size
    if as_json:
        print_json({"saved": str(path), "bytes": size, **{key: _plain(one) for key, one in facts.items()}})
    else:
        say(f"wrote {path} ({size / 1e6:,.1f} MB): the outputs of {facts['a'].subject}")


def _plain(record: Any) -> dict[str, Any]:
    """As JSON has it: an error that is not finite is the string "Infinity"."""
    fields: dict[str, Any] = json.loads(record.model_dump_json())
    return fields


@contextlib.contextmanager
def _outputs_of(
    side: SideOf, batch: BatchTensors, source: str, save: Path | None, *, gradient: bool
) -> Iterator[OutputFile]:
    """Side A's outputs in a file: the one it is, the one to save, or one that is gone afterwards."""
    if side.saved is not None:
        if save is not None:
            raise InputError(f"{side.asked.text}: it is a saved side already; leave out --save")
        yield side.saved
        return
    from trueup.files.whole import replacing_file
    from trueup.model.parity_file import OutputFile
    from trueup.model.staging import storage_errors

    if save is not None:
        if save.exists() or save.is_symlink():
            raise InputError(f"{save}: exists; name a new file or remove this one")
        with storage_errors("writing the outputs", save.parent):
            save.parent.mkdir(parents=True, exist_ok=True)
            with replacing_file(save) as part:
                _write(part, side, batch, source, gradient=gradient)
        yield OutputFile(save)
        return
    with tempfile.TemporaryDirectory(prefix="trueup-parity-") as folder:
        file = Path(folder) / "a.safetensors"
        with storage_errors("writing the outputs of side A", Path(folder).parent):
            _write(file, side, batch, source, gradient=gradient)
        yield OutputFile(file)


def _write(path: Path, side: SideOf, batch: BatchTensors, source: str, *, gradient: bool) -> None:
    from trueup.model.parity import points_at_most
    from trueup.model.parity_file import OutputWriter, batch_facts

    to_run = _to_run(side)
    with path.open("wb") as file:
        writer = OutputWriter(file, batch, points=points_at_most(to_run))
        facts = _run(side, to_run, batch, writer.take, gradient=gradient)
        writer.finish(facts, batch_facts(batch, source))


def _compare(
    outputs: OutputFile,
    sides: list[SideOf],
    batch: BatchTensors,
    tolerance: float | None,
    *,
    gradient: bool,
) -> Parity:
    from trueup.analysis.parity import judge
    from trueup.model.parity_compare import Comparison

    comparison = Comparison(outputs, _text_of(sides))
    b = sides[1]
    if b.saved is not None:
        facts = b.saved.side
        for point, value in b.saved:
            comparison.take(point, value)
    else:
        facts = _run(b, _to_run(b), batch, comparison.take, gradient=gradient)
    compared, not_compared = comparison.finish()
    return judge(outputs.side, facts, outputs.facts, compared, not_compared, tolerance=tolerance)


def _to_run(side: SideOf) -> Side:
    from trueup.model.parity import Side

    subject, options = side.subject, side.asked.options
    assert subject is not None
    recipe = subject.recipe
    own = recipe.precision.policy if recipe is not None else "auto"
    return Side(
        subject=side.asked.text,
        resolved=subject.resolved,
        section=subject.section,
        weights=subject.weights,
        put_weights=subject.put,
        precision=cast(Any, options.get("precision", own)),
        attention=cast(Any, options.get("attention", "auto")),
        compile=cast(Any, options.get("compile", "none")),
    )


def _run(side: SideOf, to_run: Side, batch: BatchTensors, take: Take, *, gradient: bool) -> SideFacts:
    from trueup.device import open_device
    from trueup.model.parity import run_side

    kind = cast(Any, side.asked.options.get("device", "auto"))
    say(f"running {side.asked.text}")
    with contextlib.closing(open_device(kind, threads=side.asked.threads)) as device:
        return run_side(to_run, device, batch, take, gradient=gradient)


def _text_of(sides: list[SideOf]) -> Callable[[int], str] | None:
    """Tokens as text, where a side with a tokenizer is here."""
    subject = next((one.subject for one in sides if one.subject is not None), None)
    if subject is None:
        return None
    from trueup.model.load import load_tokenizer

    tokenizer = load_tokenizer(subject.resolved)
    return lambda token: str(tokenizer.decode([token]))
