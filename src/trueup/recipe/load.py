"""YAML in, typed recipe out. Every error names the file, the line and what would have been right."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from trueup.schema import InputError

from .models import Recipe
from .text_file import read_text

MAX_RECIPE_BYTES = 1 << 20
COMMAND_LINE = "command line"
_KEY = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")  # a dotted one, in a message


class _RecipeLoader(yaml.SafeLoader):
    """Safe YAML whose values are what people mean: `5e-4` is a float, `2026-06-01` and `off` stay text."""


_NOT_MEANT = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool")
_RecipeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NOT_MEANT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_RecipeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_RecipeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe with the origin of each value: dotted key -> 'default', 'file' or 'command line'. `path` and
    `overrides` as they were given."""

    recipe: Recipe
    sources: dict[str, str]
    path: str
    overrides: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """What a command is given for the same recipe."""
        return [self.path, *(word for override in self.overrides for word in ("--set", override))]

    @property
    def digest(self) -> str:
        """Identity of what is run. The name is left out: renaming a run does not change it."""
        return recipe_digest(self.recipe)


def recipe_digest(recipe: Recipe) -> str:
    """Of what a run does: its name, what a quantised model is judged on and how it is served change nothing
    of that."""
    content = recipe.model_dump(mode="json", exclude={"name", "quality", "serve"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Read a recipe file and apply `--set` overrides (`a.b=c`, the value read as YAML).

    Raises InputError with file and line for anything that is not a valid recipe.
    """
    example = "`recipes/demo.yaml` is an example"
    text = read_text(Path(path), "recipe file", most_bytes=MAX_RECIPE_BYTES, example=example)
    values, lines = _parse(text, str(path))
    sources = {key: "file" for key, _ in _leaves(values)}
    for override in overrides:
        key = _apply(values, override)
        for old in [k for k in sources if _is_within(k, key)]:
            del sources[old]
        leaf_keys = [k for k, _ in _leaves(values) if _is_within(k, key)]
        sources.update(dict.fromkeys(leaf_keys, COMMAND_LINE))
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise InputError("\n".join(_explain(error, str(path), lines, sources))) from None
    every_key = [key for key, _ in _leaves(recipe.model_dump(mode="json"))]
    sources = {key: _source_of(key, sources) for key in every_key}
    return LoadedRecipe(recipe, sources, str(path), tuple(overrides))


def recipe_schema() -> dict[str, Any]:
    """JSON Schema of a recipe, for editors."""
    return Recipe.model_json_schema()


def valid_keys() -> list[str]:
    """Every dotted key a recipe may have."""
    return list(_model_keys(Recipe, ""))


def _parse(text: str, path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The values, and the line (from 1) of each dotted key."""
    lines: dict[str, int] = {}
    try:
        for event in yaml.parse(text, Loader=_RecipeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise InputError(
                    f"{path}:{_line(event.start_mark)}: recipes use no YAML aliases; write it out"
                )
        node = yaml.compose(text, Loader=_RecipeLoader)
        if node is None:
            raise InputError(f"{path}: is empty; a recipe needs at least `model` and `data`")
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{path}:1: a recipe is a mapping of sections, such as `model:` and `data:`")
        _record_lines(node, "", lines, path)
        values = yaml.load(text, Loader=_RecipeLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{path}:{_line(error.problem_mark)}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: not valid YAML: {error}") from None
    return values, lines


def _line(mark: Any) -> int:
    """From PyYAML's mark, which counts lines from 0 and may be absent, to the line an editor shows."""
    return mark.line + 1 if mark else 1


def _record_lines(node: yaml.MappingNode, prefix: str, lines: dict[str, int], path: str) -> None:
    for key_node, value_node in node.value:
        key, line = f"{prefix}{key_node.value}", _line(key_node.start_mark)
        if key in lines:
            raise InputError(f"{path}:{line}: '{key}' is given twice; first on line {lines[key]}")
        lines[key] = line
        if isinstance(value_node, yaml.MappingNode):
            _record_lines(value_node, key + ".", lines, path)


def _apply(values: dict[str, Any], override: str) -> str:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"--set {override}: expected KEY=VALUE, such as train.max_steps=50")
    try:
        value = yaml.load(text, Loader=_RecipeLoader)  # a SafeLoader
    except yaml.YAMLError:
        raise InputError(f"--set {override}: the value is not valid YAML") from None
    *parents, last = key.split(".")
    section = values
    for parent in parents:
        if section.get(parent) is None:
            section[parent] = {}
        section = section[parent]
        if not isinstance(section, dict):
            raise InputError(f"--set {override}: '{parent}' is a value, not a section")
    section[last] = value
    return key


def _explain(
    error: ValidationError, path: str, lines: dict[str, int], sources: dict[str, str]
) -> Iterator[str]:
    for problem in error.errors():
        key = _dotted(problem["loc"])
        where = _where(key, problem["msg"], path, lines, sources)
        if problem["type"] == "extra_forbidden":
            yield f"{where}: unknown key '{key}'{_suggestion(key)}"
        elif problem["type"] == "missing" and isinstance(problem["loc"][-1], str):
            yield f"{where}: '{key}' is required and missing"
        else:
            message = problem["msg"].removeprefix("Value error, ")
            shown = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
            yield f"{where}: {key + ': ' if key else ''}{message}{shown}"


def _where(key: str, message: str, path: str, lines: dict[str, int], sources: dict[str, str]) -> str:
    """File and line of what is wrong, and which `--set` it may come from. Keys that do not agree are those of
    a section; of the whole recipe (an empty `key`) those that the message names."""
    given = [one for one, source in sources.items() if source == COMMAND_LINE]
    section = key.rpartition(".")[0]
    if any(_is_within(key, one) for one in given):
        return "--set"
    if not key:
        named = _KEY.findall(message)
        given = [one for one in given if one in named]
        line = next((lines[one] for one in named if one in lines and one not in given), None)
    else:
        line = lines.get(key) or lines.get(section)
        if line is None and any(_is_within(one, section) for one in given):
            return "--set"
        given = [one for one in given if _is_within(one, key)]
    where = path if line is None else f"{path}:{line}"
    return f"{where} with --set {', '.join(given)}" if given else where


def _is_within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")


def _dotted(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc if isinstance(part, str))


def _suggestion(key: str) -> str:
    """The nearest valid key: first among the siblings by last name, then anywhere by last name."""
    keys = valid_keys()
    section, _, last = key.rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in keys if k.rpartition(".")[0] == section}
    anywhere = {k.rpartition(".")[2]: k for k in keys}
    for names in (siblings, anywhere):
        if near := difflib.get_close_matches(last, names, n=1, cutoff=0.6):
            return f"; did you mean '{names[near[0]]}'?"
    return f"; valid here: {', '.join(sorted(siblings))}" if siblings else ""


def _model_keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for inner in candidates:
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _model_keys(inner, f"{prefix}{name}.")


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _source_of(key: str, sources: dict[str, str]) -> str:
    while key:
        if key in sources:
            return sources[key]
        key = key.rpartition(".")[0]
    return "default"
