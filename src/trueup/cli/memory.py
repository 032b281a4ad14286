"""`trueup memory plan MODEL` and `trueup memory profile MODEL`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast, get_args

import typer

from trueup.schema import InputError
from trueup.schema.counting import counted

from .asked_values import one_of, positive
from .memory_place import Model, Place, find_model, find_place, process_of, with_memory
from .memory_profile import profile
from .output import JSON_OPTION, print_json, print_rich

if TYPE_CHECKING:
    from trueup.analysis.serving_memory import KvType, ServingAsk
    from trueup.analysis.serving_memory_fit import ServingFit
    from trueup.analysis.serving_memory_weights import WeightScheme
    from trueup.schema import Measurement

CONTEXT = 4096  # tokens, where nothing else is asked and the model can take them

app = typer.Typer(
    help="Plan the memory of serving before deploying, and see who holds it when the model runs.",
    no_args_is_help=True,
)
app.command("profile")(profile)


@app.command("plan")
def plan(
    model: str = typer.Argument(
        help="A model folder, a built-in, or a model of the catalog.", metavar="MODEL"
    ),
    platform: str | None = typer.Option(
        None, "--platform", help="A cloud instance, a chip, or `cpu`. Default: this machine."
    ),
    context: int | None = typer.Option(
        None, "--context", help="Tokens of a sequence, prompt and answer together. Default: 4096, or fewer."
    ),
    concurrency: int = typer.Option(8, "--concurrency", help="Sequences at once."),
    quant: str | None = typer.Option(
        None,
        "--quant",
        help="Weights: fp32, bf16, int8, int4 or fp8. Default: as stored, or bf16; fp32 on a CPU.",
    ),
    group: int | None = typer.Option(
        None, "--group", help="Inputs that share a scale, where weights have any."
    ),
    kv: str | None = typer.Option(
        None, "--kv-dtype", help="Keys and values: fp32 or bf16. Default: bf16; fp32 on a CPU."
    ),
    block_size: int | None = typer.Option(None, "--block-size", help="Tokens of a KV block. Default: 16."),
    prefill_chunk: int | None = typer.Option(
        None, "--prefill-chunk", help="Prompt tokens of a step. Default: 256."
    ),
    memory: float | None = typer.Option(
        None, "--memory", metavar="GIB", help="What there is, in GiB, where you know better."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Say what serving a model takes, line by line, from its config.json alone: it fits, or what would."""
    from trueup.analysis.serving_memory import BLOCK_SIZE, PREFILL_CHUNK, ServingAsk, serving_lines
    from trueup.analysis.serving_memory_fit import fit

    known = find_model(model)
    place = with_memory(find_place(platform), memory)
    host = place.kind == "cpu"
    scheme = cast(
        "WeightScheme", one_of("--quant", quant or known.quant or ("fp32" if host else "bf16"), _schemes())
    )
    as_stored = scheme == known.quant
    ask = ServingAsk(
        dims=known.dims,
        context=_context(context, known),
        concurrency=positive("--concurrency", concurrency),
        quant=scheme,
        kv=cast("KvType", one_of("--kv-dtype", kv or ("fp32" if host else "bf16"), _kv_types())),
        device=place.kind,
        chip=place.chip,
        head=known.head if as_stored else None,
        group=positive("--group", group) if group is not None else known.group if as_stored else None,
        block_size=positive("--block-size", BLOCK_SIZE if block_size is None else block_size),
        prefill_chunk=positive("--prefill-chunk", PREFILL_CHUNK if prefill_chunk is None else prefill_chunk),
        process=process_of(place),
    )
    if group is not None and scheme in ("int8", "int4"):
        from trueup.model.dims import require_divides

        for name, (inputs, _) in known.dims.linear_layers.items():
            require_divides(name, inputs, group)
    found = fit(ask, place.has.value, positions=known.positions)
    lines = serving_lines(ask)
    if as_json:
        print_json(_document(known, place, ask, lines, found))
    else:
        from trueup.report.memory import plan_text

        print_rich(
            plan_text(
                lines, found, title=_title(known, place, ask), ask=ask, has=place.has, notes=place.notes
            )
        )
    if found.fits is None:
        raise InputError(
            f"whether it fits is not known: {place.has.reason}; give what there is by --memory GIB"
        )
    if not found.fits:
        raise typer.Exit(1)


# --- what is asked ------------------------------------------------------------------------------------------


def _context(asked: int | None, model: Model) -> int:
    if asked is None:
        return min(CONTEXT, model.positions or CONTEXT)
    if model.positions is not None and asked > model.positions:
        raise InputError(
            f"--context {asked:,}: {model.title} has {model.positions:,} positions; no sequence is longer"
        )
    return positive("--context", asked)


def _schemes() -> tuple[str, ...]:
    from trueup.analysis.serving_memory_weights import WEIGHT_SCHEMES

    return WEIGHT_SCHEMES


def _kv_types() -> tuple[str, ...]:
    from trueup.analysis.serving_memory import KvType

    return get_args(KvType)


# --- what is printed ----------------------------------------------------------------------------------------


def _title(model: Model, place: Place, ask: ServingAsk) -> str:
    return (
        f"{model.title}, {ask.quant} weights, {ask.kv} keys and values, "
        f"{counted(ask.concurrency, 'sequence')} of {counted(ask.context, 'token')}, on {place.title}"
    )


def _document(
    model: Model, place: Place, ask: ServingAsk, lines: dict[str, Measurement], found: ServingFit
) -> dict[str, Any]:
    return {
        "model": model.title,
        "dims": model.dims.model_dump(mode="json"),
        "platform": place.title,
        "memory": place.has.model_dump(mode="json"),
        "ask": {
            "context": ask.context,
            "concurrency": ask.concurrency,
            "quant": ask.quant,
            "group": ask.group,
            "kv_dtype": ask.kv,
            "block_size": ask.block_size,
            "prefill_chunk": ask.prefill_chunk,
            "blocks": ask.pool_blocks,
            "steps": [list(shape) for shape in ask.shapes],
        },
        "fits": found.fits,
        "lines": {name: line.model_dump(mode="json") for name, line in lines.items()},
        "fit": asdict(found),
        "notes": list(place.notes),
    }
