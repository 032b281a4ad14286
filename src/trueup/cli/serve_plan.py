"""What `trueup serve` is asked for, and whether it fits before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.schema import InputError

from .memory_place import Model, Place, find_model, process_of, with_memory

if TYPE_CHECKING:
    from trueup.analysis.serving_memory import ServingAsk
    from trueup.analysis.serving_memory_fit import KvBlocks, ServingFit
    from trueup.model.builtin import ResolvedModel
    from trueup.recipe.serving import ServeSection
    from trueup.schema.choices import AskedDevice, DeviceKind
    from trueup.serve.plan import ServingPlan

DEFAULT_CONTEXT = 4096
OPTIONS = {"kv": "kv-dtype", "request_s": "request", "drain_s": "drain"}  # of keys called otherwise
RECIPE_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Asked:
    """The model, how to serve it, and on what."""

    resolved: ResolvedModel
    section: ServeSection
    device: AskedDevice
    threads: int | None


@dataclass(frozen=True)
class Planned:
    """What will be loaded. `fit` says of `ask` whether every answer could be at its longest at once; where it
    could not, some wait or are computed again."""

    ask: ServingAsk
    plan: ServingPlan
    pool: KvBlocks | None  # None: how much memory there is is not known
    fit: ServingFit
    place: Place


def asked_for(
    name: str, given: Mapping[str, Any], device: AskedDevice, threads: int | None, overrides: list[str]
) -> Asked:
    """From a recipe, or a model's name, and the options that were given (None: not). Raises InputError."""
    from pydantic import ValidationError

    from trueup.home import find_home
    from trueup.model.builtin import resolve_model
    from trueup.recipe import load_recipe
    from trueup.recipe.serving import ServeSection

    from .output import say

    section = ServeSection()
    if name.endswith(RECIPE_ENDINGS) or Path(name).is_file():
        recipe = load_recipe(name, overrides).recipe
        section, name = recipe.serve or section, recipe.model.path
        device = recipe.platform.device if device == "auto" else device
        threads = threads or recipe.platform.threads
    elif overrides:
        raise InputError("--set is for a recipe; a model has options")
    try:
        section = ServeSection.model_validate(
            {**section.model_dump(), **{key: value for key, value in given.items() if value is not None}}
        )
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        option = OPTIONS.get(key, key.replace("_", "-"))
        raise InputError(f"--{option} {first['input']}: {first['msg']}") from None
    return Asked(resolve_model(name, find_home().path, say=say), section, device, threads)


def planned(asked: Asked, place: Place, memory_gib: float | None) -> Planned:
    """Raises InputError where not even one answer of the asked length fits, with what would."""
    from trueup.analysis.serving_memory import all_blocks
    from trueup.analysis.serving_memory_fit import fit, kv_blocks
    from trueup.serve.plan import plan_serving

    known, section = find_model(str(asked.resolved.folder)), asked.section
    place = with_memory(place, memory_gib)
    ask = _ask(known, section, place)
    plan = plan_serving(
        max_context=ask.context,
        blocks=all_blocks(ask),
        concurrency=ask.concurrency,
        block_size=ask.block_size,
        prefill_chunk=ask.prefill_chunk,
    )
    found = fit(ask, place.has.value, positions=known.positions)
    if place.has.value is None:
        return Planned(ask, plan, None, found, place)
    pool = kv_blocks(replace(ask, steps=plan.shapes()), place.has.value)
    if pool.longest_request < ask.context:
        raise InputError(_refusal(asked.resolved.name, ask, pool, place, found))
    return Planned(ask, replace(plan, blocks=pool.blocks), pool, found, place)


def require_served(resolved: ResolvedModel, planned: Planned) -> None:
    """Raises InputError for a folder that cannot be served, before anybody is told where: of what its
    config.json says, and of its weights all but their values."""
    from trueup.model.inference_weights import frame_of_folder
    from trueup.serve.opening import end_ids_of

    frame_of_folder(resolved.folder, planned.plan.max_context)
    end_ids_of(resolved.folder)


