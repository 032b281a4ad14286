"""The tree of commands."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module

import typer

from .garbage import collect_from_now_on

# Each is a module here, in which the command is the function of that name, or a tree of its own, `app`.
COMMANDS = (
    "prepare",
    "train",
    "runs",
    "ctl",
    "bill",
    "breakeven",
    "prices",
    "report",
    "compare",
    "reproduce",
    "export",
    "parity",
    "quantize",
    "serve",
    "chat",
    "load",
    "memory",
    "cache",
    "recipe",
    "shapes",
    "predict",
    "audit",
    "calibrate",
)


def command_tree(words: Sequence[str] = ()) -> typer.Typer:
    """All commands; or, where the first word of a command line names one, that one alone: to load and build
    the others takes a tenth of a second."""
    tree = typer.Typer(
        name="trueup",
        help="Fine-tune a model as a measured run, and learn what every token really cost.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    tree.callback()(_root)
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        module = import_module(f".{name}", __package__)
        if hasattr(module, "app"):
            tree.add_typer(module.app, name=name)
        else:
            tree.command(name)(getattr(module, name))
    _let_help_flow(tree)
    return tree


def _show_version(asked: bool) -> None:
    if asked:
        from trueup import __version__

        typer.echo(f"trueup {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    collect_from_now_on()


def _let_help_flow(tree: typer.Typer) -> None:
    """Typer keeps a docstring's line breaks; a terminal's width is another."""
    for command in tree.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(one.split()) for one in paragraphs)
    for group in tree.registered_groups:
        if group.typer_instance is not None:
            _let_help_flow(group.typer_instance)
