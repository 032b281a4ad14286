"""Whether a run repeated an earlier one: measurement by measurement, beside what is different around them.

What to expect of one more run follows from how much earlier repeats differed (a prediction interval), where
at least three are known. Else only the interval of the run's own steps is there, which knows nothing of how
runs differ and says so: `within_run`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from trueup.schema import Frozen, InputError, Measurement, RunHeader

from .comparable import ComparedRun, Difference, Group, environment_differences, settings_compared
from .verdicts import FEWEST, LEVEL, prediction_interval

DEVIATES = 0.05  # relative to the earlier value; of a share, in points of a hundred percent
_BETWEEN, _WITHIN = "between_runs", "within_run"

Verdict = Literal["identical", "within", "outside", "no interval", "not measured now", "not measured then"]


class Repeated(Frozen):
    """One measurement of both runs. `expected` is where the new value lies with 95% probability, made from
    what `expected_from` says; `deviation` is the new value over the old less one, of a share new less old."""

    name: str
    then: Measurement
    now: Measurement
    expected: tuple[float, float] | None
    expected_from: str | None
    deviation: float | None
    deviates: bool
    verdict: Verdict


class Reproduction(Frozen):
    """A run beside its repetition. `repeats`: the runs whose spread is the expected one, if it is."""

    original: str
    again: str
    repeats: tuple[str, ...]
    measurements: tuple[Repeated, ...]
    environment: tuple[Difference, ...]
    settings: tuple[Difference, ...]
    summary: str
    notes: tuple[str, ...]


def reproduction(
    original: ComparedRun, again: ComparedRun, repeats: Iterable[ComparedRun] = ()
) -> Reproduction:
    """The comparison of a run with its repetition. `repeats` are other runs of the same recipe on the
    original's host; those that did not finish and the repetition itself are left out. InputError where it is
    one run twice, or one of the two has no measurements."""
    if original.id == again.id:
        raise InputError(f"run {original.id} is no repetition of itself: name another run with --against")
    for run in (original, again):
        if not run.measurements:
            raise InputError(
                f"run {run.id} ({run.header.name}) {run.header.state} and left no measurements to compare"
            )
    earlier = [original, *_earlier(original, again, repeats)]
    names = [name for name in original.measurements if name in again.measurements]
    rows = [_repeated(name, original, again, earlier) for name in names]
    groups = [Group(f"{run.header.name} ({run.id})", (_as_decided(run),)) for run in (original, again)]
    return Reproduction(
        original=original.id,
        again=again.id,
        repeats=tuple(run.id for run in earlier) if len(earlier) >= FEWEST else (),
        measurements=tuple(rows),
        environment=tuple(environment_differences(groups)),
        settings=tuple(settings_compared(groups, left_out=("name",))),
        summary=_summary(rows, len(earlier)),
        notes=tuple(_notes(original, again)),
    )


def recipe_to_repeat(header: RunHeader) -> dict[str, Any]:
    """The run's recipe with what it chose for itself written in, so that the repetition chooses the same.
    InputError where the run was of several processes, which another program starts, or a load on a server."""
    if header.kind == "load":
        raise InputError(
            f"run {header.id} was a load on a server, which may not be there any more: put it on again with "
            "`trueup load`, and set the two side by side with `trueup compare`"
        )
    processes = (header.environment.get("world") or {}).get("size", 1)
    if isinstance(processes, int) and processes > 1:
        raise InputError(
            f"run {header.id} was of {processes} processes: start it again under torchrun as it was, and "
            f"compare the two with `trueup reproduce {header.id} --against RUN`"
        )
    return {**_decided(header), "name": header.name}


def _as_decided(run: ComparedRun) -> ComparedRun:
    return replace(run, header=run.header.model_copy(update={"recipe": _decided(run.header)}))


def _decided(header: RunHeader) -> dict[str, Any]:
    """The recipe with what was chosen in place of `auto`."""
    recipe = dict(header.recipe)
    chosen = {name: choice.get("value") for name, choice in header.choices.items()}
    fixed: dict[str, dict[str, Any]] = {
        "platform": {"device": chosen.get("device"), "threads": _whole(chosen.get("threads"))},
        "precision": {"policy": chosen.get("precision")},
        "compile": {"mode": chosen.get("compile")},
        "shapes": _shapes(header),
    }
    for section, values in fixed.items():
        known = {key: value for key, value in values.items() if value is not None}
        recipe[section] = {**(recipe.get(section) or {}), **known}
    return recipe


def _shapes(header: RunHeader) -> dict[str, Any]:
    plan = header.shape_plan
    if plan is None:
        return {}
    buckets = [width for _, width in plan.full] if plan.strategy == "bucket" else None
    return {
        "strategy": plan.strategy,
        "buckets": buckets,
        "tokens_per_microbatch": plan.tokens_per_microbatch,
    }


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, str | int) and str(value).isdigit() else None


def _earlier(original: ComparedRun, again: ComparedRun, repeats: Iterable[ComparedRun]) -> list[ComparedRun]:
    ours = {original.id, again.id}
    return [
        run
        for run in repeats
        if run.id not in ours and run.header.state == "finished" and run.host == original.host
    ]


def _repeated(
    name: str, original: ComparedRun, again: ComparedRun, earlier: Sequence[ComparedRun]
) -> Repeated:
    then, now = original.measurements[name], again.measurements[name]
    expected, source = _expected(name, then, now, earlier)
    deviation = _deviation(name, then.value, now.value)
    return Repeated(
        name=name,
        then=then,
        now=now,
        expected=expected,
        expected_from=source,
        deviation=deviation,
        deviates=deviation is not None and abs(deviation) > DEVIATES,
        verdict=_verdict(then.value, now.value, expected),
    )


def _expected(
    name: str, then: Measurement, now: Measurement, earlier: Sequence[ComparedRun]
) -> tuple[tuple[float, float] | None, str | None]:
    """(interval, what it is made from), both None where there is neither."""
    known = [
        one.value
        for run in earlier
        if (one := run.measurements.get(name)) is not None and one.value is not None
    ]
    if len(known) >= FEWEST:
        return prediction_interval(known), f"{_BETWEEN}: {len(known)} earlier runs"
    if then.value is None or now.value is None or min(then.value, now.value) <= 0:
        return None, None
    if then.ci is None or not (then.ci_method or "").startswith(_WITHIN) or then.ci[0] <= 0:
        return None, None
    reaches = [_reach(one) for one in (then, now) if one.ci is not None and one.ci[0] > 0]
    reach = math.sqrt(math.fsum(one**2 for one in reaches))
    method = f"{_WITHIN}: how runs differ is not in it"
    return (then.value * math.exp(-reach), then.value * math.exp(reach)), method


def _reach(one: Measurement) -> float:
    """Half the width of the interval's logarithm, its longer side."""
    assert one.value is not None
    assert one.ci is not None
    return max(math.log(one.ci[1] / one.value), math.log(one.value / one.ci[0]))


