"""Which runs may be compared: what must agree, what is compared, what else is different around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from trueup.schema import Evaluation, Frozen, InputError, Measurement, RunHeader, RunRecord, unavailable
from trueup.schema.bounds import SECONDS, Bounds

from .aspect import Aspect
from .bill import started_at
from .load_compare import LOAD_ASPECTS, kind_of
from .totals import split_repeated

SIZES = Bounds(1e-100, 1e100)  # of what is compared: ratios of these are numbers


@dataclass(frozen=True)
class ComparedRun:
    """What a comparison needs of a run.

    `tokens_after`: useful tokens trained by the end of each step that was evaluated.
    """

    header: RunHeader
    measurements: Mapping[str, Measurement]
    evaluations: Sequence[Evaluation] = ()
    tokens_after: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """What is beyond any comparison is not known. InputError for a damaged wall clock."""
        wall_s = self.header.wall_s or 0.0
        SECONDS.require(wall_s, f"run {self.id} has a damaged record: its wall clock took {wall_s:g} s")
        if beyond := {name: one for name, one in self.measurements.items() if not _has_a_size(one)}:
            known = {name: _not_known(one) for name, one in beyond.items()}
            object.__setattr__(self, "measurements", {**self.measurements, **known})

    @classmethod
    def of(cls, record: RunRecord) -> ComparedRun:
        evaluated = {one.step for one in record.evaluations}
        total, after = 0, {0: 0} if 0 in evaluated else {}
        for step in split_repeated(record.steps)[0]:
            total += step.useful_tokens
            if step.step in evaluated:
                after[step.step] = total
        return cls(record.header, record.measurements, record.evaluations, after)

    @property
    def id(self) -> str:
        return self.header.id

    @property
    def host(self) -> str | None:
        """Name of the machine, None where it was not recorded."""
        found = dig(self.header.environment, "host.hostname")
        return found if isinstance(found, str) else None

    @cached_property
    def started(self) -> datetime:
        """InputError where the record does not say it."""
        started = started_at(self.header)
        if started is None:
            raise InputError(
                f"run {self.id} has no place among others: its start, {self.header.started_at!r}, is no "
                "instant; the record is damaged: import the run again from where it was made"
            )
        return started


def _has_a_size(one: Measurement) -> bool:
    return all(
        value is None or value == 0 or SIZES.hold(abs(value)) for value in (one.value, *(one.ci or ()))
    )


def _not_known(one: Measurement) -> Measurement:
    interval = f" ({one.ci[0]:g} to {one.ci[1]:g})" if one.ci is not None else ""
    reason = f"{one.value or 0.0:g}{interval} is beyond what can be compared"
    return unavailable(one.unit, reason, method=one.method, scope=one.scope, n=one.n)


@dataclass(frozen=True)
class Group:
    """Runs that are taken for repetitions of one thing. `left_out` did not finish."""

    name: str
    runs: tuple[ComparedRun, ...]
    left_out: tuple[ComparedRun, ...] = ()


class Difference(Frozen):
    """Something that is not the same in all groups: its values, in words, by group. `absent`: groups of which
    no record speaks of it, as an older one does not of a setting that came later."""

    key: str
    values: dict[str, str]
    absent: tuple[str, ...] = ()


def _of_recipe(*keys: str) -> Callable[[RunHeader], Any]:
    def value(header: RunHeader) -> Any:
        found = [dig(header.recipe, key) for key in keys]
        return None if all(one is None for one in found) else ", ".join(map(as_text, found))

    return value


def _architecture(header: RunHeader) -> Any:
    if header.model is None:
        return None
    sizes = header.model.model_dump(exclude={"parameters", "trainable_parameters", "lora_parameters"})
    name = as_text(dig(header.recipe, "model.path")).rstrip("/").rsplit("/", 1)[-1]
    return f"{name} ({', '.join(f'{key} {as_text(value)}' for key, value in sizes.items())})"


# What must agree for a cost per token to mean the same. A tokenizer is known by what it makes of the data (it
# is part of the data's digest) and by the size of the model's vocabulary.
ASPECTS: dict[str, Aspect] = {
    "data": Aspect(
        "prepared data (digest)", lambda h: h.dataset and h.dataset.digest, ("data", "model.path")
    ),
    "tokenizer": Aspect("size of the vocabulary", lambda h: h.model and h.model.vocab, ("model.path",)),
    "loss_mask": Aspect("tokens that carry loss", _of_recipe("data.loss_on"), ("data.loss_on",)),
    "sequence": Aspect(
        "longest example, and what becomes of longer ones",
        _of_recipe("data.max_length", "data.overlong"),
        ("data.max_length", "data.overlong"),
    ),
    "model": Aspect("base model", _architecture, ("model.path",)),
    "evaluation": Aspect(
        "tokens evaluated on at most", _of_recipe("evaluate.max_tokens"), ("evaluate.max_tokens",)
    ),
}


def require_comparable(
    groups: Sequence[Group], allowed: Iterable[str] = (), by: str | None = None
) -> list[Difference]:
    """What the runs differ in though it is not being compared, all of it allowed; InputError where some of it
    is not, or where some are loads and some trainings. What is decided by the setting `by`, by which they are
    grouped, is being compared."""
    allowed = set(allowed)
    aspects = LOAD_ASPECTS if kind_of(groups) == "load" else ASPECTS
    if unknown := sorted(allowed - aspects.keys()):
        raise InputError(
            f"--allow-difference {unknown[0]}: there is no such thing; it is one of {', '.join(aspects)}"
        )
    found: list[Difference] = []
    refused: list[Difference] = []
    for key, aspect in aspects.items():
        values = _by_group(groups, aspect.value)
        if len(set().union(*values.values())) < 2:
            continue
        one = Difference(key=key, values={group: _listed(held) for group, held in values.items()})
        under = by is not None and any(_within(by, setting) for setting in aspect.settings)
        (found if key in allowed or under else refused).append(one)
    if refused:
        raise InputError(_refusal(groups, refused, aspects))
    return found


def settings_compared(
    groups: Sequence[Group], left_out: Sequence[str] = ("name", "train.seed", "load.seed", "price", "quality")
) -> list[Difference]:
    """Recipe keys and choices that are not the same in all groups. The gate on quality asks models that are
    trained already."""

    def settings(header: RunHeader) -> dict[str, Any]:
        chosen = {f"choices.{name}": choice.get("value") for name, choice in header.choices.items()}
        return {**flat(header.recipe), **chosen}

    return differing(groups, settings, left_out)


def environment_differences(groups: Sequence[Group]) -> list[Difference]:
    """Everything around the runs that is not the same in all groups, but for what is new in every process."""
    return differing(groups, lambda header: flat(header.environment), _NEW_EACH_TIME)


_NEW_EACH_TIME = ("process", "load", "host.booted_at")


def differing(
    groups: Sequence[Group],
    settings: Callable[[RunHeader], Mapping[str, Any]],
    left_out: Sequence[str] = (),
) -> list[Difference]:
    """Keys whose values are not the same set in every group, but for those `left_out` and all below them."""
    of_group = [(group.name, [settings(run.header) for run in group.runs]) for group in groups]
    keys = dict.fromkeys(key for _, found in of_group for one in found for key in one)
    differences = []
    for key in keys:
        if any(_within(key, name) for name in left_out):
            continue
        some = of_group[0][1][0].get(key)
        if all(one.get(key) == some for _, found in of_group for one in found):
            continue  # most keys of most runs: nothing to put in words
        values = {name: {as_text(one.get(key)) for one in found} for name, found in of_group}
        if any(held != values[of_group[0][0]] for held in values.values()):
            listed = {name: _listed(held) for name, held in values.items()}
            absent = tuple(name for name, found in of_group if not any(_speaks_of(one, key) for one in found))
            differences.append(Difference(key=key, values=listed, absent=absent))
    return differences


def _speaks_of(settings: Mapping[str, Any], key: str) -> bool:
    """Whether the key is there, or stands in a section that is there as none, or is such a section."""
    parts = key.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return any(one in settings for one in above) or any(one.startswith(f"{key}.") for one in settings)


def regrouped(groups: Sequence[Group], by: str) -> list[Group]:
    """All runs of the groups by their value of `by`: `platform`, or a key of the recipe, the choices or the
    environment. InputError where none of the runs has it, or all have the same."""
    runs = [run for group in groups for run in group.runs]
    known = [setting_of(run.header, by) for run in runs]
    if all(value is None for value in known):
        raise InputError(
            f"--by {by}: none of the runs has it; give platform, a key of the recipe such as tune.rank, "
            "choices.NAME or environment.KEY"
        )
    names = [f"{by}={as_text(value)}" for value in known]
    gone = [run for group in groups for run in group.left_out]
    found = [
        Group(
            name,
            tuple(run for run, own in zip(runs, names, strict=True) if own == name),
            tuple(run for run in gone if f"{by}={as_text(setting_of(run.header, by))}" == name),
        )
        for name in dict.fromkeys(names)
    ]
    if len(found) == 1:
        raise InputError(
            f"--by {by}: all {len(runs)} finished runs have {names[0]}; there is nothing to compare"
        )
    return found


def setting_of(header: RunHeader, key: str) -> Any:
    """The value of `platform`, or of a dotted key: of the recipe (`recipe.` may be left out), of `choices` or
    of `environment`. None where the run has none."""
    if key == "platform":
        return platform_of(header)
    section, _, rest = key.partition(".")
    if section == "choices":
        return header.choices.get(rest.removesuffix(".value"), {}).get("value")
    if section == "environment":
        return dig(header.environment, rest)
    return dig(header.recipe, key.removeprefix("recipe."))


def platform_of(header: RunHeader) -> str | None:
    """Device and the instance it sits in: `cpu, m7g.large`; the device's name where there is no instance."""
    kind = dig(header.environment, "device.kind") or header.choices.get("device", {}).get("value")
    instance = dig(header.recipe, "platform.instance") or dig(header.environment, "instance.instanceType")
    name = instance or dig(header.environment, "device.name")
    return ", ".join(str(part) for part in (kind, name) if part) or None


