"""Formulas over rounded figures: the range contains the truth and is no wider than it must be; what is no
arithmetic, mixes units, or leads in a circle is refused."""

from __future__ import annotations

from fractions import Fraction
from operator import add, mul, sub, truediv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.audit_expression import Expression, Name, Number, Operation, parse_formula
from trueup.analysis.audit_formula import Figures, Result
from trueup.analysis.audit_interval import Interval
from trueup.analysis.audit_quantity import read_quantity
from trueup.analysis.audit_value import UndecidedError
from trueup.schema import InputError

LETTERS = ("a", "b", "c")


def figures(formulas: dict[str, str] | None = None, **texts: str) -> Figures:
    return Figures({name: read_quantity(text) for name, text in texts.items()}, formulas or {})


def result(formula: str, **texts: str) -> Result:
    return figures(**texts).value(formula)


def ends(formula: str, **texts: str) -> tuple[float, float]:
    interval = result(formula, **texts).interval
    return float(interval.low), float(interval.high)


# --- ranges -----------------------------------------------------------------------------------------------


def test_a_figure_that_is_mentioned_twice_is_one_figure() -> None:
    low, high = ends("c / (c + r)", c="0.9 s", r="0.4 s")
    assert (low, high) == pytest.approx((0.85 / (0.85 + 0.45), 0.95 / (0.95 + 0.35)))


def test_a_figure_less_itself_is_nothing() -> None:
    assert ends("a - a", a="3.3") == (0, 0)


def test_a_defined_figure_carries_where_it_comes_from() -> None:
    found = figures({"total": "a + b"}, a="0.9 s", b="0.4 s").value("a / total")
    assert float(found.interval.high) == pytest.approx(0.95 / (0.95 + 0.35))


def test_where_a_slope_changes_sign_the_range_is_found_by_halving() -> None:
    low, high = ends("x * (1 - x)", x="0.5")
    assert high == pytest.approx(0.25, abs=1e-3)
    assert low == pytest.approx(0.45 * 0.55, abs=1e-3)


def test_the_nominal_value_is_of_the_figures_as_written() -> None:
    assert result("a / b", a="1.0", b="3").nominal == Fraction(1, 3)


@st.composite
def formulas(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([*LETTERS, "2", "0.5"]))
    left, right = draw(formulas(depth=depth - 1)), draw(formulas(depth=depth - 1))
    kind = draw(st.sampled_from(["+", "-", "*", "/", "min", "max", "**"]))
    if kind in ("min", "max"):
        return f"{kind}({left}, {right})"
    if kind == "**":
        return f"({left}) ** {draw(st.integers(-2, 3))}"
    return f"({left}) {kind} ({right})"


def in_one_point(expression: Expression, values: dict[str, Fraction]) -> Fraction:
    match expression:
        case Number(value):
            return value
        case Name(name):
            return values[name]
        case Operation(operator, left, right):
            a, b = in_one_point(left, values), in_one_point(right, values)
            if operator == "**":
                return a ** int(b)
            return {"+": add, "-": sub, "*": mul, "/": truediv, "min": min, "max": max}[operator](a, b)


hundredths = st.integers(0, 900)


@given(
    formulas(),
    st.tuples(*[st.tuples(hundredths, hundredths).map(sorted) for _ in LETTERS]),
    st.tuples(*[st.fractions(0, 1, max_denominator=16) for _ in LETTERS]),
)
def test_the_range_contains_the_truth(
    formula: str, spans: tuple[list[int], ...], places: tuple[Fraction, ...]
) -> None:
    texts, truth = {}, {}
    for name, (low, high), place in zip(LETTERS, spans, places, strict=True):
        texts[name] = f"{low / 100:.2f} to {high / 100:.2f}"
        truth[name] = Fraction(low, 100) + Fraction(high - low, 100) * place
    try:
        found = result(formula, **texts)
    except (UndecidedError, InputError):
        return  # a divisor that may be zero
    assert found.interval.contains(in_one_point(parse_formula(formula), truth))


# --- units ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("formula", ["a + b", "a - b", "min(a, b)", "max(a, b)", "remainder(a, b)"])
def test_mixed_units_are_refused(formula: str) -> None:
    with pytest.raises(InputError, match="mixed units"):
        result(formula, a="3 USD", b="4 h")


def test_mixed_currencies_are_refused() -> None:
    with pytest.raises(InputError, match="mixed units: dollar and euro"):
        result("a + b", a="$3", b="€4")


def test_a_number_and_a_figure_with_a_unit_are_mixed_units() -> None:
    with pytest.raises(InputError, match="mixed units"):
        result("a + 1", a="3 USD")


def test_powers_of_units_are_told_in_words() -> None:
    hours = read_quantity("3 h")
    assert hours is not None
    with pytest.raises(InputError, match=r"second\^2 and second cannot be added"):
        Figures({"t": hours}, {}).value("t * t + t")


def test_a_minus_sign_has_no_unit() -> None:
    assert ends("-a", a="exactly 3 USD") == (-3, -3)