def _deviation(name: str, then: float | None, now: float | None) -> float | None:
    if then is None or now is None:
        return None
    if name.endswith("_share"):
        return now - then
    if then == now:
        return 0.0
    return now / then - 1 if then > 0 else None


def _verdict(then: float | None, now: float | None, expected: tuple[float, float] | None) -> Verdict:
    if now is None:
        return "not measured now"
    if then is None:
        return "not measured then"
    if then == now:
        return "identical"
    if expected is None:
        return "no interval"
    low, high = expected
    at_an_end = any(math.isclose(now, end, rel_tol=1e-9) for end in expected)
    return "within" if low <= now <= high or at_an_end else "outside"


def _summary(rows: Sequence[Repeated], earlier: int) -> str:
    both = [row for row in rows if row.then.value is not None and row.now.value is not None]
    counts = {
        verdict: sum(row.verdict == verdict for row in both)
        for verdict in ("identical", "within", "outside", "no interval")
    }
    judged = counts["within"] + counts["outside"]
    source = (
        f"the spread of {earlier} earlier runs"
        if earlier >= FEWEST
        else f"within one run only: {FEWEST} earlier runs of this recipe would tell how runs differ"
    )
    chance = f", and {judged * LEVEL:.0f} would be outside by chance" if counts["outside"] else ""
    return (
        f"of {len(both)} measurements {counts['identical']} are identical, {counts['within']} lie within the "
        f"expected interval and {counts['outside']} outside of it{chance}; {counts['no interval']} have none "
        f"(expected: {source}); {sum(row.deviates for row in both)} deviate by more than {DEVIATES:.0%}"
    )


def _notes(original: ComparedRun, again: ComparedRun) -> Iterable[str]:
    for run in (original, again):
        if run.header.state != "finished":
            yield f"run {run.id} {run.header.state}: {run.header.reason or 'no reason was recorded'}"
    then, now = (run.header.dataset.digest if run.header.dataset else None for run in (original, again))
    if then != now:
        yield "the data were not the same: the source gives other records now"
