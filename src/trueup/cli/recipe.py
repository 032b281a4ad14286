"""`trueup recipe check|show|schema`."""

from __future__ import annotations

import typer

from .output import JSON_OPTION, print_json, say

app = typer.Typer(help="Check a recipe, show every value and its source, or print the schema for editors.")

RECIPE_ARGUMENT = typer.Argument(help="Recipe file (YAML).", metavar="RECIPE")
SET_OPTION = typer.Option([], "--set", metavar="KEY=VALUE", help="Override one value; may be repeated.")


@app.command()
def check(
    recipe: str = RECIPE_ARGUMENT,
    overrides: list[str] = SET_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Say whether a recipe is valid."""
    from trueup.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    if as_json:
        print_json({"path": loaded.path, "valid": True, "digest": loaded.digest})
    else:
        say(f"{loaded.path}: valid, digest {loaded.digest[:12]}")


@app.command()
def show(
    recipe: str = RECIPE_ARGUMENT,
    overrides: list[str] = SET_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Print every value and where it came from: default, file or command line."""
    from trueup.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    values = loaded.recipe.model_dump(mode="json")
    if as_json:
        print_json(
            {"path": loaded.path, "digest": loaded.digest, "recipe": values, "sources": loaded.sources}
        )
        return
    rows = [(key, _value_of(values, key), source) for key, source in loaded.sources.items()]
    width = max(len(key) for key, _, _ in rows)
    value_width = min(48, max(len(value) for _, value, _ in rows))
    for key, value, source in rows:
        typer.echo(f"{key:<{width}}  {value:<{value_width}}  {source}")


@app.command()
def schema(recipe: str | None = typer.Argument(None, hidden=True)) -> None:
    """Print the JSON Schema of recipes."""
    from trueup.recipe import recipe_schema

    print_json(recipe_schema())


def _value_of(values: object, dotted: str) -> str:
    for part in dotted.split("."):
        assert isinstance(values, dict)
        values = values[part]
    import yaml

    return yaml.safe_dump(values, default_flow_style=True, width=4096).removesuffix("\n...\n").strip()