# --- what is no formula -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("", "is no formula"),
        ("a +", "is no formula"),
        ("a b", "is no formula"),
        ("x + 1", "unknown quantity 'x'"),
        ("sqrt(a)", "unknown function 'sqrt'"),
        ("a.real", "no arithmetic"),
        ("a[0]", "no arithmetic"),
        ("[a]", "no arithmetic"),
        ("'a'", "no arithmetic"),
        ("True", "no arithmetic"),
        ("1j", "no arithmetic"),
        ("a if a else a", "no arithmetic"),
        ("lambda: a", "no arithmetic"),
        ("(a := 3)", "no arithmetic"),
        ("a and a", "no arithmetic"),
        ("a % 2", "no arithmetic"),
        ("a // 2", "no arithmetic"),
        ("a < 2", "no arithmetic"),
        ("f'{a}'", "no arithmetic"),
        ("__import__('os').system('true')", "unknown function"),
        ("().__class__.__bases__[0].__subclasses__()", "unknown function"),
        ("min(a)", "takes two values"),
        ("min(a, a, a)", "takes two values"),
        ("max(*a, a)", "no arithmetic"),
        ("a ** a", "exponent"),
        ("a ** 0.5", "exponent"),
        ("a ** 9999999999", "exponent"),
        ("9 ** 9 ** 9", "exponent"),
        ("((((a ** 8) ** 8) ** 8) ** 8) ** 8", "too long to be meant"),
        ("1e400", "exponent"),
        ("9" * 60, "digits"),
        ("a + " * 200 + "a", "at most 500 characters"),
        ("(" * 300 + "a" + ")" * 150, "is no formula"),
    ],
)
def test_what_is_no_arithmetic_is_refused(formula: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        result(formula, a="3.3")


@pytest.mark.parametrize("formula", ["-" * 498 + "a", "min(1, " * 60 + "a" + ")" * 60])
def test_what_is_nested_deeply_is_worked_out(formula: str) -> None:
    assert result(formula, a="exactly 0.5").nominal == Fraction(1, 2)


def test_a_name_is_not_looked_up_anywhere_else() -> None:
    with pytest.raises(InputError, match="unknown quantity 'open'"):
        result("open", a="3.3")


def test_a_near_name_is_offered() -> None:
    with pytest.raises(InputError, match="did you mean gpu_price"):
        result("gpu_prise * 2", gpu_price="$3")


def test_division_by_zero_is_bad_input() -> None:
    with pytest.raises(InputError, match="division by zero"):
        result("1 / (a - a)", a="3")


@pytest.mark.parametrize("formula", ["a / b", "a / (2 * b)", "a * b ** -1", "a / (b / a)"])
def test_a_divisor_written_as_0_is_bad_input_and_named(formula: str) -> None:
    with pytest.raises(InputError, match=r"division by zero: .*b is '0 h'"):
        result(formula, a="$3", b="0 h")


@pytest.mark.parametrize("zero", ["0 tokens", "0 h", "$0", "0.00 h"])
def test_nothing_over_nothing_is_bad_input(zero: str) -> None:
    with pytest.raises(InputError, match="division by zero"):
        result("a / b", a="$0", b=zero)


@pytest.mark.parametrize("around_zero", ["0 ± 1 h", "0 to 1 h", "about 1 h"])
def test_a_divisor_given_as_a_range_with_zero_in_it_leaves_it_undecided(around_zero: str) -> None:
    with pytest.raises(UndecidedError, match="may divide by zero"):
        result("a / b", a="$3", b=around_zero)


def test_a_zero_that_is_no_divisor_is_no_slip() -> None:
    with pytest.raises(UndecidedError, match="may divide by zero"):
        result("a / (b - c)", a="$0", b="5 h", c="5 h")


def test_a_divisor_that_may_be_zero_leaves_it_undecided() -> None:
    with pytest.raises(UndecidedError, match="may divide by zero"):
        result("1 / (a - b)", a="3.3", b="3.3")


@pytest.mark.parametrize(
    "formulas", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b + 1", "b": "c * 2", "c": "a"}], ids=len
)
def test_a_circular_definition_is_refused(formulas: dict[str, str]) -> None:
    with pytest.raises(InputError, match="circular definition: a → "):
        figures(formulas)


def test_many_definitions_of_two_each_take_no_time() -> None:
    """Two to the power of 25 ways lead down."""
    chain = {f"x{n}": f"x{n + 1} + x{n + 1}" for n in range(25)}
    found = figures({**chain, "x25": "a"}, a="exactly 1").value("x0")
    assert found.nominal == 2**25


def test_a_chain_of_too_many_definitions_is_refused() -> None:
    with pytest.raises(InputError, match="more than 30 formulas in a row"):
        figures({**{f"x{n}": f"x{n + 1}" for n in range(40)}, "x40": "1"})


def test_what_is_not_given_is_missing() -> None:
    with pytest.raises(UndecidedError) as undecided:
        figures({"both": "a * b"}, a="3", b="not given").value("both")
    assert undecided.value.missing == ("b",)


def test_a_number_in_a_formula_is_exact() -> None:
    assert result("0.1 + 0.2").interval == Interval.exactly(Fraction(3, 10))


def test_the_remainder_is_of_exact_figures_only() -> None:
    assert ends("remainder(a, b)", a="exactly 78 GiB", b="exactly 64 MiB") == (0, 0)
    with pytest.raises(UndecidedError, match="exactly"):
        result("remainder(a, b)", a="78 GiB", b="exactly 64 MiB")


def test_parsing_alone_finds_what_is_no_arithmetic() -> None:
    with pytest.raises(InputError, match="unknown function"):
        parse_formula("eval('1')")


def test_an_even_power_of_a_range_around_zero_ends_at_zero() -> None:
    assert (Interval(Fraction(-1), Fraction(2)) ** 2) == Interval(Fraction(0), Fraction(4))
