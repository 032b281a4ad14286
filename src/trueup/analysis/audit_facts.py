"""Claims about hardware, models and names against what is published of them.

The catalog has chips, instances, prices and models; `claims_facts.json` beside it has what only claims speak
of: cores, machines without an accelerator, and names in vendors' software. Those lists are not complete: a
name that was looked for and not found is listed as absent, with its source; one that is in no list cannot be
decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from fractions import Fraction

from trueup.catalog import Accelerator, Instance, accelerators, instances, staleness
from trueup.catalog.claims_facts import Machine, claims_facts
from trueup.catalog.lookup import Figure
from trueup.catalog.models import published_model, published_models
from trueup.catalog.price_book import PriceBook
from trueup.catalog.prices import published_prices
from trueup.schema import InputError, PriceRow
from trueup.schema.claim import Finding, HardwareClaim, ModelClaim

from .audit_physics import published_dims
from .audit_quantity import Quantity, four_digits, read_quantity
from .audit_units import dims_text, read_unit
from .audit_value import UndecidedError

_NO_ACCELERATOR = "it has no accelerator"
_UNITS = {"chip_memory": "byte", "memory": "byte", "bandwidth": "byte/s", "bf16": "FLOP/s", "fp8": "FLOP/s"}


@dataclass(frozen=True)
class _Subject:
    """What a hardware claim is about."""

    words: str
    chip: Accelerator | None
    instance: Instance | None
    machine: Machine | None
    source: str


def hardware_findings(claim: HardwareClaim, today: date) -> tuple[Finding, ...]:
    """One finding for each thing said. UndecidedError for what the catalog does not hold; InputError where a
    figure is none or in the wrong unit, and for a price of later than today."""
    return tuple(_hardware_findings(claim, _subject(claim), today))


def model_findings(claim: ModelClaim) -> tuple[Finding, ...]:
    """Its number of parameters. Errors as above."""
    model = published_model(claim.name)
    if model is None:
        raise UndecidedError(
            f"the catalog has no model named '{claim.name}'; it has {', '.join(sorted(published_models()))}"
        )
    said, count = _read(claim.parameters, ("parameter", "")), published_dims(model).parameters
    found = f"{count:,}, counted from its dimensions"
    return (_finding("parameters", said, found, (count,), f"{model.source}, {model.as_of}"),)


def name_findings(name: str) -> tuple[Finding, ...]:
    """Whether there is such a variable, flag, tool, chip or instance. UndecidedError where no list has it."""
    bare = name.strip().partition("=")[0]
    if bare.startswith("-"):  # a flag's value may follow it after a space
        bare = bare.partition(" ")[0]
    if bare.lower() in {**accelerators(), **instances(), **claims_facts()[1]}:
        return (Finding(what="name", said=name, found="in the catalog", agrees=True, source="the catalog"),)
    for names in claims_facts()[2]:
        source = f"{names.source}, {names.as_of}"
        for lists, words, agrees in (
            (names.known, "{vendor} has this {kind}", True),
            (names.removed, "{vendor} had this {kind}", False),
            (names.absent, "{vendor} has no such {kind}: looked for and not found", False),
        ):
            for kind, known in lists.items():
                if bare in known:
                    found = words.format(vendor=names.vendor, kind=kind)
                    remark = f"; {known[bare]}" if known[bare] else ""
                    return (
                        Finding(what=kind, said=name, found=found + remark, agrees=agrees, source=source),
                    )
    raise UndecidedError(f"'{bare}' is in none of the lists of names, which are not complete")


def _subject(claim: HardwareClaim) -> _Subject:
    if claim.instance is not None:
        name = claim.instance.strip().lower()
        if name in instances():
            instance = instances()[name]
            chip = accelerators().get(instance.chip or "")
            source = f"{instance.memory.source}, {instance.memory.as_of}"
            return _Subject(instance.name, chip, instance, None, source)
        machine = claims_facts()[1].get(name)
        if machine is None:
            raise UndecidedError(f"the catalog holds no instance named '{claim.instance}'")
        return _Subject(machine.name, None, None, machine, f"{machine.source}, {machine.as_of}")
    name = (claim.chip or "").strip().lower()
    if name not in accelerators():
        raise UndecidedError(f"the catalog holds no chip named '{claim.chip}'")
    chip = accelerators()[name]
    return _Subject(chip.title, chip, None, None, f"{chip.memory.source}, {chip.memory.as_of}")


def _hardware_findings(claim: HardwareClaim, subject: _Subject, today: date) -> Iterator[Finding]:
    if claim.instance is not None and claim.chip is not None:
        yield _chip(claim.chip, subject)
    if claim.chips is not None:
        yield _chips(_read(claim.chips, ("",)), subject)
    if claim.cores is not None:
        yield _cores(_read(claim.cores, ("",)), subject)
    if claim.memory is not None:
        yield _memory(_read(claim.memory, ("byte",)), subject)
    for what, text in (
        ("chip_memory", claim.chip_memory),
        ("bandwidth", claim.bandwidth),
        ("bf16", claim.bf16),
        ("fp8", claim.fp8),
    ):
        if text is not None:
            yield _of_chip(what, _read(text, (_UNITS[what],)), subject)
    if claim.price is not None:
        day = None if claim.on_date is None else _day(claim.on_date, today)
        yield _price(_read(claim.price, ("USD/h",)), subject, day)


def _chip(said: str, subject: _Subject) -> Finding:
    """By a chip's name or title. Another name may mean the same chip: that is for the reader to say."""
    name = said.strip().lower()
    if subject.instance is None or subject.instance.chip is None:
        return Finding(what="chip", said=said, found=_NO_ACCELERATOR, agrees=False, source=subject.source)
    found = f"{subject.instance.chip_count} {_title(subject)}"
    agrees: bool | None = name in {subject.instance.chip, _title(subject).lower()}
    if not agrees and name not in {*accelerators(), *(one.title.lower() for one in accelerators().values())}:
        found, agrees = f"{found}; the catalog holds no chip named '{said}'", None
    return Finding(what="chip", said=said, found=found, agrees=agrees, source=subject.source)