def dig(tree: Any, key: str) -> Any:
    """The value at a dotted key of nested mappings, None where there is none."""
    for part in key.split("."):
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(part)
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts, as JSON has them, as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def as_text(value: Any) -> str:
    if value is None:
        return "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(as_text, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _by_group(groups: Sequence[Group], value: Callable[[RunHeader], Any]) -> dict[str, set[str]]:
    return {group.name: {as_text(value(run.header)) for run in group.runs} for group in groups}


_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def _listed(values: set[str], most: int = 4) -> str:
    """Of a SHA-256 as much as tells two apart."""
    shown = [_DIGEST.sub(r"\1…", value) for value in sorted(values)[:most]]
    return ", ".join(shown) + (f" and {len(values) - most} more" if len(values) > most else "")


def _within(key: str, name: str) -> bool:
    key = key.removeprefix("recipe.")
    return key == name or key.startswith(f"{name}.")


def _refusal(groups: Sequence[Group], refused: Sequence[Difference], aspects: Mapping[str, Aspect]) -> str:
    lines = []
    settings = {one.key: one for one in differing(groups, lambda header: flat(header.recipe))}
    for one in refused:
        values = "; ".join(f"{value} in {group}" for group, value in one.values.items())
        lines.append(f"  {one.key}, {aspects[one.key].meaning}: {values}")
        if one.key == "data":
            lines += [f"    {why}" for why in _why_data_differ(settings)]
    options = " ".join(f"--allow-difference {one.key}" for one in refused)
    return (
        "these runs differ in what is not being compared:\n"
        + "\n".join(lines)
        + "\nA difference in cost would not be the platform's or the setting's. To compare all the same: "
        + options
    )


def _why_data_differ(settings: Mapping[str, Difference]) -> Iterator[str]:
    found = [one for key, one in settings.items() if _within(key, "data") or key == "model.path"]
    for one in found:
        yield f"{one.key}: " + "; ".join(f"{value} in {group}" for group, value in one.values.items())
    if not found:
        yield "by the same settings: the source held something else (another file, another Python)"
