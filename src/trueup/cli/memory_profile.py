"""`trueup memory profile MODEL`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import typer

from trueup.schema import InputError
from trueup.schema.choices import AskedDevice
from trueup.schema.counting import counted

from .asked_values import one_of, positive
from .output import JSON_OPTION, print_json, print_rich, say, stdout_reserved

if TYPE_CHECKING:
    from trueup.analysis.memory_summary import Alternative, KvFacts, MemorySummary
    from trueup.device import Device
    from trueup.model.builtin import ResolvedModel
    from trueup.model.inference import ServedAs
    from trueup.schema import Measurement
    from trueup.schema.memory_trace import MemoryTrace

    Others = Iterator[tuple[str, Callable[[], MemoryTrace]]]


SERVED_PLAINLY = ("fp32", "fp32", 16)  # weights, keys and values, tokens of a block


@dataclass(frozen=True)
class Asked:
    """What is to be run. `mode`: serving, training, or transformers for its own forward pass."""

    mode: str
    rows: int
    length: int
    lora: bool
    quant: ServedAs
    kv: str
    block_size: int
    alternatives: bool


@dataclass(frozen=True)
class Recorded:
    """The trace of the work as asked, and peaks of other ways to do it. `allocator`: as the device tells of
    the former; None in host memory, where it is modelled."""

    trace: MemoryTrace
    alternatives: tuple[Alternative, ...]
    allocator: dict[str, Measurement] | None
    kv: KvFacts | None = None


def profile(
    model: str = typer.Argument(help="As model.path of a recipe.", metavar="MODEL"),
    rows: int = typer.Option(1, "--rows", help="Sequences at once."),
    length: int = typer.Option(256, "--length", help="Tokens of each."),
    serving: bool = typer.Option(
        False, "--serving", help="A prompt and a next token by the engine. The default."
    ),
    training: bool = typer.Option(False, "--training", help="Two training steps, update included."),
    transformers: bool = typer.Option(
        False, "--transformers", help="A prompt and a next token by transformers' own forward pass."
    ),
    lora: bool = typer.Option(False, "--lora", help="With --training: adapters in place of all weights."),
    quant: str = typer.Option(
        SERVED_PLAINLY[0],
        "--quant",
        help="With --serving: fp32, bf16 or int8; a quantised folder is as it is stored.",
    ),
    kv_dtype: str = typer.Option(
        SERVED_PLAINLY[1], "--kv-dtype", help="With --serving: keys and values in fp32 or bf16."
    ),
    block_size: int = typer.Option(
        SERVED_PLAINLY[2], "--block-size", help="With --serving: tokens of a KV block."
    ),
    device: str = typer.Option("cpu", "--device", help="cpu, cuda, neuron or auto."),
    no_alternatives: bool = typer.Option(
        False, "--no-alternatives", help="Do not also run what might lower the peak."
    ),
    out: Path | None = typer.Option(None, "-o", "--output", help="Also write one page with the picture."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Run a model and say to the byte who holds memory when most is held, and what would lower that."""
    asked = Asked(
        _mode(serving=serving, training=training, transformers=transformers),
        positive("--rows", rows),
        positive("--length", length),
        lora,
        cast("ServedAs", one_of("--quant", quant, ("fp32", "bf16", "int8"))),
        one_of("--kv-dtype", kv_dtype, ("fp32", "bf16")),
        positive("--block-size", block_size),
        not no_alternatives,
    )
    if lora and asked.mode != "training":
        raise InputError("--lora is of --training; leave it out, or give both")
    if asked.mode != "serving" and (asked.quant, asked.kv, asked.block_size) != SERVED_PLAINLY:
        raise InputError(
            f"--quant, --kv-dtype and --block-size are of --serving, and --{asked.mode} was given"
        )
    kind = _device(device)
    if out is not None:
        from trueup.report.html import require_place

        require_place(out)
    with stdout_reserved():
        summary, trace, title = _profiled(model, asked, kind)
    if out is not None:
        from trueup.report.html import write
        from trueup.report.memory_profile import page

        write(out, page(trace, summary, title=title))
        say(f"wrote {out}")
    if as_json:
        print_json(_document(title, asked, summary, trace))
        return
    from trueup.report.memory_profile import profile_text

    print_rich(profile_text(summary, title=title))


