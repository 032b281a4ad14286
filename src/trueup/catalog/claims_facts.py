"""What only published claims speak of: `claims_facts.json` beside this file. Its lists are not complete."""

from __future__ import annotations

from functools import cache

from trueup.schema import Frozen

from .lookup import read_data


class Cores(Frozen):
    """NeuronCores of one chip: physical, and as software sees them by default."""

    chip: str
    physical: int
    logical: int
    source: str
    as_of: str


class Machine(Frozen):
    """An instance without an accelerator."""

    name: str
    vcpu: int
    memory_gib: float
    source: str
    as_of: str


class VendorNames(Frozen):
    """Names in one vendor's software by kind, each with a remark: `absent` ones were looked for and not
    found."""

    vendor: str
    source: str
    as_of: str
    known: dict[str, dict[str, str]]
    removed: dict[str, dict[str, str]]
    absent: dict[str, dict[str, str]]


@cache
def claims_facts() -> tuple[dict[str, Cores], dict[str, Machine], tuple[VendorNames, ...]]:
    """Cores by chip, machines by name, names by vendor."""
    data = read_data("claims_facts.json")
    cores = (Cores.model_validate(row) for row in data["cores"])
    machines = (Machine.model_validate(row) for row in data["machines"])
    return (
        {one.chip: one for one in cores},
        {one.name: one for one in machines},
        tuple(VendorNames.model_validate(row) for row in data["names"]),
    )
