"""`trueup parity A [B]`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trueup.schema import InputError

from .output import JSON_OPTION, print_json, print_rich, say, stdout_reserved
from .parity_batch import Given, batch_for
from .sides import Opened, open_side

if TYPE_CHECKING:
    from trueup.analysis.parity import Parity
    from trueup.model.batch import BatchTensors
    from trueup.model.parity_file import OutputFile

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
        sides = [open_side(text) for text in (a, b) if text is not None]
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


@contextmanager
def _outputs_of(
    side: Opened, batch: BatchTensors, source: str, save: Path | None, *, gradient: bool
) -> Iterator[OutputFile]:
    """Side A's outputs in a file: the one it is, the one to save, or one that is gone afterwards."""
    from trueup.model.parity_file import OutputFile
    from trueup.model.parity_run import outputs_of

    if isinstance(side.run, OutputFile):
        if save is not None:
            raise InputError(f"{side.text}: it is a saved side already; leave out --save")
        yield side.run
        return
    with outputs_of(side.run, batch, source, save, say, gradient=gradient) as outputs:
        yield outputs


def _compare(
    a: OutputFile, sides: Sequence[Opened], batch: BatchTensors, tolerance: float | None, *, gradient: bool
) -> Parity:
    from trueup.analysis.parity import judge
    from trueup.model.parity_run import compared

    facts, found, left = compared(a, sides[1].run, batch, _text_of(sides), say, gradient=gradient)
    return judge(a.side, facts, a.facts, found, left, tolerance=tolerance)


def _text_of(sides: Sequence[Opened]) -> Callable[[int], str] | None:
    """Tokens as text, where a side with a tokenizer is here."""
    subject = next((one.subject for one in sides if one.subject is not None), None)
    if subject is None:
        return None
    from trueup.model.load import load_tokenizer

    tokenizer = load_tokenizer(subject.resolved)
    return lambda token: str(tokenizer.decode([token]))
