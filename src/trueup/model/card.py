"""The model card beside an export: what the record knows of how this model came to be, each figure with its
kind, in the Markdown with YAML front matter that the Hugging Face hub reads.

The licence is left out: it follows from the base model's and the data's, which the record does not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Literal

import yaml

from trueup.schema import Measurement, RunRecord, unavailable

from .builtin import ResolvedModel
from .verify import LogitCheck

ExportKind = Literal["adapter", "merged", "gguf", "onnx"]

LIBRARIES: dict[ExportKind, str] = {
    "adapter": "peft",
    "merged": "transformers",
    "gguf": "gguf",
    "onnx": "onnx",
}
_RELATIONS: dict[ExportKind, str] = {
    "adapter": "adapter",
    "merged": "finetune",
    "gguf": "finetune",
    "onnx": "finetune",
}
_WHAT: dict[ExportKind, str] = {
    "adapter": "a LoRA adapter, to be put on its base model by peft",
    "merged": "a whole model, as transformers loads it",
    "gguf": "a whole model in one GGUF file, as llama.cpp reads it",
    "onnx": "a whole model as an ONNX graph, as ONNX Runtime runs it",
}
_SETTINGS = ("data", "tune", "train", "optimizer", "schedule", "shapes")
_OF_LORA = ("tune.rank", "tune.alpha", "tune.dropout", "tune.targets")
_FIGURES = {
    "eval_perplexity_first": "held-out perplexity before training",
    "eval_perplexity_best": "held-out perplexity, best",
    "useful_tokens": "useful tokens trained on",
    "supervised_tokens": "of these supervised",
    "useful_tokens_per_s": "useful tokens per second of training",
    "wall_s": "wall clock of the run",
    "usd_per_million_useful_tokens": "cost per million useful tokens, all in",
    "usd_per_million_useful_tokens_steady": "cost per million useful tokens, steady part",
    "energy_j": "energy",
    "energy_per_useful_token_j": "energy per useful token",
    "peak_host_bytes": "peak memory of the process",
    "peak_device_bytes": "peak memory of the device",
}
_PERPLEXITIES = ("eval_perplexity_first", "eval_perplexity_best")
Rows = Iterable[tuple[object, ...]]


def model_card(
    record: RunRecord,
    base: ResolvedModel,
    kind: ExportKind,
    weights: str,
    check: LogitCheck | None,
    *,
    stored: str = "f32",
) -> str:
    """The card's text. `record` should hold no path of this machine; `weights` says which of the run's
    weights these are and `stored` how they are kept; `check` is what reading the export back found, None if
    that was not done."""
    header = record.header
    checked = f"After writing, {check}." if check else "It was not read back after writing (`--no-verify`)."
    parts = [
        f"---\n{_front_matter(record, base, kind)}---\n\n# {_text(header.name)}\n",
        f"`{base.hub_name or base.name}` ({_text(base.description)}) fine-tuned by trueup "
        f"{header.trueup_version}: {_WHAT[kind]}. Weights, kept as {stored}: {weights} of run "
        f"`{header.id}`, {header.state}, started {header.started_at}.\n\n{checked}\n",
        "## What it took\n\n" + _table(("figure", "value", "unit", "kind", "note"), _figures(record)),
        "*Useful tokens* are tokens of the data without padding. *All in* divides the cost of the whole run "
        "by them.\n",
        "## Data\n\n" + _data(record),
        "## Settings\n\nWhat is not listed was not set.\n\n"
        + _table(("key", "value"), _settings(header.recipe, header.choices)),
        "## Hardware and software\n\nAs the operating system reports it.\n\n"
        + _table(("of", "value"), _machine(header.environment)),
    ]
    return "\n".join(parts)


def _front_matter(record: RunRecord, base: ResolvedModel, kind: ExportKind) -> str:
    """`base_model` only of a model known to be on the hub: elsewhere the link would lead to another's."""
    method = (record.header.recipe.get("tune") or {}).get("method", "lora")
    front: dict[str, object] = {"library_name": LIBRARIES[kind], "pipeline_tag": "text-generation"}
    if base.hub_name is not None:
        front = {"base_model": base.hub_name, "base_model_relation": _RELATIONS[kind], **front}
    front["tags"] = ["trueup", "lora" if method == "lora" else "full-fine-tuning"]
    return yaml.safe_dump(front, sort_keys=False, allow_unicode=True)


# --- tables -----------------------------------------------------------------------------------------------


