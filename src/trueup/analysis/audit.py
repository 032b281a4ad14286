"""The audit of a claim file: every claim with a verdict that is computed, and what it rests on.

`follows` means that some values which round to the published inputs give one that rounds to the published
figure; `does not follow` that none do. What is missing makes a claim one that `cannot be decided`, never a
wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction

from pydantic import ValidationError

from trueup.schema import InputError, Measurement
from trueup.schema.claim import Audit, AuditedClaim, Claim, ClaimFile, Figure, Finding, HardwareClaim, Verdict

from .audit_expression import is_name
from .audit_facts import hardware_findings, model_findings, name_findings
from .audit_file import LocatedClaims
from .audit_formula import Figures, Result
from .audit_interval import Interval
from .audit_physics import Limit, decoding_limit, memory_limit, training_limit
from .audit_quantity import Quantity, four_digits, read_quantity
from .audit_units import dims_text
from .audit_value import UndecidedError

ROUNDING = "range of rounding, no confidence interval"
_FACTOR_FROM = 2.0  # a gap of so much or more reads better as a factor


@dataclass(frozen=True)
class _Found:
    """A verdict on its way to an `AuditedClaim`."""

    verdict: Verdict
    reason: str
    recomputed: Measurement | None = None
    gap: Measurement | None = None
    limit: Limit | None = None
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()


def audit_claims(located: LocatedClaims, today: date) -> Audit:
    """InputError, with file and line, where something cannot be read, or a price is asked for of later than
    today; what merely cannot be decided has that for a verdict."""
    claims = located.claims
    with _at(located, ""):
        _check_names(claims)
    published, formulas = _quantities(located)
    with _at(located, ""):
        figures = Figures(published, formulas)
    audited = []
    for name, claim in claims.claims.items():
        with _at(located, f"claims.{name}"):
            try:
                one = _audited(name, claim, published.get(name), figures, today)
            except (ArithmeticError, ValidationError):  # each figure is a number: what they make may be none
                raise InputError("its figures make a number too large, or too small, to be meant") from None
            given = _sources(claims, figures.rests_on(claim.formula, claim.check))
            audited.append(one.model_copy(update={"sources": (*given, *one.sources)}))
    return Audit(title=claims.title, source=claims.source, claims=tuple(audited))


def _check_names(claims: ClaimFile) -> None:
    for name in (*claims.figures, *claims.claims):
        if not is_name(name):
            raise InputError(
                f"'{name}' cannot be a name in a formula: write letters, digits and _, such as p4d_price"
            )
    twice = claims.figures.keys() & claims.claims.keys()
    if twice:
        raise InputError(f"'{min(twice)}' is both a figure and a claim; give one of them another name")


def _quantities(located: LocatedClaims) -> tuple[dict[str, Quantity | None], dict[str, str]]:
    """Figures and what claims say by name, read; and the formulas that define others."""
    published: dict[str, Quantity | None] = {}
    formulas: dict[str, str] = {}
    for name, figure in located.claims.figures.items():
        given = Figure(value=figure) if isinstance(figure, str) else figure
        if given.formula is not None:
            formulas[name] = given.formula
            continue
        with _at(located, f"figures.{name}"):
            published[name] = read_quantity(given.value or "")
    for name, claim in located.claims.claims.items():
        if claim.says is not None:
            with _at(located, f"claims.{name}.says"):
                published[name] = read_quantity(claim.says)
                if published[name] is None:
                    raise InputError("a claim says something: give the figure as published")
    return published, formulas


def _sources(claims: ClaimFile, names: Iterable[str]) -> tuple[str, ...]:
    """Where the file says that these figures are from."""
    figures = ((name, claims.figures.get(name)) for name in names)
    return tuple(f"{name}: {one.source}" for name, one in figures if isinstance(one, Figure) and one.source)


@contextmanager
def _at(located: LocatedClaims, key: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{located.where(key)}: {error}") from None


def _audited(name: str, claim: Claim, said: Quantity | None, figures: Figures, today: date) -> AuditedClaim:
    try:
        found = _found(claim, said, figures, today)
    except UndecidedError as undecided:
        found = _Found("cannot be decided", undecided.reason, missing=undecided.missing)
    limit = found.limit
    sources = [*(limit.sources if limit else ()), *(one.source for one in found.findings if one.source)]
    return AuditedClaim(
        name=name,
        kinds=claim.kinds,
        quote=claim.quote,
        said=_said(claim),
        verdict=found.verdict,
        reason=found.reason,
        recomputed=found.recomputed,
        gap=found.gap,
        needed=limit.needed if limit else None,
        limit=limit.limit if limit else None,
        used_share=limit.used_share if limit else None,
        missing=found.missing,
        findings=found.findings,
        sources=tuple(dict.fromkeys(sources)),
        note=claim.note,
    )


def _found(claim: Claim, said: Quantity | None, figures: Figures, today: date) -> _Found:
    if claim.hardware is not None:
        return _from_findings(hardware_findings(claim.hardware, today))
    if claim.model is not None:
        return _from_findings(model_findings(claim.model))
    if claim.exists is not None:
        return _from_findings(name_findings(claim.exists))
    if claim.check is not None:
        return _checked(claim.check, figures)
    if claim.formula is None:
        return _limited(claim, said, figures)
    assert said is not None  # the schema's rule
    if len(claim.kinds) == 1:
        return _arithmetic(claim.formula, said, figures)
    return _arithmetic_within(claim, claim.formula, said, figures)


def _arithmetic_within(claim: Claim, formula: str, said: Quantity, figures: Figures) -> _Found:
    """Arithmetic and a physical limit together: what is impossible is so whatever its arithmetic."""
    limited = _limited(claim, said, figures)
    try:
        arithmetic = _arithmetic(formula, said, figures)
    except UndecidedError:
        if limited.verdict == "impossible":
            return limited
        raise
    if limited.verdict == "impossible" or (limited.verdict, arithmetic.verdict) == ("implausible", "follows"):
        return replace(limited, recomputed=arithmetic.recomputed, gap=arithmetic.gap)
    return replace(arithmetic, reason=f"{arithmetic.reason}; {limited.reason}", limit=limited.limit)


def _arithmetic(formula: str, said: Quantity, figures: Figures) -> _Found:
    result = figures.value(formula)
    if result.dims != said.dims:
        raise InputError(
            f"mixed units: it says {dims_text(said.dims)} ('{said.text}'), and '{formula}' gives "
            f"{dims_text(result.dims)}"
        )
    low, high = said.shown(result.interval.low), said.shown(result.interval.high)
    value = said.shown(result.nominal)
    recomputed = Measurement(
        value=value,
        unit=said.unit.text or "1",
        kind="derived",
        method=f"{formula}, from published figures",
        ci=(low, high),
        ci_method=ROUNDING,
    )
    words = f"gives {_with_unit(value, said)}"
    if low != high:
        words += f" ({four_digits(low)} to {four_digits(high)})"
    if said.interval.overlaps(result.interval):
        return _Found("follows", words, recomputed)
    gap, gap_words = _gap(said.interval.middle, result.nominal)
    if said.unit.text == "%":
        points = said.shown(said.interval.middle - result.nominal)
        gap_words = f"{four_digits(abs(points))} points {'more' if points > 0 else 'less'}"
    return _Found("does not follow", f"{words}; what is said is {gap_words}", recomputed, gap)


def _gap(said: Fraction, recomputed: Fraction) -> tuple[Measurement | None, str]:
    """How far what was said lies from what follows, as a share of what follows."""
    if recomputed == 0 or said / recomputed <= 0:
        return None, "not it"
    try:
        times, fraction = float(said / recomputed), float(recomputed / said)
    except OverflowError:
        return None, "beyond any comparison with it"
    share = times - 1
    gap = Measurement(value=share, unit="1", kind="derived", method="said / recomputed - 1")
    if times >= _FACTOR_FROM:
        return gap, f"{four_digits(times)} times that"
    if fraction >= _FACTOR_FROM:
        return gap, f"less by a factor of {four_digits(fraction)}"
    return gap, f"{abs(share):.1%} {'more' if share > 0 else 'less'}"


def _with_unit(value: float, said: Quantity) -> str:
    """$0.001797 per thousand tokens; 30.2%; 2.461 kWh."""
    unit, number = said.unit.text, four_digits(value)
    if unit[:1] in ("$", "€", "£"):
        return f"{unit[0]}{number}{unit[1:]}".strip()
    return f"{number}{unit}" if unit == "%" else f"{number} {unit}".strip()


def _checked(check: str, figures: Figures) -> _Found:
    sign, left, right, difference = figures.compared(check)
    words = f"the left side is {_in_root_units(left)}, the right side {_in_root_units(right)}"
    holds = _HOLDS[sign](difference.interval)
    if holds is None:
        return _Found("cannot be decided", f"{words}: the figures' rounding leaves both")
    return _Found("follows" if holds else "does not follow", words)


def _in_root_units(result: Result) -> str:
    number = four_digits(float(result.nominal))
    dims = dims_text(result.dims)
    return number if dims == "plain number" else f"{number} {dims}"


def _less(difference: Interval) -> bool | None:
    """Whether left < right for all that the rounding allows, for none, or for some (None)."""
    if difference.high < 0:
        return True
    return False if difference.low >= 0 else None


def _at_most(difference: Interval) -> bool | None:
    if difference.high <= 0:
        return True
    return False if difference.low > 0 else None


def _differs(difference: Interval) -> bool | None:
    if not difference.contains(0):
        return True
    return False if difference.exact else None


_HOLDS: dict[str, Callable[[Interval], bool | None]] = {
    "<": _less,
    "<=": _at_most,
    ">": lambda difference: _less(-difference),
    ">=": lambda difference: _at_most(-difference),
    "!=": _differs,
    "==": lambda difference: difference.contains(0),  # equal as far as the rounding shows
}


def _limited(claim: Claim, said: Quantity | None, figures: Figures) -> _Found:
    if claim.memory is not None:
        limit = memory_limit(claim.memory, said, figures)
    else:
        assert said is not None  # the schema's rule
        if claim.training is not None:
            limit = training_limit(claim.training, said, figures)
        else:
            assert claim.decoding is not None
            limit = decoding_limit(claim.decoding, said, figures)
    return _Found(limit.verdict, limit.reason, limit=limit)


def _from_findings(findings: tuple[Finding, ...]) -> _Found:
    wrong = [one for one in findings if one.agrees is False]
    unknown = [one for one in findings if one.agrees is None]
    shown = wrong or unknown or findings
    words = "; ".join(dict.fromkeys(f"{one.what.replace('_', ' ')}: {one.found}" for one in shown))
    if wrong:
        return _Found("does not hold", words, findings=findings)
    if not unknown:
        return _Found("holds", words, findings=findings)
    sure = [one.what.replace("_", " ") for one in findings if one.agrees]
    return _Found(
        "cannot be decided",
        f"{words}; what is said of {' and '.join(sure)} holds" if sure else words,
        findings=findings,
    )


def _said(claim: Claim) -> str:
    """What it says in a few words."""
    if claim.says is not None:
        return claim.says
    if claim.check is not None:
        return claim.check
    if claim.exists is not None:
        return claim.exists
    if claim.model is not None:
        return f"{claim.model.name}: {claim.model.parameters}"
    if claim.hardware is not None:
        return _hardware_said(claim.hardware)
    assert claim.memory is not None
    return (
        f"fits {claim.memory.on}"
        if claim.memory.count == "1"
        else f"fits {claim.memory.count} {claim.memory.on}"
    )


def _hardware_said(claim: HardwareClaim) -> str:
    subject = "instance" if claim.instance is not None else "chip"
    said = claim.model_dump(exclude_none=True, exclude={subject, "on_date"})
    words = ", ".join(f"{what.replace('_', ' ')} {value}" for what, value in said.items())
    return f"{getattr(claim, subject)}: {words}" + (f" on {claim.on_date}" if claim.on_date else "")