def served_as(ask: ServingAsk) -> Any:
    """In the decoder's words. A quantised folder is served as it is stored, with fp32 products on a CPU."""
    if ask.quant in ("fp32", "bf16", "int8"):
        return ask.quant
    return "fp32" if ask.device == "cpu" else "bf16"


def require_judged(resolved: ResolvedModel, *, unjudged: bool = False) -> str | None:
    """A quantised folder is served only as the quality gate accepted it, or `unjudged`; what is to be said of
    that, of one."""
    from trueup.model.quality_file import RefusedQualityError, require_accepted
    from trueup.schema.quality import QUALITY_FILE
    from trueup.schema.quantization import FACTS_FILE

    if not any((resolved.folder / name).is_file() for name in (FACTS_FILE, QUALITY_FILE)):
        return None
    try:
        record = require_accepted(resolved.folder)
    except (RefusedQualityError, InputError) as error:
        if unjudged:
            return f"warning: served all the same, as --unjudged asks: {error}"
        raise type(error)(f"{error}. --unjudged serves it all the same") from None
    return f"the quality gate: {record.verdict}"


def place_of(device: AskedDevice) -> Place:
    """This machine's accelerator where one is asked for or there, else its processor."""
    from .memory_place import find_place

    place = find_place("cpu" if device == "cpu" else None)
    kind: DeviceKind = place.kind
    if device not in ("auto", kind):
        raise InputError(f"--device {device}: this machine has {kind} ({place.title}) and no {device}")
    return place


def _ask(known: Model, section: ServeSection, place: Place) -> ServingAsk:
    from trueup.analysis.serving_memory import ServingAsk

    host = place.kind == "cpu"
    own = "fp32" if host else "bf16"
    if known.quant is not None and section.quant not in (None, known.quant):
        raise InputError(
            f"--quant {section.quant}: {known.title} is stored as {known.quant}, and served as it is stored"
        )
    context = section.context or min(DEFAULT_CONTEXT, known.positions or DEFAULT_CONTEXT)
    if known.positions is not None and context > known.positions:
        raise InputError(
            f"--context {context:,}: {known.title} has {known.positions:,} positions; no answer goes further"
        )
    return ServingAsk(
        dims=known.dims,
        context=context,
        concurrency=section.concurrency,
        quant=known.quant or section.quant or own,  # type: ignore[arg-type]
        kv=section.kv or own,  # type: ignore[arg-type]
        device=place.kind,
        chip=place.chip,
        head=known.head,
        group=known.group,
        block_size=section.block_size,
        prefill_chunk=min(section.prefill_chunk, context),
        process=process_of(place),
    )


def _refusal(name: str, ask: ServingAsk, pool: KvBlocks, place: Place, found: ServingFit) -> str:
    room = (
        f"room for {pool.longest_request:,} tokens of keys and values"
        if pool.blocks
        else "none for the model"
    )
    lines = [
        f"{name}: an answer of {ask.context:,} tokens does not fit on {place.title}: {found.why}; there is "
        f"{room}"
    ]
    if found.longest_context:
        lines.append(f"  fits: --context {found.longest_context} with {ask.concurrency} at once")
    if found.most_concurrency:
        lines.append(f"  fits: --concurrency {found.most_concurrency} with {ask.context:,} tokens each")
    lines += [f"  fits: {_way(change.what)}" for change in found.changes if change.fits][:3]
    if len(lines) == 1:
        lines.append("  nothing smaller fits either: take a smaller model, or more memory")
    return "\n".join(lines)


def _way(change: str) -> str:
    """What `serve` itself does not round to, `trueup quantize` does."""
    scheme = change.split()[0]
    return f"{change}, of a folder by `trueup quantize`" if scheme in ("int4", "fp8") else change
