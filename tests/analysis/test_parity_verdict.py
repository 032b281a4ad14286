"""The verdict over two sides, from figures alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.parity import TOLERANCES, Parity, judge
from trueup.schema import InputError
from trueup.schema.parity import BatchFacts, Compared, SideFacts

BATCH = BatchFacts(
    source="a test", digest="d", arrays={}, rows=1, width=4, tokens=4, segments=1, supervised=3
)


def side(dtype: str = "float32", digest: str = "w") -> SideFacts:
    return SideFacts(
        subject="side",
        model="tiny",
        weights="its own",
        weights_digest=digest,
        device="cpu",
        device_name="a processor",
        precision="fp32",
        compute_dtype=dtype,
        attention="sdpa",
        compile="none",
        threads=1,
        softmax="observed",
        torch_version="2",
        trueup_version="0",
    )


def output(order: int, relative: float, nonfinite: object = None, max_abs: float | None = None) -> Compared:
    return Compared(
        name=f"m{order}",
        kind="module",
        order=order,
        how="observed",
        elements=4,
        max_abs=relative if max_abs is None else max_abs,
        relative=relative,
        nonfinite=nonfinite,  # type: ignore[arg-type]
    )


def verdict(
    *outputs: Compared, a: str = "float32", b: str = "float32", tolerance: float | None = None
) -> Parity:
    return judge(side(a), side(b), BATCH, outputs, (), tolerance=tolerance)


def test_the_worst_comes_first_and_the_first_in_order_is_named() -> None:
    found = verdict(output(0, 1e-7), output(1, 2e-4), output(2, 0.5), output(3, 3e-4))
    assert [one.name for one in found.compared] == ["m2", "m3", "m1", "m0"]
    assert (found.verdict, found.over, found.first_over) == ("over", 3, "m1")


def test_a_number_that_is_not_finite_is_over_any_tolerance_and_comes_before_all() -> None:
    found = verdict(output(0, 7.0), output(1, math.inf, "a"), tolerance=1e9)
    assert [one.name for one in found.compared] == ["m1", "m0"]
    assert (found.verdict, found.first_over, found.over) == ("over", "m1", 1)
    assert verdict(output(0, math.nan), tolerance=1e9).verdict == "over"


@pytest.mark.parametrize(
    ("a", "b", "limit", "words"),
    [
        ("float32", "float32", 1e-4, "the default of fp32, both sides"),
        ("bfloat16", "float32", 2e-2, "the default of bf16, the lower precision"),
        ("float32", "bfloat16", 2e-2, "the default of bf16, the lower precision"),
        ("bfloat16", "bfloat16", 2e-2, "the default of bf16, both sides"),
    ],
)
def test_the_tolerance_is_that_of_the_lower_precision(a: str, b: str, limit: float, words: str) -> None:
    found = verdict(output(0, 0.0), a=a, b=b)
    assert (found.tolerance, found.tolerance_reason) == (limit, words)
    assert verdict(output(0, 0.0), tolerance=0.5).tolerance_reason == "given on the command line"


def test_gradients_are_given_more_by_default_and_not_where_it_is_asked() -> None:
    of_layer = output(0, 5e-4)
    of_gradient = of_layer.model_copy(update={"kind": "gradient"})
    assert verdict(of_layer).verdict == "over"
    found = verdict(of_gradient)
    assert (found.verdict, found.gradient_tolerance) == ("within", pytest.approx(1e-3))
    asked = verdict(of_gradient, tolerance=1e-4)
    assert (asked.verdict, asked.first_over) == ("over", "m0 (gradient)")
    assert asked.is_over(of_gradient)


def test_identical_is_said_only_of_zeros() -> None:
    assert verdict(output(0, 0.0), output(1, 0.0)).identical
    assert not verdict(output(0, 0.0), output(1, 1e-12)).identical
    assert verdict(output(0, 0.0), tolerance=0.0).verdict == "within"


def test_refusals() -> None:
    with pytest.raises(InputError, match="no output in common"):
        verdict()
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="--tolerance"):
            verdict(output(0, 0.0), tolerance=wrong)
    with pytest.raises(InputError, match="no default tolerance for float16"):
        verdict(output(0, 0.0), a="float16")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from(sorted(TOLERANCES.values())))
def test_within_means_that_every_output_is(errors: list[float], limit: float) -> None:
    found = verdict(*(output(n, error) for n, error in enumerate(errors)), tolerance=limit)
    assert (found.verdict == "within") == all(error <= limit for error in errors)
    assert found.over == sum(error > limit for error in errors)
    assert [one.relative for one in found.compared] == sorted(errors, reverse=True)
