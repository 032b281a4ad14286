"""What commands about money ask for alike: price models, and work done once."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trueup.schema import InputError

from .price_book import open_price_book

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from trueup.analysis.asked_prices import PriceRequest
    from trueup.analysis.bill import OneOff
    from trueup.analysis.side_by_side import AskedPrice
    from trueup.schema import OwnedTerms, RunRecord

MODELS_OPTION = typer.Option(
    [],
    "--price",
    metavar="MODEL",
    help="Also under this price: on-demand, spot, reserved-1y, reserved-3y or capacity-block, from the price "
    "book, or with an amount an hour (on-demand=12.50); or owned=FILE.yaml. May be given again.",
)
ONE_OFF_OPTION = typer.Option(None, "--one-off", help="USD spent once, as on debugging or a migration.")
DEBUG_HOURS_OPTION = typer.Option(None, "--debug-hours", help="Hours of work done once, instead of USD.")
DEBUG_RATE_OPTION = typer.Option(None, "--usd-per-debug-hour", help="What one of these hours costs.")
MAX_OWNED_BYTES = 100_000


def requests_given(texts: list[str]) -> list[PriceRequest]:
    """The `--price` options, each once. InputError for one that is none."""
    from trueup.analysis.asked_prices import price_request

    return [price_request(text) for text in dict.fromkeys(texts)]


def asked_prices(requests: list[PriceRequest]) -> Callable[[RunRecord], list[AskedPrice]]:
    """Of a run, the prices asked for. The book and the files of owned machines are read once."""
    if not requests:
        return lambda record: []
    from trueup.analysis.asked_prices import asked_price

    book = open_price_book()
    owned = {one.text: owned_terms(one.value or "") for one in requests if one.name == "owned"}
    return lambda record: [asked_price(one, record, book, owned.get(one.text)) for one in requests]


def owned_terms(path: str) -> OwnedTerms:
    """A machine of one's own, from a YAML file. InputError, with the key, for one that is not whole."""
    import yaml
    from pydantic import ValidationError

    from trueup.recipe.text_file import read_text
    from trueup.schema import OwnedTerms

    named = f"--price owned={path}"
    text = read_text(Path(path), "file of an owned machine", most_bytes=MAX_OWNED_BYTES, named=named)
    try:
        fields = yaml.safe_load(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{named}: not valid YAML: {error}") from None
    if not isinstance(fields, dict) or not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}: a machine is a mapping of keys such as `capital:` and `life_years:`")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    try:
        return OwnedTerms.model_validate({"source": path, **fields})
    except ValidationError as error:
        said = [_owned_mistake(problem, path, lines) for problem in error.errors()]
        raise InputError("\n".join(said)) from None


def _owned_mistake(problem: ErrorDetails, path: str, lines: dict[str, int]) -> str:
    """File, line, key and value of what is wrong in a file of an owned machine."""
    from trueup.schema import OwnedTerms

    key = ".".join(map(str, problem["loc"]))
    where = f"{path}:{lines[key]}" if key in lines else path
    if not key:  # of keys that do not agree, which the message names
        return f"{where}: {problem['msg'].removeprefix('Value error, ')}"
    if problem["type"] == "missing":
        return f"{where}: '{key}' is required and missing"
    if problem["type"] in ("extra_forbidden", "invalid_key"):
        keys = [name for name in OwnedTerms.model_fields if name != "name"]
        near = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
        return f"{where}: unknown key '{key}'; " + (
            f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(keys)}"
        )
    return f"{where}: {key}: {problem['msg'].removeprefix('Value error, ')} (got {problem['input']!r})"


def one_off_asked(
    usd: float | None, hours: float | None, usd_per_hour: float | None, over: int
) -> OneOff | None:
    """The one-off of the command line, in dollars or in hours at a rate; None where there is none."""
    if usd is None and hours is None and usd_per_hour is None:
        return None
    from trueup.analysis.bill import one_off_given

    if usd is not None:
        if hours is not None or usd_per_hour is not None:
            raise InputError("give --one-off USD, or --debug-hours and --usd-per-debug-hour, not both")
        return one_off_given(usd, over, "--one-off")
    if hours is None or usd_per_hour is None:
        raise InputError("--debug-hours and --usd-per-debug-hour go together: hours, and what one costs")
    if hours < 0 or usd_per_hour < 0:
        raise InputError("--debug-hours and --usd-per-debug-hour: expected numbers of 0 or more")
    return one_off_given(hours * usd_per_hour, over, f"{hours:g} h × {usd_per_hour:g} USD/h")
