"""`trueup calibrate`."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import typer

from .output import JSON_OPTION, print_json, say, stdout_reserved


def calibrate(
    device: Literal["auto", "cpu", "cuda", "neuron"] = typer.Option("auto", help="Which device to measure."),
    seconds: float = typer.Option(2.0, min=0.1, max=60, help="Time for each measurement."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure this machine's own ceilings: matmul rate in fp32 and bf16, and memory bandwidth."""
    with stdout_reserved():
        document = _measure(device, seconds)
    if as_json:
        print_json(document)
        return
    say(f"{document['device']['name']} ({document['device']['kind']})")
    for name, one in document["measurements"].items():
        typer.echo(f"{name:<36} {one['value']:.4g} {one['unit']}  ({one['method']}, n = {one['n']})")


def _measure(kind: Literal["auto", "cpu", "cuda", "neuron"], seconds: float) -> dict[str, Any]:
    from trueup.device import matmul_ceiling, memory_bandwidth, open_device

    with contextlib.closing(open_device(kind)) as device:
        found = {
            f"matmul_ceiling_{dtype}_flops_per_s": matmul_ceiling(device, dtype, budget_s=seconds)
            for dtype in ("fp32", "bf16")
        }
        bandwidth = memory_bandwidth(device, budget_s=seconds)
        threads, why = device.choose_threads()
        about = {"kind": device.kind, "name": device.name, "threads": threads, "threads_reason": why}
    measured = {name: ceiling.measurement() for name, ceiling in found.items()}
    measured["memory_bandwidth_bytes_per_s"] = bandwidth.measurement()
    return {
        "device": about,
        "measurements": {name: one.model_dump(mode="json") for name, one in measured.items()},
    }
