"""From a model's name and `--platform` to what a plan of memory needs of them: dimensions, and how much
memory there is."""

from __future__ import annotations

import difflib
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.schema import InputError

if TYPE_CHECKING:
    from trueup.analysis.serving_memory_weights import WeightScheme
    from trueup.catalog import Accelerator, Figure, Instance
    from trueup.schema import Measurement, ModelDims
    from trueup.schema.choices import DeviceKind

NEURON_CHIPS = ("trainium", "inferentia")
THIS_HOST = "this machine's processor"


@dataclass(frozen=True)
class Model:
    """What is known of a model without its weights. `quant`, `group`, `head`: how a quantised folder is
    stored; None for any other."""

    title: str
    dims: ModelDims
    positions: int | None
    quant: WeightScheme | None = None
    group: int | None = None
    head: WeightScheme | None = None


@dataclass(frozen=True)
class Place:
    """Where it is to be served. `has`: memory of one device, or why nobody says."""

    title: str
    kind: DeviceKind
    chip: str | None
    has: Measurement
    notes: tuple[str, ...] = ()


def find_model(name: str) -> Model:
    """From a folder's config.json, a built-in's, or the catalog. InputError, with the nearest names, for one
    that nothing is known of."""
    from trueup.catalog.models import published_model, published_models
    from trueup.model.builtin import BUILTINS
    from trueup.model.folder import config_of

    folder = Path(name).expanduser()
    if folder.is_dir():
        return _stored(folder, _model(folder.resolve().name, config_of(folder)))
    published = published_model(name)
    if published is not None:
        return _model(published.title, dict(published.config))
    if name in BUILTINS:
        from trueup.model.tiny import SIZES

        return _model(name, dict(SIZES))
    known = list(dict.fromkeys([*BUILTINS, *published_models()]))
    close = difflib.get_close_matches(name.strip().lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
    raise InputError(f"{name}: no such folder, and neither a built-in nor a model of the catalog; {hint}")


def _model(title: str, config: dict[str, Any]) -> Model:
    from trueup.model.dims import expected_dims, most_positions, require_possible
    from trueup.recipe.models import TuneSection

    require_possible(config, title)
    try:
        dims = expected_dims(config, TuneSection(method="full"))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{title}: config.json has no usable {error}; a Llama-class model is expected"
        ) from None
    return Model(title, dims, most_positions(config))


def _stored(folder: Path, model: Model) -> Model:
    """As a folder that `trueup quantize` wrote is stored."""
    from pydantic import ValidationError

    from trueup.files.whole import read_json_object
    from trueup.schema.quantization import FACTS_FILE, QuantizationFacts

    path = folder / FACTS_FILE
    if not path.is_file():
        return model
    try:
        facts = QuantizationFacts.model_validate(read_json_object(path))
    except (OSError, ValueError, ValidationError) as error:
        raise InputError(
            f"{path}: damaged ({str(error).splitlines()[0]}); quantise the original again"
        ) from None
    head = "model.embed_tokens" if facts.tied_head else "lm_head"
    whole: WeightScheme = "fp32"
    stored = facts.weights.get(head)
    return replace(
        model, quant=facts.scheme, group=facts.group, head=whole if stored is None else stored.scheme
    )


# --- the place ----------------------------------------------------------------------------------------------


def find_place(asked: str | None) -> Place:
    """This machine, an instance or a chip. InputError, with close names, for one that nothing is known of."""
    from trueup.catalog import accelerators, instances

    if asked is None:
        return _this_machine()
    key = asked.strip().lower()
    if key == "cpu":
        return _this_host()
    if key in instances():
        return _instance(instances()[key])
    if key in accelerators():
        return _of_chip(accelerators()[key], accelerators()[key].title)
    known = ["cpu", *instances(), *accelerators()]
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}."
    raise InputError(
        f"--platform {asked}: neither an instance nor a chip of the catalog; {hint} For one "
        "that the catalog does not hold name one of its kind, and its own memory in GiB: "
        "--platform h100 --memory 24"
    )