def _profiled(model: str, asked: Asked, kind: AskedDevice) -> tuple[MemorySummary, MemoryTrace, str]:
    import psutil

    from trueup.analysis.memory_summary import summary_of
    from trueup.device import open_device
    from trueup.home import find_home
    from trueup.model.builtin import resolve_model

    with closing(open_device(kind)) as opened:
        resolved = resolve_model(model, find_home().path, say=say)
        _require_length(resolved, asked)
        _require_memory(resolved, asked, opened)
        before = psutil.Process().memory_info().rss
        recorded = RUNS[asked.mode](resolved, asked, opened)
        summary = summary_of(
            recorded.trace,
            rss_before_bytes=before,
            alternatives=recorded.alternatives,
            kv=recorded.kv,
            allocator=recorded.allocator,
        )
        tokens = counted(asked.length, "token")
        title = f"{resolved.name}, {asked.mode}, {asked.rows} x {tokens}, on {opened.name}"
    return summary, recorded.trace, title


# --- what is run --------------------------------------------------------------------------------------------


def _serving(resolved: ResolvedModel, asked: Asked, device: Device) -> Recorded:
    from trueup.analysis.flops import kv_bytes_per_token
    from trueup.analysis.memory_summary import KvFacts
    from trueup.model.inference import InferenceModel
    from trueup.model.memory_profile_serving import ServingRun, record_serving
    from trueup.model.quantized import is_quantised

    def loaded(quant: ServedAs) -> InferenceModel:
        return InferenceModel.load(
            resolved.folder, quant, device=device.torch_device, max_positions=asked.length + 1
        )

    model = loaded(asked.quant)
    run = ServingRun(asked.rows, asked.length, asked.block_size, 4 if asked.kv == "fp32" else 2)

    def others() -> Others:
        for chunk in _parts(asked.length):
            smaller = replace(run, chunk=chunk)
            yield f"prefill chunks of {counted(chunk, 'token')}", partial(record_serving, model, smaller)
        held, there = sum(model.weight_bytes().values()), _memory_there(device)
        # It is rounded here, matrix by matrix, and takes less than these do.
        if not is_quantised(resolved.folder) and asked.quant != "int8" and (there is None or held < there):
            yield "weights in int8 (trueup quantize)", lambda: record_serving(loaded("int8"), run)

    per_token = int(kv_bytes_per_token(model.dims, bytes_per_value=run.kv_bytes))
    kv = KvFacts(per_token, run.kv_bytes, asked.block_size, asked.rows)
    found = _recorded(device, partial(record_serving, model, run), others() if asked.alternatives else ())
    return replace(found, kv=kv)


