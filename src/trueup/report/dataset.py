"""One self-contained page about a prepared data set: what is in it, what was left out, what the model sees.

Like the run report (html.py): no scripts, no requests, autoescape on. Whatever the report has is shown; a
part it does not have is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from trueup.schema import STRATEGIES

from . import plots, wording
from .examples import Example, example_html, size
from .html import Plot, environment

EXAMPLES = 6  # shown in the page, where not more are asked for
MOST_TOKENS = 6000  # of all examples together: some 30 bytes each in the page
_TEMPLATE_CHARACTERS = 30_000
_LENGTH_LABELS = {
    "min": "shortest",
    "p50": "median",
    "p90": "90th percentile",
    "p99": "99th percentile",
    "max": "longest",
    "total": "in all",
}
_CLUSTER_KINDS = {"exact": "equal records", "near": "near-copies"}


@dataclass(frozen=True)
class Reason:
    """One reason rows were dropped or changed for, with its first rows."""

    name: str
    count: int
    share: float  # of the rows read
    first: Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Part:
    """What else is known of the data: rows of (name, value), and how to read them."""

    title: str
    rows: Sequence[tuple[str, str]]
    note: str = ""


@dataclass(frozen=True)
class Cluster:
    """Records that are copies of each other, the first few of them."""

    kind: str
    size: int
    members: Sequence[Mapping[str, str]]


def render(report: Mapping[str, Any], examples: Sequence[Example] = (), *, template: str = "") -> str:
    """The page. `report` is the document of `prepare --json`; `examples` as `trueup.data.show` gives them;
    `template` the text of the chat template."""
    found = plots.histogram_of_lengths(report.get("length_histogram") or [], "data")
    fair = MOST_TOKENS // max(1, len(examples))
    return (
        environment()
        .get_template("dataset.html")
        .render(
            data=report,
            dataset_style=Markup((Path(__file__).parent / "dataset.css").read_text(encoding="utf-8")),
            title=wording.clean(report.get("source") or report["dataset"]),
            splits=_splits(report),
            supervised=_share(report.get("supervised_tokens"), report["tokens"].get("total")),
            dropped=_reasons(report, "dropped"),
            changed=_reasons(report, "changed"),
            plot=Plot("Length of records", "template included", Markup(found)) if found else None,
            lengths=_lengths(report),
            parts=list(_parts(report)),
            clusters=_clusters(report.get("duplicates") or {}),
            examples=[(size(one), example_html(one, fair)) for one in examples],
            template=_lines(template[:_TEMPLATE_CHARACTERS]),
            template_left=max(0, len(template) - _TEMPLATE_CHARACTERS),
            settings=[row for row in wording.flat(report.get("settings") or {}) if row[1] != "none"],
        )
    )


def _lines(text: str) -> Markup:
    """Text of several lines, each fit for the page."""
    return Markup("\n").join(escape(wording.clean(line)) for line in text.split("\n"))


def _splits(report: Mapping[str, Any]) -> list[tuple[str, int, float]]:
    total = sum(report["splits"].values())
    return [(name, count, _share(count, total) or 0.0) for name, count in report["splits"].items()]


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _reasons(report: Mapping[str, Any], what: str) -> list[Reason]:
    """Most frequent first."""
    counts: Mapping[str, int] = report.get(what) or {}
    first = report.get("first") or {}
    read = report.get("records_read") or report["records"]
    found = [Reason(name, n, _share(n, read) or 0.0, first.get(name, ())) for name, n in counts.items()]
    return sorted(found, key=lambda reason: -reason.count)


def _lengths(report: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Columns and rows of the table of lengths: whole examples, and their parts where these are known."""
    parts = report.get("tokens_by_part") or {}
    summaries = {"": report["tokens"], **parts}
    names = {"prompt": "question, template", "answer": "answer", "": "whole"}
    columns = [names.get(name, wording.words(name)) for name in summaries]
    rows = [
        (_LENGTH_LABELS.get(key, key), [summary[key] for summary in summaries.values()])
        for key in report["tokens"]
        if all(key in summary for summary in summaries.values())
    ]
    return columns, rows


def _parts(report: Mapping[str, Any]) -> Iterator[Part]:
    redacted: Mapping[str, int] = report.get("redacted") or {}
    if redacted:
        rows = [(wording.words(kind), wording.number(count)) for kind, count in redacted.items()]
        yield Part("Personal data found", rows, "finds by kind, also in records dropped for them")
    found: Mapping[str, Any] = report.get("duplicates") or {}
    if found:
        yield Part("Duplicates", list(_duplicates(found)), _duplicates_note(found))
    scripts: Mapping[str, int] = report.get("scripts") or {}
    total = sum(scripts.values())
    if total:
        rows = [(name, f"{count:,} ({wording.share(count / total)})") for name, count in scripts.items()]
        yield Part("Scripts", rows, "records by the script of most of their letters: languages, roughly")
    padding: Mapping[str, Any] = report.get("padding") or {}
    shares = [(name, wording.share(padding[name])) for name in STRATEGIES if name in padding]
    if shares:
        size = padding.get("tokens_per_microbatch")
        note = f"share of the processed tokens, in micro-batches of {size:,} tokens" if size else ""
        yield Part("Padding, by strategy", shares, note)


def _duplicates(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind, title in _CLUSTER_KINDS.items():
        clusters = found.get(kind) or {}
        if clusters:
            records, count = clusters.get("records", 0), clusters.get("clusters", 0)
            yield title, f"{records:,} in {count:,} clusters" if count else "none"
    for key, title in (("records_in_no_cluster", "like no other"), ("dropped", "dropped as copies")):
        if key in found:
            yield title, wording.number(found[key])


def _duplicates_note(found: Mapping[str, Any]) -> str:
    threshold = found.get("near_threshold")
    if threshold is None:
        return "near-copies were not looked for" if "near_threshold" in found else ""
    return f"near-copies share at least {wording.share(threshold)} of their pairs of words"


def _clusters(found: Mapping[str, Any]) -> list[Cluster]:
    """The largest clusters, those of equal records first."""
    return [
        Cluster(title, cluster["size"], cluster["members"])
        for kind, title in _CLUSTER_KINDS.items()
        for cluster in (found.get(kind) or {}).get("largest", ())
    ]
