"""`trueup calibrate`."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import typer

from .output import JSON_OPTION, print_json, say, stdout_reserved

if TYPE_CHECKING:
    from trueup.device import Device, TimedProducts
    from trueup.schema import Calibration, Measurement, StepRates
    from trueup.train.step_probe import ProbedSteps

MODELS_PART, ROUNDS_PART = 16, 20  # seconds of making models and of timing, for each second of `--seconds`
FEWEST_ROUNDS = 2

Tell = Callable[[str], None]  # whoever waits is told so, a line for each phase and round


def calibrate(
    device: Literal["auto", "cpu", "cuda", "neuron"] = typer.Option("auto", help="Which device to measure."),
    seconds: float = typer.Option(2.0, min=0.1, max=60, help="Time for each measurement."),
    steps: bool = typer.Option(
        True, "--steps/--no-steps", help="Also time training steps, which `trueup predict` starts from."
    ),
    policy: Literal["auto", "fp32", "bf16", "bf16-master", "autocast"] = typer.Option(
        "auto", "--precision", help="Precision policy of these steps."
    ),
    afresh: bool = typer.Option(
        False, "--afresh", help="Forget earlier calibrations, with which the rates are averaged otherwise."
    ),
    name: str | None = typer.Option(None, "--name", help="Keep it under this name. Default: the device's."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure this machine's own ceilings, and what the parts of a training step take here."""
    from trueup.schema import InputError

    from .calibrations import keep, platform_name

    if name is not None and name != platform_name(name):
        raise InputError(f"--name {name!r}: give lower-case letters, digits, dots and dashes")
    with stdout_reserved():
        tell: Tell = (lambda _: None) if as_json else say
        document, found = _measure(device, seconds, steps, policy, name, tell)
        path = keep(found, afresh=afresh) if found is not None else None
    if as_json:
        print_json(document | {"path": None if path is None else str(path)})
        return
    say(f"{document['device']['name']} ({document['device']['kind']})")
    for key, one in document["measurements"].items():
        if one["value"] is None:
            typer.echo(f"{key:<36} unavailable: {one['reason']}")
            continue
        count = "" if one["n"] is None else f", n = {one['n']}"
        typer.echo(f"{key:<36} {one['value']:.4g} {one['unit']}  ({one['method']}{count})")
    for of, rates in document["rates"].items():
        typer.echo(
            f"{'steps, ' + of:<36} {rates['probes']} timed; left out of the fit, they are foretold to "
            f"{rates['error_median']:.1%} (median), {rates['error_worst']:.1%} at worst"
        )
    if path is not None:
        say(f"kept in {path}")


def _measure(
    kind: Literal["auto", "cpu", "cuda", "neuron"],
    seconds: float,
    steps: bool,
    policy: Any,
    name: str | None,
    tell: Tell,
) -> tuple[dict[str, Any], Calibration | None]:
    """(the document, the calibration to keep: None without timed steps)"""
    from trueup import __version__
    from trueup.device import open_device
    from trueup.schema import Calibration

    from .calibrations import platform_name

    # More sizes are timed in turn than oneDNN keeps programs for: it would compile them again in each round.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    began = time.perf_counter()
    tell("loading PyTorch")
    with contextlib.closing(open_device(kind)) as device:
        threads, why = device.choose_threads()
        about = {"kind": device.kind, "name": device.name, "threads": threads, "threads_reason": why}
        rates: dict[str, StepRates] = {}
        more: dict[str, Measurement] = {}
        if steps:  # before the ceilings, which have the library compile for some of the same products
            chosen, of_policy, more = _of_steps(device, policy, seconds, tell)
            rates = {chosen: of_policy}
        found = _ceilings(device, seconds, tell) | more
        kept_as = name or platform_name(f"{device.name} {threads}" if device.kind == "cpu" else device.name)
    document = {
        "device": about,
        "measurements": {key: one.model_dump(mode="json") for key, one in found.items()},
        "rates": {of: _summary(one) for of, one in rates.items()},
    }
    if not steps:
        return document, None
    import torch

    return document, Calibration(
        name=kept_as,
        device_kind=about["kind"],
        device_name=about["name"],
        threads=threads,
        trueup_version=__version__,
        torch_version=torch.__version__,
        made_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        seconds=time.perf_counter() - began,
        measurements=found,
        rates=rates,
    )


