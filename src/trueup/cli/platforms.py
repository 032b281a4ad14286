"""From `--platform` to what is known of a platform: a chip of the catalog, what was calibrated, a price."""

from __future__ import annotations

import difflib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .calibrations import named, names, of_device
from .price_book import price_of, price_of_instance, today

if TYPE_CHECKING:
    from trueup.analysis.memory_plan import Policy
    from trueup.catalog import Accelerator
    from trueup.recipe import Recipe
    from trueup.schema import Calibration, CompileMode, PlatformProfile, Price

NO_PRICE = "the recipe has no price: give price.usd_per_hour, or platform.instance"
NEURON_CHIPS = ("trainium", "inferentia")


@dataclass(frozen=True)
class Absent:
    """As much of a device that is not here as a shape plan asks."""

    kind: str
    name: str

    @property
    def static_shapes_only(self) -> bool:
        return self.kind == "neuron"


@dataclass(frozen=True)
class Platform:
    """`device`: opened where it is this machine's, else a stand-in. `host`: tensors live in the process's own
    memory. `memory_bytes`: of one device. `no_price`: why there is no price."""

    title: str
    device: Any
    chip: Accelerator | None
    calibration: Calibration | None
    ranks: int
    policy: Policy
    modes: tuple[CompileMode, ...]
    memory_bytes: float | None
    price: Price | None
    no_price: str = NO_PRICE
    learnt: PlatformProfile | None = None
    notes: tuple[str, ...] = ()

    @property
    def host(self) -> bool:
        return bool(self.device.kind == "cpu")


def find_platform(asked: str | None, recipe: Recipe, opened: ExitStack) -> Platform:
    """This machine, or the one asked for. InputError, with close names, for one that nothing is known of."""
    from trueup.catalog import accelerators, instances
    from trueup.schema import InputError

    if asked is None:
        return _this_machine(recipe, opened)
    calibration = named(asked)
    if calibration is not None:
        return _calibrated(calibration, recipe)
    key = asked.strip().lower()
    if key in instances():
        return _instance(key, recipe)
    if key in accelerators():
        chip = accelerators()[key]
        return _of_chip(
            chip, recipe, title=chip.title, ranks=1, price=None, no_price=_not_its_price(chip.title)
        )
    known = [*names(), *instances(), *accelerators()]
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
    raise InputError(
        f"--platform {asked}: neither calibrated in this home, nor an instance or chip of the catalog; {hint}"
    )


def _this_machine(recipe: Recipe, opened: ExitStack) -> Platform:
    from trueup.catalog import accelerator_for_device_name
    from trueup.device import open_device
    from trueup.model.precision import choose_precision
    from trueup.train.compiling import compile_modes

    from .profiles import learnt

    section = recipe.platform
    device = opened.enter_context(closing(open_device(section.device, threads=section.threads)))
    memory = device.memory()
    host = device.kind == "cpu"
    return Platform(
        title=device.name,
        device=device,
        chip=None if host else accelerator_for_device_name(device.name),
        calibration=of_device(device),
        ranks=1,
        policy=choose_precision(recipe.precision.policy, device).policy,
        modes=compile_modes(recipe.compile.mode, device)[0],
        memory_bytes=_host_bytes() if memory is None else memory.total_bytes,
        price=price_of(recipe),
        learnt=learnt(recipe, device),
    )


def _calibrated(calibration: Calibration, recipe: Recipe) -> Platform:
    from trueup.catalog import accelerator_for_device_name

    chip = accelerator_for_device_name(calibration.device_name)
    asked = recipe.precision.policy
    policy: Any = asked if asked != "auto" else next(iter(calibration.rates), "fp32")
    return Platform(
        title=f"{calibration.device_name} ({calibration.name}, {calibration.made_at[:10]})",
        device=Absent(calibration.device_kind, calibration.device_name),
        chip=chip,
        calibration=calibration,
        ranks=1,
        policy=policy,
        modes=("none",),
        memory_bytes=None if chip is None else chip.memory_bytes,
        price=None,
        no_price=_not_its_price(calibration.device_name),
    )


def _instance(name: str, recipe: Recipe) -> Platform:
    from trueup.catalog import accelerators, instance
    from trueup.schema import InputError

    row = instance(name)
    chip = accelerators().get(row.chip or "")
    if chip is None:
        what = f"its chip {row.chip}" if row.chip else "its CPU"
        raise InputError(
            f"--platform {name}: the catalog has no figures of {what}; run `trueup calibrate` on such a "
            "machine and give the name of what it keeps"
        )
    price, notes = _price_on(row.name, recipe)
    title = f"{row.name} ({row.chip_count} x {chip.title})"
    no_price = "; ".join(notes) or NO_PRICE
    return _of_chip(
        chip, recipe, title=title, ranks=row.chip_count, price=price, no_price=no_price, notes=notes
    )


def _of_chip(
    chip: Accelerator,
    recipe: Recipe,
    *,
    title: str,
    ranks: int,
    price: Price | None,
    no_price: str,
    notes: tuple[str, ...] = (),
) -> Platform:
    kind = "neuron" if chip.name.startswith(NEURON_CHIPS) else "cuda"
    asked = recipe.precision.policy
    return Platform(
        title=title,
        device=Absent(kind, chip.device_names[0]),
        chip=chip,
        calibration=next(
            (one for one in map(named, names()) if one and one.device_name in chip.device_names), None
        ),
        ranks=ranks,
        policy="bf16-master" if asked == "auto" else asked,
        modes=("none",),
        memory_bytes=chip.memory_bytes,
        price=price,
        no_price=no_price,
        notes=notes,
    )


def _price_on(name: str, recipe: Recipe) -> tuple[Price | None, tuple[str, ...]]:
    """The recipe's own price where it was stated for this instance, else today's, with what is to be said."""
    from trueup.catalog import staleness
    from trueup.schema import InputError

    stated_for = recipe.platform.instance
    if recipe.price is not None and stated_for is not None and stated_for.strip().lower() == name:
        return price_of(recipe), ()
    try:
        price = price_of_instance(name)
    except InputError as error:
        return None, (str(error),)
    old = staleness(price, today())
    return price, (old,) if old else ()


def _not_its_price(title: str) -> str:
    return f"no price of {title} is known, and the recipe's is another machine's: give --usd-per-hour"


def _host_bytes() -> float:
    import psutil

    return float(psutil.virtual_memory().total)