def _chips(said: Quantity, subject: _Subject) -> Finding:
    if subject.instance is None or subject.instance.chip is None:
        return Finding(
            what="chips", said=said.text, found=_NO_ACCELERATOR, agrees=False, source=subject.source
        )
    count = subject.instance.chip_count
    return _finding("chips", said, f"{count} {_title(subject)}", (count,), subject.source)


def _cores(said: Quantity, subject: _Subject) -> Finding:
    cores = claims_facts()[0].get(subject.chip.name) if subject.chip else None
    if cores is None:
        found = "no count of its cores is kept here"
        return Finding(what="cores", said=said.text, found=found, agrees=None, source=subject.source)
    chips = subject.instance.chip_count if subject.instance else 1
    physical, logical = cores.physical * chips, cores.logical * chips
    found = f"{physical} physical, {logical} logical by default" if physical != logical else f"{physical}"
    return _finding("cores", said, found, (physical, logical), f"{cores.source}, {cores.as_of}")


def _memory(said: Quantity, subject: _Subject) -> Finding:
    if subject.machine is not None:
        return _binary("memory", said, subject.machine.memory_gib, subject.source)
    assert subject.instance is not None
    return _published("memory", said, subject.instance.memory)


def _of_chip(what: str, said: Quantity, subject: _Subject) -> Finding:
    if subject.chip is not None:
        chip = subject.chip
        figures = {
            "chip_memory": chip.memory,
            "bandwidth": chip.bandwidth,
            "bf16": chip.bf16_dense,
            "fp8": chip.fp8_dense,
        }
        return _published(what, said, figures[what])
    if subject.instance is not None and subject.instance.chip is not None:
        found = f"no figures of {subject.instance.chip} are in the catalog"
        return Finding(what=what, said=said.text, found=found, agrees=None, source=subject.source)
    found = _NO_ACCELERATOR
    if subject.machine is not None and what == "chip_memory":
        found += f", and {four_digits(subject.machine.memory_gib)} GiB of ordinary memory"
    return Finding(what=what, said=said.text, found=found, agrees=False, source=subject.source)