def _figures(record: RunRecord) -> Rows:
    yield from (_figure(label, name, _measured(record, name)) for name, label in _FIGURES.items())
    price, wall_s = record.header.price, record.header.wall_s
    if price is None:
        yield "cost of the whole run", "", "USD", "unavailable", "the run has no price"
        return
    dated = f", as of {price.as_of}" if price.as_of else ""
    yield "price of the machine", _number(price.usd_per_hour), "USD/h", price.kind, price.source + dated
    if wall_s is not None:
        usd = price.usd_per_hour * wall_s / 3600
        yield "cost of the whole run", _number(usd), "USD", "derived", f"wall clock x price, {price.kind}"


def _measured(record: RunRecord, name: str) -> Measurement:
    return record.measurements.get(name) or unavailable("1", "the run left no measurement of this name")


def _figure(label: str, name: str, one: Measurement) -> tuple[object, ...]:
    if one.value is None:
        return label, "", one.unit, one.kind, one.reason
    note = one.method
    if name in _PERPLEXITIES and one.n is not None:
        note = f"over {one.n:,} supervised tokens; {note}"
    if one.ci is not None:
        note += f"; 95% interval {_number(one.ci[0])} to {_number(one.ci[1])}, {one.ci_method}"
    return label, _number(one.value), one.unit, one.kind, note


def _data(record: RunRecord) -> str:
    data = record.header.dataset
    if data is None:
        return "Unavailable: the run ended before its data was prepared.\n"
    rows: list[tuple[object, ...]] = [("records", f"{data.records:,}", "measured")]
    rows += [(f"examples in {split}", f"{count:,}", "measured") for split, count in data.splits.items()]
    rows += [(f"rows dropped: {why}", f"{count:,}", "measured") for why, count in data.dropped.items()]
    lengths = {
        "min": "shortest example",
        "p50": "median example",
        "p90": "90th percentile",
        "max": "longest example",
        "total": "all examples",
    }
    rows += [
        (f"tokens, {label}", _number(data.tokens[key]), "measured")
        for key, label in lengths.items()
        if key in data.tokens
    ]
    source = _text(PurePath(data.source).name)
    said = (
        f"`{source}`. Digest `{data.digest}`, of the source's content, the tokenizer, the chat template and "
        "the settings of `data` below. A record that was split makes several examples. Nothing was trained "
        "on, or chosen by, the test split.\n\n"
    )
    return said + _table(("figure", "value", "kind"), rows)


def _settings(recipe: Mapping[str, Any], choices: Mapping[str, Mapping[str, str]]) -> Rows:
    is_full = (recipe.get("tune") or {}).get("method") == "full"
    for section in _SETTINGS:
        for key, value in _flat(section, recipe.get(section)):
            if key != "data.source" and value is not None and not (is_full and key in _OF_LORA):
                yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    for name in ("device", "threads", "precision", "shapes", "layers", "compile"):
        if name in choices:
            yield f"chosen: {name}", f"{choices[name].get('value')} ({choices[name].get('reason')})"


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}", inner)
    else:
        yield prefix, value


def _machine(environment: Mapping[str, Any]) -> Rows:
    """Names and sizes, and neither host name nor address: a card is for publishing."""
    device, host = environment.get("device") or {}, environment.get("host") or {}
    instance, versions = environment.get("instance") or {}, environment.get("versions") or {}
    yield "device", " ".join(str(device[key]) for key in ("kind", "name") if device.get(key)) or "unknown"
    if size := device.get("memory_bytes"):
        yield "device memory", f"{size:,} bytes"
    if cores := host.get("cpus_logical"):
        yield "host", f"{cores} logical CPUs, {host.get('memory_bytes', 0):,} bytes of memory"
    if kind := instance.get("instanceType"):
        yield "instance", f"{kind}, {instance.get('region', 'unknown region')}"
    yield "processes", (environment.get("world") or {}).get("size", 1)
    yield "system", " ".join(str(host[key]) for key in ("system", "architecture") if host.get(key))
    yield "Python", host.get("python", "unknown")
    yield from ((name, versions[name]) for name in ("torch", "transformers", "peft") if name in versions)


def _number(value: float) -> str:
    """Six significant digits; a whole number in full."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def _text(value: object) -> str:
    """Fit for one cell of a table: on one line, no HTML, no bar."""
    flat = " ".join(str(value).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Rows) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(_text(cell) for cell in line) + " |\n" for line in lines)
