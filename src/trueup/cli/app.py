"""The tree of commands."""

from __future__ import annotations

import inspect

import typer

from . import (
    audit,
    bill,
    breakeven,
    cache,
    calibrate,
    chat,
    compare,
    ctl,
    export,
    load,
    memory,
    parity,
    predict,
    prepare,
    prices,
    quantize,
    recipe,
    report,
    reproduce,
    runs,
    serve,
    shapes,
    train,
)

app = typer.Typer(
    name="trueup",
    help="Fine-tune a model as a measured run, and learn what every token really cost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        from trueup import __version__

        typer.echo(f"trueup {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


app.command("prepare")(prepare.prepare)
app.command("train")(train.train)
app.add_typer(runs.app, name="runs")
app.command("ctl")(ctl.ctl)
app.command("bill")(bill.bill)
app.command("breakeven")(breakeven.breakeven)
app.add_typer(prices.app, name="prices")
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("reproduce")(reproduce.reproduce)
app.command("export")(export.export)
app.command("parity")(parity.parity)
app.command("quantize")(quantize.quantize)
app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.command("load")(load.load)
app.add_typer(memory.app, name="memory")
app.add_typer(cache.app, name="cache")
app.add_typer(recipe.app, name="recipe")
app.add_typer(shapes.app, name="shapes")
app.command("predict")(predict.predict)
app.command("audit")(audit.audit)
app.command("calibrate")(calibrate.calibrate)


def _let_help_flow(tree: typer.Typer) -> None:
    """Typer keeps a docstring's line breaks; a terminal's width is another."""
    for command in tree.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(one.split()) for one in paragraphs)
    for group in tree.registered_groups:
        if group.typer_instance is not None:
            _let_help_flow(group.typer_instance)


_let_help_flow(app)