def _published(what: str, said: Quantity, figure: Figure) -> Finding:
    source = f"{figure.source}, {figure.as_of}"
    if figure.value is None or figure.in_base_units is None:
        return Finding(what=what, said=said.text, found=figure.reason or "", agrees=None, source=source)
    if figure.unit.startswith("GiB"):
        return _binary(what, said, figure.value, source, figure.unit.removeprefix("GiB"))
    return _finding(what, said, f"{figure.value:g} {figure.unit}", (figure.in_base_units,), source)


def _binary(what: str, said: Quantity, gib: float, source: str, per: str = "") -> Finding:
    """People say GB of what is counted in GiB: either is taken for right."""
    return _finding(what, said, f"{four_digits(gib)} GiB{per}", (gib * 2.0**30, gib * 1e9), source)


def _day(text: str, today: date) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise InputError(f"on_date: '{text}' is no date, such as 2025-05-31") from None
    if day > today:
        raise InputError(f"on_date: {text} lies in the future: nobody knows a price of then")
    return day


def _price(said: Quantity, subject: _Subject, day: date | None) -> Finding:
    """On demand, in any region, on a day, or without one at any time: a price that was never seen, or not
    for long, may still have been one."""
    rows = [row for row in published_prices() if (row.instance, row.model) == (subject.words, "on_demand")]
    if day is not None:
        rows = [held.row for held in PriceBook(published=rows).in_force(day)]
    priced = [row for row in rows if row.amount_per_hour is not None]
    equal = [row for row in priced if said.interval.contains(_amount(row))][:1]
    shown = equal or rows
    found = "; ".join(_row_words(row, day) for row in shown) or f"no price of {day or 'any day'} is known"
    agrees: bool | None = True if equal else None
    if not equal and day is None:
        found += ": say `on_date`"
    elif not equal and priced and not any(staleness(row, day) for row in priced if day):
        agrees = False
    source = f"{shown[0].source}, {shown[0].as_of}" if shown else subject.source
    return Finding(what="price", said=said.text, found=found, agrees=agrees, source=source)


def _amount(row: PriceRow) -> Fraction:
    """In root units, without the rounding of a binary fraction."""
    return Fraction(repr(row.amount_per_hour or 0.0)) * read_unit(f"{row.currency}/h").factor


def _row_words(row: PriceRow, day: date | None) -> str:
    if row.amount_per_hour is None:
        return f"{row.reason}, {row.region}"
    span = f" from {row.valid_from}" if row.valid_from else ""
    span += f" to {row.valid_to}" if row.valid_to else ""
    old = staleness(row, day) if day else None
    words = f"{four_digits(row.amount_per_hour)} {row.unit} on-demand, {row.region}{span}"
    return f"{words}; {old}" if old else words


def _finding(what: str, said: Quantity, found: str, values: tuple[float, ...], source: str) -> Finding:
    agrees = any(said.interval.contains(value) for value in values)
    return Finding(what=what, said=said.text, found=found, agrees=agrees, source=source)


def _title(subject: _Subject) -> str:
    return subject.chip.title if subject.chip else (subject.instance.chip or "" if subject.instance else "")


def _read(text: str, units: tuple[str, ...]) -> Quantity:
    """A figure in root units, which must be those of one of `units`."""
    quantity = read_quantity(text)
    if quantity is None:
        raise InputError("a claim about hardware or a model says what it claims; leave out what it does not")
    wanted = [read_unit(unit).dims for unit in units]
    if quantity.dims not in wanted:
        raise InputError(f"'{text}' is in {dims_text(quantity.dims)}, not in {dims_text(wanted[0])}")
    return quantity
