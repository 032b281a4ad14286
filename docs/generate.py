"""Write the reference pages that follow from the code: recipe keys, measurements, commands.

`python docs/generate.py` writes them; with `--check` it writes nothing and exits with 1 where one is stale.
"""

from __future__ import annotations

import inspect
import io
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

import typer
from rich.console import Console
from typer.models import ArgumentInfo, OptionInfo

from trueup.analysis.audit import audit_claims
from trueup.analysis.audit_file import read_claims
from trueup.analysis.load_names import LOAD_NAMES
from trueup.analysis.names import NAMES, NameFacts
from trueup.cli.app import command_tree
from trueup.recipe import recipe_schema
from trueup.report.audit import audit_text

# The day the catalog was last checked: what a page says of old prices must not change with the calendar.
CHECKED = date(2026, 11, 29)
HERE = Path(__file__).parent
HEAD = "<!-- Made by docs/generate.py from {source}; `make docs` writes it anew. -->\n\n"
RECIPE_INTRO = """\
# Recipe keys

A recipe is one YAML file. Only `model.path` and `data.source` have no default. An unknown key is an error
that names the nearest valid one. `--set section.key=value` overrides a key for one command, the value read
as YAML. `trueup recipe check FILE` checks a recipe, `trueup recipe show FILE` prints every value with its
source, `trueup recipe schema` prints the JSON Schema for editors. [recipes/demo.yaml](../recipes/demo.yaml)
is a whole example.

Some keys must agree: `data.max_length` ≤ `shapes.tokens_per_microbatch` ≤ `train.tokens_per_step`;
`schedule.floor` ≤ `optimizer.lr`; `data.split` leaves something to train on; `train.stop.usd` needs a
price, from `price` or from `platform.instance`.
"""
MEASUREMENTS_INTRO = """\
# Measurements

Every run leaves every measurement of this table, with a value or `unavailable` with the reason; only a run
whose process was killed leaves none. A name ends in its unit; `_share` is a part of one; `_steady` means
that only the steady part counts. The scope says what the figure is of: the run's process, the device, or
the whole machine (node); a processor's own meters always count the node. [measuring.md](measuring.md) says
how they are made.

"""
LOAD_MEASUREMENTS_INTRO = """\

## Of a load

A run of `trueup load` leaves these instead. Beside them it has `errors_KIND_count` for each kind of error
that occurred, `memory_OWNER_bytes` where the server tells its memory by owner, `quality_NAME` and `plan_NAME`
where they were given to it. [load.md](load.md) says how they are made.

"""
COMMANDS_INTRO = """\
Exit codes: 0 done, 1 the work failed, 2 the input was wrong, 3 over budget (`--enforce`). With `--json` a
command prints exactly one JSON document on stdout ([json.md](json.md)); everything for people goes to stderr.
RUN is an id, a unique prefix of one, a name, or `last` ([runs.md](runs.md)). Every command has `--help`;
`trueup --version` prints the version.
"""
CLAIM_FILES = ("money", "limits", "hardware")  # of docs/claims
AUDIT_INTRO = """\
# An audit, as an example

Two articles on fine-tuning Llama-3-8B on AWS say what a token costs on Trainium and on GPUs. Their figures
are in [money.yaml](claims/money.yaml), [limits.yaml](claims/limits.yaml) and
[hardware.yaml](claims/hardware.yaml) as they were printed; every verdict below is computed.
[audit.md](audit.md) says how, and what the verdicts mean.
"""
TYPE_WORDS = {str: "text", int: "integer", float: "number", bool: "flag", Path: "path"}
LIMIT_WORDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print("usage: python docs/generate.py [--check]", file=sys.stderr)
        return 2
    pages = {
        "recipe.md": recipe_page,
        "measurements.md": measurements_page,
        "cli.md": cli_page,
        "audit-example.md": audit_page,
    }
    stale = []
    for name, page in pages.items():
        text, path = page(), HERE / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"stale: {', '.join(stale)}; `make docs` writes them anew", file=sys.stderr)
        return 1
    return 0


# --- recipe.md --------------------------------------------------------------------------------------------


def recipe_page() -> str:
    schema = recipe_schema()
    lines = [HEAD.format(source="trueup.recipe.models"), RECIPE_INTRO]
    for title, note, rows in _sections(schema, schema, ""):
        lines.append(f"\n## {title}\n\n{note}\n\n" if note else f"\n## {title}\n\n")
        lines.append(_table(("key", "type", "default", "meaning"), rows))
    return "".join(lines)


def _sections(
    schema: dict[str, Any], node: dict[str, Any], prefix: str
) -> Iterator[tuple[str, str, list[tuple[str, ...]]]]:
    """Of every section: its title, what the model says of it, and its own keys."""
    rows, inner = [], []
    for name, field in node["properties"].items():
        below, of_list = _section_of(schema, field), _section_of(schema, field.get("items", {}))
        if below is None:
            rows.append(_key_row(node, f"{prefix}{name}", name, field))
        else:
            inner.append((f"{prefix}{name}.", below))
        if of_list is not None:
            inner.append((f"{prefix}{name}[].", of_list))
    yield f"`{prefix[:-1]}`" if prefix else "Top level", " ".join(node.get("description", "").split()), rows
    for below_prefix, below in inner:
        yield from _sections(schema, below, below_prefix)