def _this_machine() -> Place:
    from trueup.device.memory_there import accelerator_by_node

    kind = accelerator_by_node()
    if kind is None:
        return _this_host()
    from trueup.catalog import accelerator_for_device_name
    from trueup.device import open_device
    from trueup.schema import Measurement, unavailable

    with closing(open_device(kind)) as device:
        memory, name = device.memory(), device.name
    chip = accelerator_for_device_name(name)
    if memory is not None and memory.total_bytes is not None:
        has = Measurement(
            value=memory.total_bytes,
            unit="bytes",
            kind="measured",
            method="the device's own figure",
            scope="device",
        )
    elif chip is not None:
        has = _published(chip)
    else:
        has = unavailable(
            "bytes", f"neither {name} nor the catalog says how much memory it has", scope="device"
        )
    return Place(name, kind, chip.name if chip else None, has)


def _this_host() -> Place:
    from trueup.device.memory_there import host_memory
    from trueup.schema import Measurement

    found = host_memory()
    has = Measurement(
        value=found.available_bytes, unit="bytes", kind="measured", method=found.how, scope="node"
    )
    return Place(THIS_HOST, "cpu", None, has)


def _instance(row: Instance) -> Place:
    from trueup.catalog import accelerators
    from trueup.schema import Measurement, unavailable

    if row.chip is None:
        size = row.memory.in_base_units
        has = (
            unavailable("bytes", str(row.memory.reason), scope="node")
            if size is None
            else Measurement(
                value=size, unit="bytes", kind="quoted", method=_source(row.memory), scope="node"
            )
        )
        return Place(row.name, "cpu", None, has, ("what the system itself takes is not left out",))
    chip = accelerators().get(row.chip)
    if chip is None:
        reason = f"the catalog has no figures of {row.name}'s chip {row.chip}"
        return Place(row.name, "cuda", row.chip, unavailable("bytes", reason, scope="device"))
    notes: tuple[str, ...] = ()
    if row.chip_count > 1:
        notes = (
            f"of one of its {row.chip_count} chips, which holds the whole model: replicas, one on each chip; "
            "tensor parallelism over chips is not planned here",
        )
    return _of_chip(chip, f"{row.name} ({row.chip_count} x {chip.title})", notes)


def _of_chip(chip: Accelerator, title: str, notes: tuple[str, ...] = ()) -> Place:
    kind: DeviceKind = "neuron" if chip.name.startswith(NEURON_CHIPS) else "cuda"
    if kind == "neuron":
        notes = (*notes, "of the whole chip: its cores must share the model among them")
    return Place(title, kind, chip.name, _published(chip), notes)


def _published(chip: Accelerator) -> Measurement:
    from trueup.schema import Measurement, unavailable

    if chip.memory_bytes is None:
        return unavailable("bytes", chip.memory.reason or "not published", scope="device")
    return Measurement(
        value=chip.memory_bytes, unit="bytes", kind="quoted", method=_source(chip.memory), scope="device"
    )


def _source(figure: Figure) -> str:
    return f"{figure.value:g} {figure.unit}: {figure.source}, {figure.as_of}"


def with_memory(place: Place, memory_gib: float | None) -> Place:
    from trueup.schema import Measurement

    if memory_gib is None:
        return place
    if not 0 < memory_gib < 1e9:
        raise InputError(f"--memory {memory_gib:g}: a number of GiB above 0 and below 1e9 is expected")
    has = Measurement(
        value=memory_gib * 2**30, unit="bytes", kind="quoted", method="given by --memory", scope="device"
    )
    return replace(place, has=has)


def process_of(place: Place) -> Measurement | None:
    """What this machine's process takes by itself, where it was calibrated."""
    from .calibrations import named, names

    if place.title != THIS_HOST:
        return None
    found = [one for one in map(named, names()) if one is not None and one.device_kind == "cpu"]
    newest = max(found, key=lambda one: one.made_at, default=None)
    base = None if newest is None else newest.measurements.get("base_host_bytes")
    return base if base is not None and base.value is not None else None
