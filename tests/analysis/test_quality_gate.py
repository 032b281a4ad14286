"""The gate's verdict from what was observed: each limit by itself, figures with n and interval, the order in
which reasons are read."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.names_quality import QUALITY_NAMES
from trueup.analysis.quality_gate import judge
from trueup.schema.quality import (
    ContextFacts,
    MissingContext,
    Observed,
    QualityLimits,
    TaskFacts,
)
from trueup.schema.quantization import LayerError

LIMITS = QualityLimits()
NAN = math.nan


def context(**changes: Any) -> ContextFacts:
    """Of a model that is near its original."""
    facts: dict[str, Any] = {
        "context": "short",
        "length": 64,
        "tokens": 252,
        "nll_original": (2.0, 2.2, 1.9, 2.1),
        "nll_quantised": (2.01, 2.2, 1.91, 2.1),
        "kl": (0.002, 0.003, 0.001, 0.002),
        "top_k": 10,
        "top_k_overlap": (0.98, 0.97, 0.99, 0.98),
        "same_choice": (0.99, 0.98, 1.0, 0.99),
        "greedy_match": (16, 12, 16),
        "greedy_tokens": 16,
        "not_finite": 0,
        "same_token": 5,
        "same_token_share": 0.1,
        "same_token_share_original": 0.1,
    }
    return ContextFacts(**{**facts, **changes})


def observed(*contexts: ContextFacts, **changes: Any) -> Observed:
    layers = (LayerError(name="layers.0.up", error=0.01), LayerError(name="layers.1.down", error=0.02))
    facts: dict[str, Any] = {"held_out": "rows", "contexts": contexts or (context(),), "layers": layers}
    return Observed(**{**facts, **changes})


def test_a_model_near_its_original_is_accepted_without_reasons() -> None:
    found = judge(observed(), LIMITS)
    assert (found.verdict, found.reasons) == ("accepted", ())
    assert all(check.passed for check in found.checks)


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("logits not finite", {"not_finite": 1}),
    ("perplexity ratio", {"nll_quantised": (2.2, 2.4, 2.1, 2.3)}),
    ("KL divergence", {"kl": (0.2, 0.2, 0.2, 0.2)}),
    ("top-k overlap", {"top_k_overlap": (0.7, 0.7, 0.7, 0.7)}),
    ("greedy match", {"greedy_match": (2, 0, 4)}),
    ("same token everywhere", {"same_token_share": 0.9}),
]


@pytest.mark.parametrize(("name", "changes"), BROKEN, ids=[name for name, _ in BROKEN])
@pytest.mark.parametrize("where", ["short", "long"])
def test_one_limit_broken_at_one_length_refuses(name: str, changes: dict[str, Any], where: str) -> None:
    both = [context(context=one, **(changes if one == where else {})) for one in ("short", "long")]
    found = judge(observed(*both), LIMITS)
    assert found.verdict == "refused"
    assert [(check.name, check.context) for check in found.checks if not check.passed] == [(name, where)]
    assert any(reason.startswith(name) for reason in found.reasons)


def test_one_layer_far_off_refuses_and_is_named() -> None:
    layers = (LayerError(name="good", error=0.01), LayerError(name="bad", error=0.9))
    found = judge(observed(layers=layers), LIMITS)
    assert found.verdict == "refused"
    assert found.reasons[-1] == "layers beyond the limit: bad"


def test_a_limit_at_its_edge_is_kept() -> None:
    at_edge = observed(layers=(LayerError(name="edge", error=LIMITS.layer_error),))
    assert judge(at_edge, LIMITS).verdict == "accepted"


@pytest.mark.parametrize("field", ["nll_quantised", "kl", "top_k_overlap"])
@pytest.mark.parametrize("value", [NAN, math.inf])
def test_a_figure_that_is_no_number_keeps_no_limit(field: str, value: float) -> None:
    found = judge(observed(context(**{field: (value, 1.0, 1.0, 1.0)})), LIMITS)
    assert found.verdict == "refused"


def test_a_layer_whose_error_is_no_number_is_the_worst() -> None:
    layers = (LayerError(name="far", error=9.0), LayerError(name="nan", error=NAN))
    found = judge(observed(layers=layers), LIMITS)
    assert [one.name for one in found.worst_layers] == ["nan", "far"]
    assert found.reasons[-1] == "layers beyond the limit: nan, far"


def test_worst_layers_come_first_and_are_few() -> None:
    layers = tuple(LayerError(name=str(n), error=n / 1000) for n in range(30))
    worst = judge(observed(layers=layers), LIMITS).worst_layers
    assert [one.name for one in worst] == [str(n) for n in range(29, 21, -1)]


def test_what_makes_all_else_meaningless_is_the_first_reason() -> None:
    broken = context(not_finite=252, kl=(NAN,) * 4, nll_quantised=(NAN,) * 4)
    found = judge(observed(broken, first_not_finite="model.layers.3.mlp"), LIMITS)
    assert found.reasons[0].startswith("logits are not numbers")
    assert "'!'" in found.reasons[0]
    assert found.reasons[0].endswith("the first is the output of model.layers.3.mlp")


def test_a_lower_perplexity_than_the_originals_is_no_fault() -> None:
    better = context(nll_quantised=(1.5, 1.5, 1.5, 1.5))
    assert judge(observed(better), LIMITS).verdict == "accepted"


def test_items_lost_beyond_the_limit_refuse_and_items_gained_make_up_for_them() -> None:
    lost = TaskFacts(task="quiz", original=(True,) * 20, quantised=(True,) * 18 + (False,) * 2)
    gained = TaskFacts(
        task="quiz", original=(True,) * 18 + (False,) * 2, quantised=(False,) * 2 + (True,) * 18
    )
    assert judge(observed(tasks=(lost,)), LIMITS).verdict == "refused"
    assert judge(observed(tasks=(gained,)), LIMITS).verdict == "accepted"


def test_a_length_that_could_not_be_judged_is_unavailable_with_its_reason_and_refuses_nothing() -> None:
    gone = MissingContext(context="long", reason="540 tokens, and a long context 1,024")
    found = judge(observed(missing=(gone,)), LIMITS)
    assert found.verdict == "accepted"
    figure = found.measurements["quality_perplexity_ratio_long"]
    assert (figure.kind, figure.reason) == ("unavailable", gone.reason)


def test_perplexity_is_e_to_the_mean_over_rows() -> None:
    figures = judge(observed(), LIMITS).measurements
    assert figures["quality_perplexity_original_short"].value == pytest.approx(math.exp(2.05))
    assert figures["quality_perplexity_ratio_short"].value == pytest.approx(math.exp(0.005))


def test_the_ratios_interval_is_of_paired_rows() -> None:
    """Differences 0.01, 0, 0.01, 0: their standard error is 0.002887, and t of 3 degrees of freedom 3.182."""
    figure = judge(observed(), LIMITS).measurements["quality_perplexity_ratio_short"]
    assert figure.n == 4
    assert figure.ci is not None
    assert [math.log(end) for end in figure.ci] == pytest.approx([-0.004186, 0.014186], abs=2e-5)
    assert (figure.ci_method or "").startswith("within_run")


def test_one_row_has_no_interval() -> None:
    one = context(
        nll_original=(2.0,), nll_quantised=(2.0,), kl=(0.0,), top_k_overlap=(1.0,), same_choice=(1.0,)
    )
    figure = judge(observed(one), LIMITS).measurements["quality_kl_nats_short"]
    assert (figure.n, figure.ci) == (1, None)


def test_every_figure_is_one_of_the_names_with_its_unit() -> None:
    task = TaskFacts(task="quiz", original=(True, False), quantised=(True, False))
    both = observed(context(), context(context="long"), tasks=(task,))
    figures = judge(both, LIMITS).measurements
    assert set(figures) == set(QUALITY_NAMES)
    assert all(figure.unit == QUALITY_NAMES[name].unit for name, figure in figures.items())


def test_tokens_that_were_predicted_are_told() -> None:
    assert judge(observed(), LIMITS).measurements["quality_tokens_short"].value == 252


@given(st.floats(1.001, 3.0), st.floats(-1.0, 1.0))
def test_the_ratio_is_held_to_its_limit_and_to_nothing_else(limit: float, difference: float) -> None:
    facts = context(nll_quantised=tuple(value + difference for value in (2.0, 2.2, 1.9, 2.1)))
    found = judge(observed(facts), QualityLimits(perplexity_ratio=limit))
    ratio = math.exp(difference)
    if abs(ratio - limit) > 1e-6:
        assert (found.verdict == "accepted") == (ratio <= limit)
