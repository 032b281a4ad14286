"""A claim file's text to its record. Every value stays the text that was published, decimals and all.

Only the structure of the YAML is taken: mappings and text. Tags, aliases and lists mean nothing here and are
refused, so nothing can be built, expanded or run. Every error names the file, the line and what was expected.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import ValidationError

from trueup.schema import InputError
from trueup.schema.claim import (
    Claim,
    ClaimFile,
    DecodingClaim,
    Figure,
    HardwareClaim,
    MemoryClaim,
    ModelClaim,
    TrainingClaim,
)

DEEPEST = 10  # mappings in mappings; a claim needs four
MOST_CLAIMS = 2000  # figures and claims; a file of more is no article's
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "map")}
_SECTIONS: dict[str, type[Any]] = {
    "training": TrainingClaim,
    "decoding": DecodingClaim,
    "memory": MemoryClaim,
    "hardware": HardwareClaim,
    "model": ModelClaim,
}


_EXAMPLES = {
    "exists": "the name alone as it is published, such as `exists: NEURON_RT_NUM_CORES`; a mapping is there"
}


class LocatedClaims:
    """A claim file with the line of each dotted key."""

    def __init__(self, claims: ClaimFile, lines: dict[str, int], path: str) -> None:
        self.claims = claims
        self._lines = lines
        self._path = path

    def where(self, key: str) -> str:
        """`claims.yaml:12: 'claims.cost'`; of the empty key the file."""
        if not key:
            return self._path
        line = self._lines.get(key)
        return f"{self._path}:{line}: '{key}'" if line else f"{self._path}: '{key}'"


def read_claims(text: str, path: str) -> LocatedClaims:
    """InputError with file and line for anything that is no claim file."""
    lines: dict[str, int] = {}
    values = _values(text, path, lines)
    try:
        claims = ClaimFile.model_validate(values)
    except ValidationError as error:
        raise InputError("\n".join(_explained(error, path, lines))) from None
    if len(claims.claims) + len(claims.figures) > MOST_CLAIMS:
        raise InputError(f"{path}: more than {MOST_CLAIMS} figures and claims; write several files")
    return LocatedClaims(claims, lines, path)


def _values(text: str, path: str, lines: dict[str, int]) -> dict[str, Any]:
    try:
        _refuse_early(text, path)
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        if node is None:
            raise InputError(f"{path}: is empty; a claim file has `title`, `figures` and `claims`")
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{path}:1: a claim file is a mapping with `title`, `figures` and `claims`")
        return _mapping(node, "", path, lines)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: not valid YAML: {error}") from None


def _refuse_early(text: str, path: str) -> None:
    """Aliases, which could expand without end, and depth, of which PyYAML's time is the square."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        if isinstance(event, yaml.AliasEvent):
            raise InputError(f"{path}:{_line(event)}: claim files use no YAML aliases; write it out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise InputError(f"{path}:{_line(event)}: nested deeper than any claim: {DEEPEST} levels")


def _mapping(node: yaml.MappingNode, prefix: str, path: str, lines: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = _line(key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            raise InputError(f"{path}:{line}: a key is a plain name")
        key = f"{prefix}{key_node.value}"
        if key in lines:
            raise InputError(f"{path}:{line}: '{key}' is given twice; first on line {lines[key]}")
        lines[key] = line
        found[key_node.value] = _value(value_node, key, path, lines)
    return found


def _value(node: yaml.Node, key: str, path: str, lines: dict[str, int]) -> Any:
    if node.tag not in _PLAIN_TAGS and not isinstance(node, yaml.SequenceNode):
        raise InputError(f"{path}:{_line(node)}: '{key}' has the YAML tag {node.tag}; claim files use none")
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, f"{key}.", path, lines)
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    raise InputError(f"{path}:{_line(node)}: '{key}' is a list; claim files have names with values only")


def _line(of: Any) -> int:
    return int(of.start_mark.line) + 1


def _explained(error: ValidationError, path: str, lines: dict[str, int]) -> Iterator[str]:
    for problem in error.errors():
        loc = [str(part) for part in problem["loc"]]
        # A figure is text or a mapping, and this was a mapping: that it is no text is not the problem.
        if loc[:1] == ["figures"] and len(loc) > 2 and loc.pop(2) == "str":
            continue
        key = ".".join(loc)
        line = next((lines[k] for k in (key, key.rpartition(".")[0]) if k in lines), None)
        where = f"{path}:{line}" if line else path
        match problem["type"]:
            case "extra_forbidden":
                yield f"{where}: unknown key '{key}'{_suggestion(loc)}"
            case "missing":
                yield f"{where}: '{key}' is required and missing"
            case "too_short":
                yield f"{where}: there are no claims: '{key}' is empty"
            case "string_type":
                yield f"{where}: '{key}' has to be text, {_EXAMPLES.get(loc[-1], 'and a mapping is there')}"
            case "model_type" | "model_attributes_type" | "dict_type":
                yield f"{where}: '{key}' is a mapping of names to values, not the text {problem['input']!r}"
            case _:
                message = problem["msg"].removeprefix("Value error, ")
                shown = f" (got {problem['input']!r})" if isinstance(problem["input"], str) else ""
                yield f"{where}: {f'{key!r}: ' if key else ''}{message}{shown}"


def _suggestion(loc: list[str]) -> str:
    if loc[0] == "figures":
        model: type[Any] = Figure
    elif loc[0] == "claims" and len(loc) > 1:
        model = Claim if len(loc) == 3 else _SECTIONS.get(loc[2], Claim)
    else:
        model = ClaimFile
    valid = [one.alias or name for name, one in model.model_fields.items()]
    near = difflib.get_close_matches(loc[-1], valid, n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else f"; valid here: {', '.join(sorted(valid))}"
