"""`trueup prepare RECIPE`."""

from __future__ import annotations

from typing import Any

import typer

from .output import JSON_OPTION, print_json, print_rich, say, stdout_reserved
from .recipe import RECIPE_ARGUMENT, SET_OPTION


def prepare(
    recipe: str = RECIPE_ARGUMENT,
    overrides: list[str] = SET_OPTION,
    strict: bool = typer.Option(False, "--strict", help="Refuse a file with unreadable lines."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Read, tokenise and keep a recipe's data; say what was dropped, changed and why."""
    from trueup.recipe import load_recipe

    loaded = load_recipe(recipe, [*overrides, *(["data.strict=true"] if strict else [])])
    with stdout_reserved():
        report = _prepare(loaded.recipe)
    for message in report["messages"]:
        say(message)
    if as_json:
        print_json(report)
    else:
        from trueup.report.terminal import prepare_text

        print_rich(prepare_text(report))


def _prepare(recipe: Any) -> dict[str, Any]:
    from trueup.data import prepare as prepare_data
    from trueup.home import find_home
    from trueup.model.builtin import resolve_model
    from trueup.model.load import load_tokenizer, read_config

    home = find_home().for_writing()
    resolved = resolve_model(recipe.model.path, home.path, say=say)
    return prepare_data(
        recipe.data,
        load_tokenizer(resolved),
        home.data,
        vocab_size=int(read_config(resolved)["vocab_size"]),
    ).report()