def _section_of(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any] | None:
    for option in [field, *field.get("anyOf", [])]:
        if "$ref" in option:
            found: dict[str, Any] = schema["$defs"][option["$ref"].rpartition("/")[2]]
            return found
    return None


def _key_row(node: dict[str, Any], dotted: str, name: str, field: dict[str, Any]) -> tuple[str, ...]:
    default = "**required**" if name in node.get("required", []) else f"`{_yaml(field['default'])}`"
    if "description" not in field:
        raise SystemExit(f"recipe key '{dotted}' has no description: give its Field one")
    return f"`{dotted}`", _type_text(field), default, field["description"]


def _type_text(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type_text(option) for option in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = field["type"]
    if kind == "array":
        items = field.get("prefixItems")
        if items:
            return f"list of {len(items)} {items[0]['type']}s"
        if "$ref" in field["items"]:
            return "list of sections, see below"
        if "enum" in field["items"]:
            return f"list of {_type_text(field['items'])}"
        return "list of integers" if field["items"].get("type") == "integer" else "list of texts"
    words = {"string": "text", "boolean": "true or false"}.get(kind, kind)
    limits = [f"{sign} {field[key]:g}" for key, sign in LIMIT_WORDS.items() if key in field]
    return " ".join([words, ", ".join(limits)]).strip()


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- measurements.md --------------------------------------------------------------------------------------


def measurements_page() -> str:
    head = HEAD.format(source="trueup.analysis.names and load_names")
    return head + MEASUREMENTS_INTRO + _names(NAMES) + LOAD_MEASUREMENTS_INTRO + _names(LOAD_NAMES)


def _names(names: dict[str, NameFacts]) -> str:
    rows = [(f"`{name}`", facts.unit, facts.scope, facts.meaning) for name, facts in names.items()]
    return _table(("name", "unit", "scope", "meaning"), rows)


# --- cli.md -----------------------------------------------------------------------------------------------


def cli_page() -> str:
    head = HEAD.format(source="the commands' own help")
    tree = command_tree()
    lines = [head, f"# Commands\n\n{tree.info.help}\n\n", COMMANDS_INTRO]
    for words, callback in sorted(_commands(tree, "trueup")):
        lines.append(_command(words, callback))
    return "".join(lines)


def _commands(tree: typer.Typer, words: str) -> Iterator[tuple[str, Any]]:
    for command in tree.registered_commands:
        assert command.callback is not None
        yield f"{words} {command.name or command.callback.__name__}", command.callback
    for group in tree.registered_groups:
        assert group.typer_instance is not None
        yield from _commands(group.typer_instance, f"{words} {group.name}")


def _command(words: str, callback: Any) -> str:
    hints = typing.get_type_hints(callback)
    usage = [words]
    rows: list[tuple[str, ...]] = []
    for name, parameter in inspect.signature(callback).parameters.items():
        info = parameter.default
        if info.hidden:
            continue
        kind = hints[name]
        if isinstance(info, ArgumentInfo):
            metavar = info.metavar or name.upper()
            usage.append(metavar if info.default is ... else f"[{metavar}]")
            rows.append((f"`{metavar}`", "", info.help or ""))
        elif isinstance(info, OptionInfo):
            rows.append(_option_row(name, info, kind))
    usage += ["[OPTIONS]"] if any(row[0].startswith("`-") for row in rows) else []
    doc = inspect.cleandoc(callback.__doc__ or "")
    table = "\n" + _table(("argument or option", "default", "meaning"), rows) if rows else ""
    return f"\n## {words}\n\n```text\n{' '.join(usage)}\n```\n\n{doc}\n{table}"


def _option_row(name: str, info: OptionInfo, kind: Any) -> tuple[str, ...]:
    flags = ", ".join(f"`{flag}`" for flag in info.param_decls or (f"--{name.replace('_', '-')}",))
    value = "" if kind is bool else f" {info.metavar or _kind_words(kind)}"
    limits = f" ({info.min:g} to {info.max:g})" if info.min is not None and info.max is not None else ""
    plain = info.default in (None, False, "", ...) or info.default == []
    default = "" if plain else f"`{info.default}`"
    return f"{flags}{value}{limits}", default, info.help or ""


def _kind_words(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " or ".join(typing.get_args(kind))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return _kind_words(next(one for one in typing.get_args(kind) if one is not type(None)))
    return TYPE_WORDS[kind]


# --- audit-example.md -------------------------------------------------------------------------------------


def audit_page() -> str:
    lines = [HEAD.format(source="docs/claims/, by `trueup audit`"), AUDIT_INTRO]
    for name in CLAIM_FILES:
        path = f"docs/claims/{name}.yaml"
        audit = audit_claims(read_claims((HERE.parent / path).read_text(encoding="utf-8"), path), CHECKED)
        console = Console(file=io.StringIO(), highlight=False, width=110)
        with console.capture() as printed:
            console.print(audit_text(audit))
        shown = "\n".join(line.rstrip() for line in printed.get().splitlines())
        lines.append(f"\n## {name}.yaml\n\n```text\n$ trueup audit {path}\n{shown}\n```\n")
    return "".join(lines)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in cells)


if __name__ == "__main__":
    sys.exit(main())
