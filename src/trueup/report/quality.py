"""A quantised model for the terminal: what became how large, what the gate checked, the worst layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .wording import clean, number, quantity

if TYPE_CHECKING:
    from trueup.schema import Measurement
    from trueup.schema.quality import QualityRecord
    from trueup.schema.quantization import QuantizationFacts, RangeCheck, StoredWeight

LAYERS = 5
STORED = {
    "int8": "integers of 8 bits",
    "int4": "integers of 4 bits, two to the byte",
    "fp8": "floats of 8 bits (e4m3)",
}
SHOWN = {
    "quality_perplexity_ratio": "perplexity over the original's",
    "quality_kl_nats": "KL divergence in nats",
    "quality_same_choice_share": "share of positions with the same choice",
    "quality_greedy_match_tokens": "greedy tokens before the first that differs",
}


def quantize_text(facts: QuantizationFacts, record: QualityRecord) -> RenderableType:
    parts: list[RenderableType] = [_title(facts, record), *_stored(facts), Text(), _sizes(facts), Text()]
    if facts.ranges:
        parts += [_ranges(facts.ranges), Text()]
    parts += [_checks(record), Text(), *_figures(record), *_layers(facts, record)]
    if record.reasons:
        parts += [Text(), *(Text(f"refused: {clean(reason)}", style="red") for reason in record.reasons)]
    return Group(*parts)


def _title(facts: QuantizationFacts, record: QualityRecord) -> Text:
    style = "green" if record.verdict == "accepted" else "red"
    how = {"rtn": "rounded to the nearest", "gptq": "GPTQ"}[facts.method]
    return Text.assemble(
        clean(f"{facts.original} as {facts.scheme}, {how}: "), (record.verdict, f"bold {style}")
    )


def _stored(facts: QuantizationFacts) -> list[Text]:
    alike: dict[str, int] = {}
    for stored in facts.weights.values():
        alike[_words(stored)] = alike.get(_words(stored), 0) + 1
    kinds = "; ".join(
        f"{count} {'matrix' if count == 1 else 'matrices'}: {words}" for words, count in alike.items()
    )
    return [
        Text(f"stored    {kinds}; {len(facts.kept)} tensors as they were", style="dim"),
        Text(
            "computed  values times scales, in fp32 for this gate; activations are not quantised", style="dim"
        ),
    ]


def _words(stored: StoredWeight) -> str:
    scales = "output" if stored.group is None else f"{stored.group} inputs"
    return f"{STORED[stored.scheme]}, an fp32 scale for each {scales}"


def _sizes(facts: QuantizationFacts) -> Table:
    table = _table("part", "parameters", "before", "after", "bits a weight")
    for one in facts.owners:
        bits = 8 * one.after / one.parameters
        _size_row(table, one.owner, one.parameters, one.before, one.after, bits)
    parameters = sum(one.parameters for one in facts.owners)
    _size_row(table, "all", parameters, facts.bytes_before, facts.bytes_after, facts.bits_per_weight)
    return table


def _size_row(table: Table, name: str, parameters: int, before: int, after: int, bits: float) -> None:
    sizes = (quantity(before, "bytes"), quantity(after, "bytes"))
    table.add_row(name, f"{parameters:,}", *sizes, number(bits, 3))


def _ranges(ranges: tuple[RangeCheck, ...]) -> Text:
    values = sum(one.values for one in ranges)
    saturated, underflowed = (
        sum(one.saturated for one in ranges),
        sum(one.underflowed for one in ranges),
    )
    plain = sum(one.plain_saturated for one in ranges), sum(one.plain_underflowed for one in ranges)
    largest, smallest = max(one.largest for one in ranges), min(one.smallest for one in ranges)
    return Text(
        f"fp8 range: of {values:,} values {saturated:,} saturate and {underflowed:,} become zero with these "
        f"scales; without scales {plain[0]:,} and {plain[1]:,}; largest weight "
        f"{number(largest)}, smallest {number(smallest)}"
    )


def _checks(record: QualityRecord) -> Table:
    table = _table("gate", "contexts", "found", "limit", "")
    for check in record.checks:
        found = "not a number" if check.value is None else number(check.value)
        sign = "≥" if check.at_least else "≤"
        verdict = Text("kept", style="green") if check.passed else Text("broken", style="red")
        table.add_row(check.name, check.context or "", found, f"{sign} {check.limit:g}", verdict)
    for gone in record.missing:
        table.add_row("not judged", gone.context, clean(gone.reason), "", "")
    return table


def _figures(record: QualityRecord) -> list[Text]:
    lines = []
    for context in ("short", "long"):
        shown = [
            f"{words} {_figure(record.measurements[key])}"
            for name, words in SHOWN.items()
            if (key := f"{name}_{context}") in record.measurements
            and record.measurements[key].value is not None
        ]
        if shown:
            tokens = record.measurements[f"quality_tokens_{context}"].value
            lines.append(Text(f"{context} contexts, {tokens:,.0f} tokens: {', '.join(shown)}"))
    return lines


def _figure(found: Measurement) -> str:
    assert found.value is not None
    around = "" if found.ci is None else f" ({number(found.ci[0], 5)} to {number(found.ci[1], 5)})"
    return f"{number(found.value, 5)}{around}"


def _layers(facts: QuantizationFacts, record: QualityRecord) -> list[Text]:
    shown = ", ".join(f"{one.name} {number(one.error, 3)}" for one in record.worst_layers[:LAYERS])
    lines = [Text(clean(f"worst layers, change of outputs over their norm: {shown}"))]
    beaten = [one for one in facts.errors if one.rtn is not None and one.error < one.rtn]
    if facts.errors:
        lines.append(
            Text(
                f"GPTQ's error on the calibration rows is below rounding's in {len(beaten)} of "
                f"{len(facts.errors)} matrices"
            )
        )
    return lines


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in ("parameters", "before", "after") else "left")
    return table
