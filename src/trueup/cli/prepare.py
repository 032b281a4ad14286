"""`trueup prepare RECIPE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .output import JSON_OPTION, print_json, print_rich, say, stdout_reserved
from .recipe import RECIPE_ARGUMENT, SET_OPTION

if TYPE_CHECKING:
    from trueup.data import Prepared
    from trueup.recipe import Recipe


def prepare(
    recipe: str = RECIPE_ARGUMENT,
    overrides: list[str] = SET_OPTION,
    strict: bool = typer.Option(False, "--strict", help="Refuse a file with unreadable lines."),
    show: int = typer.Option(
        0, "--show", min=0, help="Show this many training examples as the model sees them, loss in colour."
    ),
    out: Path | None = typer.Option(None, "-o", "--output", help="Write an HTML page about the data here."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Read, tokenise and keep a recipe's data; say what was dropped, changed and why."""
    from trueup.recipe import load_recipe

    loaded = load_recipe(recipe, [*overrides, *(["data.strict=true"] if strict else [])])
    with stdout_reserved():
        prepared, tokenizer, _ = prepare_data_of(loaded.recipe)
        report = prepared.report()
        examples = _examples(prepared, tokenizer, show) if show else []
        page = _write_page(out, prepared, tokenizer, show) if out else None
    if as_json:
        print_json({**report, **({"shown": examples} if show else {}), **({"page": page} if page else {})})
        return
    from trueup.report.dataset_text import prepare_text
    from trueup.report.examples import ExamplesText

    print_rich(prepare_text(report))
    if show:
        print_rich(ExamplesText(examples))
    if page:
        say(f"wrote {page['path']} ({page['bytes'] / 1e3:,.0f} kB)")


def prepare_data_of(recipe: Recipe) -> tuple[Prepared, Any, dict[str, Any]]:
    """The prepared data, the tokenizer, and the model's config."""
    from trueup.data import prepare as prepare_data
    from trueup.home import find_home
    from trueup.model.builtin import resolve_model
    from trueup.model.load import load_tokenizer, read_config

    home = find_home()
    if not home.data.is_dir():  # else the data may be prepared already, which a home that is read-only serves
        home.for_writing()
    resolved = resolve_model(recipe.model.path, home.path, say=say)
    tokenizer = load_tokenizer(resolved)
    config = read_config(resolved)
    prepared = prepare_data(recipe.data, tokenizer, home.data, vocab_size=int(config["vocab_size"]))
    return prepared, tokenizer, config


def _examples(prepared: Any, tokenizer: Any, count: int) -> list[dict[str, Any]]:
    from trueup.data.show import shown_examples

    return shown_examples(prepared, tokenizer, count)


def _write_page(out: Path, prepared: Any, tokenizer: Any, show: int) -> dict[str, Any]:
    from trueup.report.dataset import EXAMPLES, render
    from trueup.report.html import write

    examples = _examples(prepared, tokenizer, max(show, EXAMPLES))
    html = render(prepared.report(), examples, template=prepared.template)
    write(out, html)
    return {"path": str(out), "bytes": len(html.encode("utf-8", "replace"))}
