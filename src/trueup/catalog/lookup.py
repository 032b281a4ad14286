"""What is publicly known of chips and instances, each figure with its source and date.

The figures live in `accelerators.json` and `instances.json` beside this file, in the units of their sources;
properties give them in base units. A figure nobody publishes is `None` with a reason. An unknown chip is
unknown: nothing here ever answers with another chip's figures. Prices are in `prices.py`.
"""

from __future__ import annotations

import difflib
import json
from functools import cache
from importlib import resources
from typing import Any, Literal, Self

from pydantic import model_validator

from trueup.schema import Frozen, InputError

_IN_BASE_UNITS = {"GiB": 2.0**30, "GiB/s": 2.0**30, "GB/s": 1e9, "TB/s": 1e12, "TFLOP/s": 1e12, "W": 1.0}


class Figure(Frozen):
    """One published figure in its source's own unit. `as_of` is an ISO date, possibly only year and month."""

    value: float | None
    unit: str
    kind: Literal["quoted", "estimated", "unavailable"]
    source: str
    as_of: str
    reason: str | None = None

    @model_validator(mode="after")
    def _value_or_reason(self) -> Self:
        if (self.value is None) != (self.kind == "unavailable") or (self.value is None and not self.reason):
            raise ValueError("a figure has a value, or is 'unavailable' with a reason")
        return self

    @property
    def in_base_units(self) -> float | None:
        """Bytes, bytes/s, FLOP/s or W; None where nothing is published."""
        return None if self.value is None else self.value * _IN_BASE_UNITS[self.unit]


class Accelerator(Frozen):
    """One chip. Rates are dense peaks of one chip; `device_names` are the exact names drivers report."""

    name: str
    title: str
    device_names: tuple[str, ...]
    memory: Figure
    bandwidth: Figure
    bf16_dense: Figure
    fp8_dense: Figure
    link: Figure
    power: Figure
    note: str = ""

    @property
    def memory_bytes(self) -> float | None:
        return self.memory.in_base_units

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        return self.bandwidth.in_base_units

    @property
    def bf16_flops_per_s(self) -> float | None:
        return self.bf16_dense.in_base_units

    @property
    def power_w(self) -> float | None:
        return self.power.in_base_units


class Instance(Frozen):
    """One cloud instance type. `chip` names an accelerator; the catalog may hold no figures for it."""

    name: str
    chip: str | None
    chip_count: int
    vcpu: Figure
    memory: Figure
    network: Figure
    note: str = ""


def read_data(file_name: str) -> dict[str, Any]:
    """A data file of this folder."""
    text = resources.files("trueup.catalog").joinpath(file_name).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


@cache
def accelerators() -> dict[str, Accelerator]:
    """Every chip of the catalog by name."""
    rows = read_data("accelerators.json")["accelerators"]
    return {row["name"]: Accelerator.model_validate(row) for row in rows}


@cache
def instances() -> dict[str, Instance]:
    """Every instance of the catalog by name."""
    rows = read_data("instances.json")["instances"]
    return {row["name"]: Instance.model_validate(row) for row in rows}


def accelerator(name: str) -> Accelerator:
    """The chip of that catalog name. InputError, with the close names, for one the catalog does not hold."""
    found = accelerators().get(name.strip().lower())
    if found is None:
        raise InputError(unknown_name("accelerator", name, list(accelerators())))
    return found


def instance(name: str) -> Instance:
    """The instance type of that name. InputError, with the close names, for one the catalog does not hold."""
    found = instances().get(name.strip().lower())
    if found is None:
        raise InputError(unknown_name("instance", name, list(instances())))
    return found


def accelerator_for_device_name(device_name: str) -> Accelerator | None:
    """The chip a driver calls by this name; None for any other, however alike.

    The match is exact but for case and a leading vendor name: an H100 PCIe, an H200 NVL or a MIG slice has
    other limits than the SXM part, so it is not that part.
    """
    asked = _plain(device_name)
    for chip in accelerators().values():
        if asked in {_plain(known) for known in chip.device_names}:
            return chip
    return None


def _plain(device_name: str) -> str:
    return " ".join(device_name.lower().split()).removeprefix("nvidia ")


def unknown_name(what: str, name: str, known: list[str]) -> str:
    """That there is no such thing in the catalog, and which names are near."""
    close = difflib.get_close_matches(name.strip().lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"it holds {', '.join(sorted(known))}"
    return f"the catalog holds no {what} named '{name}'; {hint}"
