"""`trueup compare A B...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trueup.schema import InputError

from .garbage import uncollected
from .load_bills import PEAK_OPTION, TRAFFIC_OPTION, traffic_asked
from .output import JSON_OPTION, print_json, print_rich, say
from .records import open_store, record_of

if TYPE_CHECKING:
    from trueup.analysis.comparable import ComparedRun, Group
    from trueup.store import Store

SELECTIONS_ARGUMENT = typer.Argument(
    help="Runs: an id, `last`, a name, a pattern ('demo-*'), conditions ('platform=cpu,tune.rank=8'), "
    "a bundle or a folder of bundles (docs/measured/NAME). Others are compared with the first.",
    metavar="A B...",
)


@uncollected()
def compare(
    selections: list[str] = SELECTIONS_ARGUMENT,
    by: str | None = typer.Option(
        None, "--by", metavar="KEY", help="Group all these runs by platform, or by any setting, instead."
    ),
    allow_difference: list[str] = typer.Option(
        [],
        "--allow-difference",
        metavar="KEY",
        help="Compare though this differs: data, tokenizer, loss_mask, sequence, model, evaluation; of loads "
        "arrivals, lengths, endpoint, limits.",
    ),
    at_perplexity: float | None = typer.Option(
        None, "--at-perplexity", help="What reaching this perplexity cost; default the worst final one."
    ),
    traffic: float | None = TRAFFIC_OPTION,
    peak: float = PEAK_OPTION,
    out: Path | None = typer.Option(None, "-o", "--output", help="Also write one page with the picture."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Say which of several groups of runs is cheaper, by how much, and how sure that is."""
    from trueup.analysis.compare import compare as compared

    groups = groups_of(selections)
    asked = traffic_asked(traffic, peak)
    found = compared(groups, by=by, allowed=allow_difference, at_perplexity=at_perplexity, traffic=asked)
    if out is not None:
        from trueup.report.compare_page import comparison_page
        from trueup.report.html import write

        page = comparison_page(found)
        write(out, page)
        say(f"wrote {out} ({len(page.encode()) / 1e3:,.0f} kB)")
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    from trueup.report.compare import comparison_text

    print_rich(comparison_text(found))


def groups_of(selections: list[str]) -> list[Group]:
    """A group for each selection, in their order; what did not finish is set aside in each."""
    from trueup.analysis.compare import group_of

    with open_store() as store:
        return [group_of(text, runs_meant(store, text)) for text in selections]


def runs_meant(store: Store, text: str) -> list[ComparedRun]:
    """The runs a selection means, oldest first. InputError where there is none."""
    from trueup.analysis.comparable import ComparedRun
    from trueup.analysis.compare_figures import NEEDED
    from trueup.analysis.names import NAMES
    from trueup.store.bundle import bundled

    found = bundled(text)
    if found is not None:
        return [ComparedRun.of(record) for record in found]
    try:
        ids = store.meant_by(text)
    except InputError as error:
        if not Path(text).is_dir():
            raise
        raise InputError(f"{error}. There is a folder {text}, and it holds no bundle (*.zip)") from None
    return [
        ComparedRun(one.record.header, one.record.measurements, one.record.evaluations, one.tokens_after)
        for one in store.briefs(ids, NEEDED, NAMES)
    ]


def compared_run(store: Store, run_id: str) -> ComparedRun:
    """One run with all of its measurements."""
    from trueup.analysis.comparable import ComparedRun

    return ComparedRun.of(record_of(store, run_id))