def _training(resolved: ResolvedModel, asked: Asked, device: Device) -> Recorded:
    from trueup.model.load import load_model, with_own_decoder
    from trueup.model.precision import choose_precision
    from trueup.recipe.models import TuneSection
    from trueup.train.memory_profile import TrainingAsk, checkpointed, record_training

    precision = choose_precision("auto", device)
    section = TuneSection(method="lora" if asked.lora else "full")
    loaded = load_model(resolved, section, torch_device=device.torch_device, precision=precision)
    loaded = with_own_decoder(loaded, precision.compute_dtype)[0]
    ask = TrainingAsk(asked.rows, asked.length)

    def others() -> Others:
        if asked.rows > 1:
            half = TrainingAsk(asked.rows - asked.rows // 2, asked.length, micro_batches=2)
            yield (
                f"micro-batches of {counted(half.rows, 'row')}",
                partial(record_training, loaded, precision, half),
            )
        again = checkpointed(loaded)
        yield "activation checkpointing", partial(record_training, again, precision, ask)

    first = partial(record_training, loaded, precision, ask)
    return _recorded(device, first, others() if asked.alternatives else ())


def _transformers(resolved: ResolvedModel, asked: Asked, device: Device) -> Recorded:
    from trueup.model.load import load_model
    from trueup.model.memory_profile_forward import ForwardAsk, record_forward
    from trueup.recipe.models import TuneSection

    loaded = load_model(resolved, TuneSection(method="full"), torch_device=device.torch_device)
    ask = ForwardAsk(asked.rows, asked.length)

    def others() -> Others:
        last = replace(ask, last_logits=True)
        yield "logits of the last rows alone", partial(record_forward, loaded, last)
        for chunk in _parts(asked.length):
            smaller = replace(ask, chunk=chunk)
            yield f"prefill chunks of {counted(chunk, 'token')}", partial(record_forward, loaded, smaller)

    first = partial(record_forward, loaded, ask)
    return _recorded(device, first, others() if asked.alternatives else ())


RUNS: dict[str, Callable[[ResolvedModel, Asked, Device], Recorded]] = {
    "serving": _serving,
    "training": _training,
    "transformers": _transformers,
}


def _recorded(
    device: Device,
    first: Callable[[], MemoryTrace],
    others: Iterable[tuple[str, Callable[[], MemoryTrace]]],
) -> Recorded:
    """The work as asked, then what might take less."""
    from trueup.analysis.memory_summary import Alternative
    from trueup.analysis.memory_trace import peak_of
    from trueup.device.allocator_figures import allocator_figures

    device.reset_peak()
    trace = _one_run(first)
    figures = None if device.kind == "cpu" else allocator_figures(device)
    found = [Alternative(what, peak_of(_one_run(other)).size_bytes) for what, other in others]
    return Recorded(trace, tuple(found), figures)


def _one_run(run: Callable[[], MemoryTrace]) -> MemoryTrace:
    gc.collect()  # a cycle left from before would hold memory into this
    return run()


def _parts(length: int) -> list[int]:
    """A half and an eighth, where there are so many tokens."""
    return [length // part for part in (2, 8) if length // part >= 1 and length > 1]


# --- what is asked and printed ------------------------------------------------------------------------------


def _mode(**asked: bool) -> str:
    chosen = [name for name, given in asked.items() if given]
    if len(chosen) > 1:
        raise InputError(f"--{' and --'.join(chosen)}: one of them at a time")
    return chosen[0] if chosen else "serving"


def _device(text: str) -> AskedDevice:
    return cast("AskedDevice", one_of("--device", text, get_args(AskedDevice)))


def _require_length(resolved: ResolvedModel, asked: Asked) -> None:
    from trueup.model.dims import most_positions
    from trueup.model.load import read_config

    positions = most_positions(read_config(resolved))
    more = 0 if asked.mode == "training" else 1
    if positions is not None and asked.length + more > positions:
        needed = counted(asked.length, "token") + (" and the next one" if more else "")
        raise InputError(f"--length: {resolved.name} has {positions:,} positions, too few for {needed}")


def _require_memory(resolved: ResolvedModel, asked: Asked, device: Device) -> None:
    """A run that must end for want of memory, and on a host take others with it, is not begun. What is looked
    for is but a part of what it takes: hidden states of all tokens, and their keys and values or logits where
    the mode has them."""
    from trueup.analysis.flops import kv_bytes_per_token
    from trueup.model.dims import expected_dims
    from trueup.model.load import read_config
    from trueup.recipe.models import TuneSection

    has = _memory_there(device)
    dims = expected_dims(read_config(resolved), TuneSection(method="full"))
    kv_bytes = 2 if asked.kv == "bf16" else 4
    a_token = 4 * dims.vocab if asked.mode == "transformers" else 2 * dims.hidden
    if asked.mode == "serving":
        a_token = 2 * dims.hidden + int(kv_bytes_per_token(dims, bytes_per_value=kv_bytes))
    needs = asked.rows * asked.length * a_token
    if has is not None and needs > has:
        raise InputError(
            f"--rows {asked.rows:,} of --length {asked.length:,}: they take {needs / 2**30:,.1f} GiB at the "
            f"least, and there are {has / 2**30:,.1f}; profile fewer, what a sequence takes does not change"
        )


def _memory_there(device: Device) -> float | None:
    if device.kind == "cpu":
        from trueup.device.memory_there import host_memory

        return host_memory().available_bytes
    memory = device.memory()
    return None if memory is None else memory.total_bytes


def _document(title: str, asked: Asked, summary: MemorySummary, trace: MemoryTrace) -> dict[str, Any]:
    tables = {name: getattr(summary, name) for name in ("kinds", "modules", "operators")}
    return {
        "title": title,
        "asked": asdict(asked),
        "peak": {
            "bytes": summary.peak.size_bytes,
            "part": summary.peak.part,
            "event": summary.peak.event,
            "storages": len(summary.peak.held),
        },
        "events": trace.events,
        "operators_run": trace.operators,
        "measurements": {name: one.model_dump(mode="json") for name, one in summary.measurements.items()},
        "allocator": {name: one.model_dump(mode="json") for name, one in summary.allocator.items()},
        **{name: [asdict(one) for one in found] for name, found in tables.items()},
        "suggestions": [asdict(one) for one in summary.suggestions],
    }
