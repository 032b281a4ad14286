"""`trueup calibrate`."""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import typer

from .output import JSON_OPTION, print_json, say, stdout_reserved

if TYPE_CHECKING:
    from trueup.device import Device
    from trueup.schema import Calibration, Measurement, StepRates
    from trueup.train.step_probe import Probed

PRODUCTS_PART, STEPS_PART = 4, 12  # seconds of either, for each second of `--seconds`


def calibrate(
    device: Literal["auto", "cpu", "cuda", "neuron"] = typer.Option("auto", help="Which device to measure."),
    seconds: float = typer.Option(2.0, min=0.1, max=60, help="Time for each measurement."),
    steps: bool = typer.Option(
        True, "--steps/--no-steps", help="Also time training steps, which `trueup predict` starts from."
    ),
    policy: Literal["auto", "fp32", "bf16", "bf16-master", "autocast"] = typer.Option(
        "auto", "--precision", help="Precision policy of these steps."
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
        document, found = _measure(device, seconds, steps, policy, name)
        path = keep(found) if found is not None else None
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
    kind: Literal["auto", "cpu", "cuda", "neuron"], seconds: float, steps: bool, policy: Any, name: str | None
) -> tuple[dict[str, Any], Calibration | None]:
    """(the document, the calibration to keep: None without timed steps)"""
    from trueup import __version__
    from trueup.device import matmul_ceiling, memory_bandwidth, open_device
    from trueup.schema import Calibration

    from .calibrations import platform_name

    began = time.perf_counter()
    with contextlib.closing(open_device(kind)) as device:
        found = {
            f"matmul_ceiling_{dtype}_flops_per_s": matmul_ceiling(
                device, dtype, budget_s=seconds
            ).measurement()
            for dtype in ("fp32", "bf16")
        }
        found["memory_bandwidth_bytes_per_s"] = memory_bandwidth(device, budget_s=seconds).measurement()
        threads, why = device.choose_threads()
        about = {"kind": device.kind, "name": device.name, "threads": threads, "threads_reason": why}
        rates: dict[str, StepRates] = {}
        if steps:
            chosen, of_policy, more = _of_steps(device, policy, seconds)
            rates, found = {chosen: of_policy}, found | more
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


def _of_steps(device: Device, policy: Any, seconds: float) -> tuple[str, StepRates, dict[str, Measurement]]:
    """(precision policy, its rates, what else was measured on the way)"""
    from trueup.analysis.predict_fit import fitted, spread
    from trueup.analysis.predict_terms import ProductTable
    from trueup.device import product_times
    from trueup.model.precision import choose_precision
    from trueup.schema import StepRates
    from trueup.train.step_probe import probed_steps

    precision = choose_precision(policy, device)
    dtype = "bf16" if precision.compute_dtype == "bfloat16" else "fp32"
    say(f"timing {dtype} products, then training steps of small random models")
    resident = _resident_bytes()
    products = product_times(device, dtype, budget_s=PRODUCTS_PART * seconds)
    program_bytes = max(0.0, (_resident_bytes() - resident) / len(products)) if device.kind == "cpu" else 0.0
    meter, budget_s = _PowerMeter(device), STEPS_PART * seconds
    probed = probed_steps(device, precision, ProductTable(products), budget_s=budget_s, after_each=meter.read)
    term_s, errors = fitted(probed.timed)
    middle, worst = spread(errors)
    rates = StepRates(
        attention=probed.attention,
        products=products,
        term_s=term_s,
        probes=len(errors),
        error_median=middle,
        error_worst=worst,
    )
    return precision.policy, rates, _beside(probed, program_bytes, len(products)) | {"power_w": meter.mean()}


def _resident_bytes() -> int:
    """What the C library only keeps for later is handed back first, where it can: it is no program's."""
    import ctypes

    import psutil

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_info().rss)


def _beside(probed: Probed, program_bytes: float, timed_sizes: int) -> dict[str, Measurement]:
    """`program_bytes`: what the process grew by with each size of a product that was timed; those programs
    are not of the base."""
    from trueup.schema import Measurement
    from trueup.train.step_probe import assembly_seconds

    example_s, token_s = assembly_seconds()
    how = "batches of random tokens, the best of some"
    programs_bytes = program_bytes * timed_sizes + probed.ready_bytes  # a tiny model's own are few and small
    return {
        "base_host_bytes": Measurement(
            value=max(0.0, probed.base_host_bytes - programs_bytes),
            unit="bytes",
            kind="measured",
            method="resident memory of a process that trained a tiny model, without programs for products",
        ),
        "ready_program_host_bytes": Measurement(
            value=probed.ready_bytes / max(1, probed.ready_programs),
            unit="bytes",
            kind="measured",
            method=f"growth of the process when {probed.ready_programs} products were made ready",
            n=probed.ready_programs,
        ),
        "program_host_bytes": Measurement(
            value=program_bytes,
            unit="bytes",
            kind="measured",
            method=f"growth of the process over products of {timed_sizes} sizes",
            n=timed_sizes,
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
