"""What `trueup prepare` prints about a data set. The page about one is dataset.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from trueup.schema import STRATEGIES
from trueup.schema.counting import counted

from .terminal import histogram_text
from .wording import clean, number, share, words

FILES_SHOWN = 10
ROWS_SHOWN = 5  # of each reason


def prepare_text(report: Mapping[str, Any]) -> RenderableType:
    """What preparing found: splits, what was dropped or changed and why, and the length histogram.

    `report` is the document that `prepare --json` prints.
    """
    splits = " · ".join(f"{words(name)} {count:,}" for name, count in report["splits"].items())
    lengths = report["tokens"]
    tokens = " · ".join(f"{key} {number(value)}" for key, value in lengths.items() if key != "total")
    title = clean(report.get("source") or report["dataset"])
    parts = [
        Text.assemble((title, "bold"), "  found prepared" if report["cache_hit"] else "  prepared"),
        Text(f"{counted(report['records'], 'record')}{_pieces(report)}: {splits}"),
        Text(f"tokens in an example: {tokens}; {lengths['total']:,} in all"),
        *map(Text, _more_facts(report)),
        *map(Text, _formats(report.get("format") or {})),
    ]
    for what in ("dropped", "changed", "redacted"):
        parts += _counts(what, report.get(what) or {}, report.get("first") or {})
    parts += [Text(clean(message), style="yellow") for message in report.get("messages", ())]
    if report.get("folder"):
        parts.append(Text(f"in {clean(report['folder'])}", style="dim"))
    return Group(*parts, Text(), histogram_text(report["length_histogram"]))


def _pieces(report: Mapping[str, Any]) -> str:
    """That long records were split into several examples, which is what the splits count."""
    examples = report.get("examples", report["records"])
    return f" in {counted(examples, 'example')}" if examples != report["records"] else ""


def _more_facts(report: Mapping[str, Any]) -> Iterator[str]:
    """A line on each of what a report may have beside its counts."""
    learned, total = report.get("supervised_tokens"), report["tokens"]["total"]
    if learned is not None and total:
        yield f"learned: {counted(learned, 'token')}, {share(learned / total)} of all"
    parts = report.get("tokens_by_part") or {}
    sizes = [
        f"{title} p50 {parts[key]['p50']:,} max {parts[key]['max']:,}"
        for key, title in (("prompt", "question and template"), ("answer", "answer"))
        if key in parts
    ]
    if sizes:
        yield "tokens by part: " + " · ".join(sizes)
    yield from _copies(report.get("duplicates") or {})
    scripts = report.get("scripts") or {}
    if scripts:
        yield "scripts: " + " · ".join(f"{clean(name)} {count:,}" for name, count in scripts.items())
    padding = report.get("padding") or {}
    shares = [f"{name} {share(padding[name])}" for name in STRATEGIES if name in padding]
    if shares:
        yield "padding it would pay: " + " · ".join(shares)


def _copies(found: Mapping[str, Any]) -> Iterator[str]:
    """One line on equal records and near-copies; the latter may not have been looked for."""
    said = []
    for kind, title in (("exact", "equal records"), ("near", "near-copies")):
        clusters = found.get(kind) or {}
        if kind == "near" and found and found.get("near_threshold") is None:
            said.append("near-copies not looked for")
        elif clusters.get("clusters"):
            said.append(f"{clusters['records']:,} {title} in {clusters['clusters']:,} clusters")
        elif clusters:
            said.append(f"no {title}")
    if said:
        yield "copies: " + " · ".join(said)


def _formats(found: Mapping[str, Any]) -> Iterator[str]:
    """What the rows were taken for and why; of several files, each."""
    if not found:
        return
    yield f"read as {clean(found['name'])}: {clean(found['evidence'])}"
    files = found.get("files") or ()
    if len(files) < 2:
        return
    for file in files[:FILES_SHOWN]:
        name, taken_for, why = (clean(file[key]) for key in ("file", "format", "evidence"))
        yield f"  {name}: {taken_for}, {file['rows']:,} rows; {why}"
    if len(files) > FILES_SHOWN:
        yield f"  and {len(files) - FILES_SHOWN:,} more files"


def _counts(
    title: str, counts: Mapping[str, int], first: Mapping[str, Sequence[Mapping[str, str]]]
) -> list[Text]:
    """Counts by reason, and the first rows of each."""
    if not counts:
        return []
    lines = [Text(f"{title} {sum(counts.values()):,}")]
    for reason, count in counts.items():
        shown = first.get(reason, ())
        rows = [f"    {clean(row['where'])}: {clean(row['what'])}" for row in shown[:ROWS_SHOWN]]
        if len(shown) > ROWS_SHOWN:
            rows.append(f"    and {len(shown) - ROWS_SHOWN:,} more, in the page (-o) and in --json")
        lines += [Text(f"  {words(reason)} {count:,}"), *(Text(row, style="dim") for row in rows)]
    return lines