def _ceilings(device: Device, seconds: float, tell: Tell) -> dict[str, Measurement]:
    from trueup.device import matmul_ceiling, memory_bandwidth

    found = {}
    for dtype in ("fp32", "bf16"):
        tell(f"timing {dtype} products for their ceiling")
        ceiling = matmul_ceiling(device, dtype, budget_s=seconds)
        found[f"matmul_ceiling_{dtype}_flops_per_s"] = ceiling.measurement()
    tell("timing reads of memory")
    found["memory_bandwidth_bytes_per_s"] = memory_bandwidth(device, budget_s=seconds).measurement()
    return found


def _of_steps(
    device: Device, policy: Any, seconds: float, tell: Tell
) -> tuple[str, StepRates, dict[str, Measurement]]:
    """(precision policy, its rates, what else was measured on the way)"""
    from trueup.analysis.predict_fit import fitted, spread
    from trueup.analysis.predict_products import ProductTable
    from trueup.device import TimedProducts
    from trueup.model.precision import choose_precision
    from trueup.schema import StepRates
    from trueup.train.step_probe import ProbedSteps

    precision = choose_precision(policy, device)
    dtype = "bf16" if precision.compute_dtype == "bfloat16" else "fp32"
    tell(f"{dtype} products of every size, for the first time")
    products = TimedProducts(device, dtype)
    tell("making small random models, and doing each of their training steps once")
    probes = ProbedSteps(device, precision, budget_s=MODELS_PART * seconds)
    meter = _PowerMeter(device)
    tell(f"timing {dtype} products and these steps, in turn")
    _in_rounds(products, probes, meter, ROUNDS_PART * seconds, tell)
    times = products.times()
    table = ProductTable(times)
    term_s, errors = fitted(probes.timed(table))
    middle, worst = spread(errors)
    rates = StepRates(
        attention=probes.attention,
        products=times,
        term_s=term_s,
        probes=len(errors),
        error_median=middle,
        error_worst=worst,
        attention_program_bytes=probes.attention_program_bytes,
        new_width_s=_over(
            [one.seconds for one in probes.new_widths],
            [table.first_seconds(size) for one in probes.new_widths for size in one.sizes],
        ),
    )
    base_bytes = max(0.0, probes.base_host_bytes - products.program_bytes)
    return precision.policy, rates, _beside(base_bytes) | {"power_w": meter.mean()}


def _in_rounds(
    products: TimedProducts, probes: ProbedSteps, meter: _PowerMeter, seconds: float, tell: Tell
) -> None:
    """As many rounds as fit into the seconds, and FEWEST_ROUNDS at the least."""
    rounds, stop = 0, time.perf_counter() + seconds
    while rounds < FEWEST_ROUNDS or time.perf_counter() < stop:
        rounds += 1
        tell(f"round {rounds}: {max(0.0, stop - time.perf_counter()):.0f} s to go")
        products.round()
        probes.round(meter.read)


def _over(of_steps: list[float], of_products: list[float]) -> float:
    """What steps took over what their products took alone; 1 where nothing was."""
    alone = math.fsum(of_products)
    return max(0.0, math.fsum(of_steps)) / alone if alone > 0 else 1.0


def _beside(base_bytes: float) -> dict[str, Measurement]:
    from trueup.schema import Measurement
    from trueup.train.step_probe import assembly_seconds

    example_s, token_s = assembly_seconds()
    how = "batches of random tokens, the best of some"
    return {
        "base_host_bytes": Measurement(
            value=base_bytes,
            unit="bytes",
            kind="measured",
            method="resident memory of a process that trained a tiny model, without programs for products",
        ),
        "assemble_example_s": Measurement(value=example_s, unit="s", kind="measured", method=how),
        "assemble_token_s": Measurement(value=token_s, unit="s", kind="measured", method=how),
    }


class _PowerMeter:
    """The device's power after each timed step, where it has such a sensor."""

    def __init__(self, device: Device) -> None:
        self._sensor = next((one for one in device.sensors() if one.name == "power_w"), None)
        self._reason = device.missing().get("power_w", "this device has no power sensor")
        self._found: list[float] = []

    def read(self) -> None:
        watts = self._sensor.read() if self._sensor is not None else None
        if watts is not None:
            self._found.append(watts)

    def mean(self) -> Measurement:
        from trueup.schema import Measurement, unavailable

        if self._sensor is None or not self._found:
            return unavailable("W", self._reason if self._sensor is None else "the sensor gave no reading")
        return Measurement(
            value=sum(self._found) / len(self._found),
            unit="W",
            kind="measured",
            method=f"mean while steps were timed; {self._sensor.method}",
            scope=self._sensor.scope,
            n=len(self._found),
        )


def _summary(rates: StepRates) -> dict[str, Any]:
    return rates.model_dump(mode="json", exclude={"products"})
