"""Verdicts: what decides them, and that no choice of unit does. Physical limits and facts; what may not be
known.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from audit_files import audited, one
from hypothesis import given
from hypothesis import strategies as st

from trueup.analysis.audit_physics import published_dims
from trueup.catalog.models import published_model
from trueup.model.dims import expected_dims
from trueup.recipe.models import TuneSection
from trueup.schema import InputError

# --- arithmetic -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "verdict"),
    [("3.0 s", "follows"), ("3.1 s", "follows"), ("3.3 s", "does not follow"), ("2.8 s", "does not follow")],
)
def test_a_claim_follows_where_the_roundings_overlap(says: str, verdict: str) -> None:
    """1.0 and 2.0 are 2.9 to 3.1 together."""
    assert one({"says": says, "from": "a + b"}, a="1.0 s", b="2.0 s").verdict == verdict


def test_the_gap_is_a_share_of_what_follows() -> None:
    claim = one({"says": "3 h", "from": "a"}, a="exactly 2 h")
    assert claim.gap is not None
    assert claim.gap.value == pytest.approx(0.5)
    assert "50.0% more" in claim.reason


@pytest.mark.parametrize(
    ("says", "words"), [("9.0", "4.5 times that"), ("0.5", "less by a factor of 4"), ("1.5", "25.0% less")]
)
def test_a_large_gap_is_told_as_a_factor(says: str, words: str) -> None:
    assert words in one({"says": says, "from": "a"}, a="2").reason


def test_the_gap_between_percentages_is_told_in_points() -> None:
    claim = one({"says": "78%", "from": "a"}, a="exactly 0.70")
    assert "8 points more" in claim.reason
    assert claim.gap is not None
    assert claim.gap.value == pytest.approx(0.78 / 0.70 - 1)


def test_what_was_recomputed_is_derived_and_in_the_unit_of_what_was_said() -> None:
    recomputed = one(
        {"says": "$1.50 per million tokens", "from": "p / r"}, p="$54.00/h", r="10 ktokens/s"
    ).recomputed
    assert recomputed is not None
    assert (recomputed.unit, recomputed.kind) == ("$ per million tokens", "derived")
    assert recomputed.value == pytest.approx(1.5)
    assert recomputed.ci_method == "range of rounding, no confidence interval"


def test_the_sources_of_the_figures_go_with_the_verdict() -> None:
    claim = one(
        {"says": "3 s", "from": "a * b"},
        a={"value": "3 s", "source": "page 2"},
        b="1",
        c={"value": "1", "source": "x"},
    )
    assert claim.sources == ("a: page 2",)


def test_a_formula_over_more_figures_than_an_article_has_is_refused() -> None:
    figures = {f"x{n}": "1" for n in range(120)} | {
        f"part{n}": {"formula": " + ".join(f"x{m}" for m in range(n * 40, n * 40 + 40))} for n in range(3)
    }
    with pytest.raises(InputError, match="more than 100 figures"):
        one({"says": "120", "from": "part0 + part1 + part2"}, **figures)


def test_a_claim_may_rest_on_what_another_says() -> None:
    found = audited("title: t\nclaims: {a: {says: 4 h, from: 2 * b}, b: {says: 2 h, from: a / 2}}\n")
    assert [claim.verdict for claim in found.claims] == ["follows", "follows"]


prices = st.integers(1, 9999).map(lambda cents: Decimal(cents) / 100)
rates = st.integers(1001, 99_999)
ratios = st.sampled_from(["0.5", "0.99", "1", "1.01", "2"])


@given(prices, rates, st.integers(1, 9), ratios)
def test_a_verdict_does_not_depend_on_the_unit(price: Decimal, rate: int, hours: int, off: str) -> None:
    """Per thousand or per million, hours or seconds, dollars or cents."""
    said = Decimal(f"{float(price) / (rate * 3600) * 1e6 * float(off):.3e}")
    variants: list[tuple[str, str, str]] = [
        (f"${said:f} per million tokens", f"exactly {price} USD/h", f"exactly {hours} h"),
        (
            f"${said.scaleb(-3):f} per thousand tokens",
            f"exactly {price.scaleb(2):f} cents/h",
            f"exactly {hours * 3600} s",
        ),
        (f"{said.scaleb(-6):f} USD/token", f"exactly {price} $ per hour", f"exactly {hours * 60} min"),
    ]
    found = [
        one(
            {"says": says, "from": "price * time / (rate * time)"},
            rate=f"exactly {rate} tokens/s",
            price=price_text,
            time=time,
        )
        for says, price_text, time in variants
    ]
    assert len({claim.verdict for claim in found}) == 1
    gaps = {round(claim.gap.value, 9) for claim in found if claim.gap and claim.gap.value is not None}
    assert len(gaps) <= 1


# --- checks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        ("a < b", "follows"),
        ("a > b", "does not follow"),
        ("a <= b", "follows"),
        ("a >= b", "does not follow"),
        ("a == b", "does not follow"),
        ("a != b", "follows"),
        ("a < c", "cannot be decided"),
        ("a != c", "cannot be decided"),
        ("a == c", "follows"),
        ("a == a", "follows"),
        ("a != a", "does not follow"),
        ("a < a", "does not follow"),
    ],
)
def test_a_check_holds_for_all_that_the_rounding_allows(check: str, verdict: str) -> None:
    assert one({"check": check}, a="1.0 s", b="2.0 s", c="1 s").verdict == verdict


# --- physical limits --------------------------------------------------------------------------------------


def training(says: str, **more: str) -> dict[str, Any]:
    return {"says": says, "training": {"model": "llama-3.1-8b", "on": "h100", **more}}


def memory(**said: str) -> dict[str, Any]:
    return {"memory": {"model": "llama-3.1-8b", **said}}


def decoding(says: str, **more: str) -> dict[str, Any]:
    return {"says": says, "decoding": {"model": "llama-3.1-8b", "on": "a100-80gb", **more}}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (training("12,273 tokens/s", tune="full", precision="fp8"), "possible"),
        (training("21,000 tokens/s", tune="full"), "implausible"),
        (training("30,000 tokens/s", tune="full"), "impossible"),
        (training("30,000 tokens/s", tune="lora"), "implausible"),
        (training("30,000 tokens/s"), "implausible"),
        (training("30,000 tokens/s", tune="full", count="8"), "possible"),
        (training("30,000 tokens/s", tune="full", on="p5.48xlarge"), "possible"),
        (training("60,000 tokens/s"), "impossible"),
        (decoding("100 tokens/s"), "possible"),
        (decoding("135 tokens/s"), "implausible"),
        (decoding("140 tokens/s"), "impossible"),
        (decoding("140 tokens/s", bytes_per_parameter="1"), "possible"),
        (decoding("140 tokens/s", count="2"), "possible"),
        ({"says": "20 GB", **memory(tune="lora")}, "possible"),
        ({"says": "10 GB", **memory(tune="lora")}, "impossible"),
        ({"says": "100 GB", **memory(tune="full")}, "possible"),
        ({"says": "100 GB", **memory(tune="full", state="mixed")}, "impossible"),
        (memory(tune="full", on="h100"), "possible"),
        (memory(tune="full", state="mixed", on="h100"), "impossible"),
        (memory(tune="full", state="mixed", on="h100", count="2"), "possible"),
        (memory(model="llama-3.1-70b", tune="inference", on="h100"), "impossible"),
        (memory(model="llama-3.1-70b", tune="inference", bytes_per_parameter="0.5", on="h100"), "possible"),
    ],
)  # fmt: skip
def test_a_limit(claim: dict[str, Any], verdict: str) -> None:
    found = one(claim)
    assert found.verdict == verdict, found.reason


@pytest.mark.parametrize("unit", ["tokens/s", "ktokens/min", "million tokens per hour"])
def test_a_limit_does_not_depend_on_the_unit(unit: str) -> None:
    number = {"tokens/s": 30_000, "ktokens/min": 1800, "million tokens per hour": 108}[unit]
    found = one(training(f"exactly {number} {unit}", tune="full"))
    assert found.used_share is not None
    assert found.used_share.value == pytest.approx(30_000 * 45.03e9 / 989e12, rel=1e-3)


def test_attention_adds_to_what_training_needs() -> None:
    without, with_it = (
        one(training("10,000 tokens/s", tune="full", **more)) for more in ({}, {"sequence": "8192"})
    )
    assert without.needed is not None
    assert with_it.needed is not None
    assert with_it.needed.value > without.needed.value  # type: ignore[operator]


def test_what_is_impossible_is_so_whatever_its_arithmetic() -> None:
    claim = {**training("60,000 tokens/s"), "from": "nodes * rate"}
    found = one(claim, nodes="2", rate="exactly 30,000 tokens/s")
    assert found.verdict == "impossible"
    assert found.recomputed is not None


def test_what_is_impossible_is_so_also_where_its_arithmetic_is_missing() -> None:
    assert one({**training("60,000 tokens/s"), "from": "rate"}, rate="not given").verdict == "impossible"


def test_a_possible_claim_must_follow_too() -> None:
    claim = {**training("1,234 tokens/s"), "from": "rate"}
    assert one(claim, rate="2,000 tokens/s").verdict == "does not follow"
    assert one(claim, rate="1,234 tokens/s").verdict == "follows"


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        (training("1 token/s", model="gpt-5"), "dimensions of 'gpt-5' are not in the catalog"),
        (training("1 token/s", on="tpu9"), "no chip and no instance named 'tpu9'"),
        (training("1 token/s", on="m7g.large"), "no accelerator"),
        (training("1 token/s", on="g5.48xlarge"), "no figures of a10g"),
        (training("1 token/s", on="a100-40gb", precision="fp8"), "no fp8 peak"),
        ({"exists": "NEURON_MADE_UP"}, "in none of the lists"),
        ({"hardware": {"instance": "m99.huge", "chips": "3"}}, "no instance named 'm99.huge'"),
        ({"hardware": {"chip": "inferentia9", "fp8": "3 TFLOP/s"}}, "no chip named"),
        ({"hardware": {"instance": "trn2.48xlarge", "price": "$40/h", "on_date": "2026-11-29"}}, "on-demand"),
        ({"hardware": {"instance": "p4d.24xlarge", "price": "$1/h"}}, "say `on_date`"),
        (
            {"hardware": {"instance": "p4d.24xlarge", "price": "$1/h", "on_date": "2025-06-15"}},
            "of 2025-06-15 is",
        ),
        (
            {"hardware": {"instance": "m7g.large", "price": "$1/h", "on_date": "2026-11-29"}},
            "may hold no more",
        ),
        ({"hardware": {"instance": "trn2.48xlarge", "price": "$35.76/h"}}, "no on-demand price is listed"),
        ({"hardware": {"instance": "p4d.24xlarge", "chip": "A100"}}, "no chip named 'A100'"),
        ({"model": {"name": "gpt-5", "parameters": "8 billion"}}, "no model named 'gpt-5'"),
    ],
)
def test_what_is_not_known_cannot_be_decided(claim: dict[str, Any], why: str) -> None:
    found = one(claim)
    assert found.verdict == "cannot be decided"
    assert why in found.reason


@pytest.mark.parametrize(
    "claim",
    [
        {
            "hardware": {
                "instance": "trn1.32xlarge",
                "chip": "Trainium1",
                "chips": "16",
                "chip_memory": "32 GB",
            }
        },
        {"hardware": {"instance": "p4d.24xlarge", "chip_memory": "40 GiB", "memory": "1152 GiB"}},
        {"hardware": {"chip": "h100", "bf16": "989 TFLOP/s", "bandwidth": "3.35 TB/s"}},
        {"hardware": {"instance": "trn2.48xlarge", "cores": "64 cores"}},
        {"hardware": {"instance": "trn2.48xlarge", "cores": "128"}},
        {"hardware": {"instance": "p4d.24xlarge", "price": "$32.77/h"}},
        {"hardware": {"instance": "p4d.24xlarge", "chip": "A100-40GB"}},
        {"hardware": {"instance": "p5en.48xlarge", "price": "$79.12/h", "on_date": "2026-11-29"}},
        {"hardware": {"instance": "p4d.24xlarge", "price": "21.96 USD/h", "on_date": "2026-11-29"}},
        {"model": {"name": "meta-llama/Meta-Llama-3-8B", "parameters": "8 billion"}},
        {"model": {"name": "llama-3-8b", "parameters": "8.03 billion parameters"}},
        {"exists": "NEURON_RT_NUM_CORES"},
        {"exists": "--auto-cast=none"},
        {"exists": "--auto-cast none"},
        {"exists": "m5.xlarge"},
        {"exists": "trn2.48xlarge"},
    ],
)
def test_facts_that_hold(claim: dict[str, Any]) -> None:
    found = one(claim)
    assert found.verdict == "holds", found.reason


@pytest.mark.parametrize(
    "claim",
    [
        {"exists": "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS"},
        {"exists": "NeuronStudio"},
        {"exists": "Inferentia 3"},
        {"hardware": {"instance": "trn1.32xlarge", "chips": "8"}},
        {"hardware": {"instance": "m7g.large", "chips": "1"}},
    ],
)
def test_facts_that_do_not_hold(claim: dict[str, Any]) -> None:
    assert one(claim).verdict == "does not hold"


def test_what_holds_is_said_beside_a_price_that_nobody_knows() -> None:
    hardware = {"instance": "p5.48xlarge", "chips": "8", "chip_memory": "80 GB", "price": "$98.32/h"}
    found = one({"hardware": {**hardware, "on_date": "2025-01-15"}})
    assert found.verdict == "cannot be decided"
    assert "price: no price of 2025-01-15 is known" in found.reason
    assert "what is said of chips and chip memory holds" in found.reason


def test_a_wrong_fact_beside_a_price_that_nobody_knows_does_not_hold() -> None:
    hardware = {"instance": "p5.48xlarge", "chips": "16", "price": "$98.32/h", "on_date": "2025-01-15"}
    assert one({"hardware": hardware}).verdict == "does not hold"


def test_a_name_in_a_mapping_is_refused_with_the_form_it_has() -> None:
    with pytest.raises(
        InputError, match=r"'claims.it.exists' has to be text, .* `exists: NEURON_RT_NUM_CORES`"
    ):
        one({"exists": {"chip": "H300"}})


def test_a_cost_of_requests_follows_from_their_number() -> None:
    found = one(
        {"says": "$0.5 per thousand requests", "from": "bill / asked"},
        bill="$1,000", asked="exactly 2 million requests",
    )  # fmt: skip
    assert found.verdict == "follows"


def test_one_wrong_fact_outweighs_what_is_not_known() -> None:
    found = one({"hardware": {"instance": "p5.4xlarge", "chips": "8", "memory": "1 GiB"}})
    assert found.verdict == "does not hold"
    assert [finding.agrees for finding in found.findings] == [False, None]


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-2-7b", "smollm2-135m"])
def test_a_models_parameters_are_counted_as_where_it_is_loaded(name: str) -> None:
    model = published_model(name)
    assert model is not None
    expected = expected_dims(dict(model.config), TuneSection(method="full"))
    assert published_dims(model) == expected


@pytest.mark.parametrize(
    ("says", "formula", "words"),
    [
        ("1e-20", "a", "less by a factor of 1e+20"),
        ("1e20", "1 / a", "1e+20 times that"),
        ("1e-30", "(1e30 * a) ** 8", "less by a factor of 1e+270"),
        (f"{'9' * 40}e30", "1 / (1e30 * a) ** 8", "beyond any comparison with it"),
    ],
)
def test_a_gap_beyond_a_floats_digits_is_told(says: str, formula: str, words: str) -> None:
    found = one({"says": says, "from": formula}, a="exactly 1")
    assert found.verdict == "does not follow"
    assert words in found.reason


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ({"says": "3 h", "from": "a"}, "mixed units"),
        ({"says": "not given", "from": "a"}, "a claim says something"),
        ({"says": "$3", "from": "zero"}, "unknown quantity 'zero'"),
        ({"says": "$3", "from": "a / 0"}, "division by zero"),
        (training("3 h"), "a rate such as"),
        (training("3 tokens/s", count="0"), "more than zero"),
        (training("3 tokens/s", count="a"), "is in dollar"),
        (training("3 tokens/s", tokens="9"), "says a time, such as"),
        (training("0 s", tokens="9"), "not above zero"),
        (decoding("3 GB"), "says a rate"),
        ({"says": "3 h", "memory": {"model": "llama-3-8b", "tune": "full"}}, "says bytes"),
        ({"hardware": {"instance": "trn1.32xlarge", "chip_memory": "3 h"}}, "is in second, not in byte"),
        ({"hardware": {"instance": "trn1.32xlarge", "price": "$3/h", "on_date": "June"}}, "is no date"),
        ({"hardware": {"instance": "trn1.32xlarge", "price": "$3/h", "on_date": "2027-01-01"}}, "the future"),
        ({"says": "0 tokens/s", "training": {"model": "llama-3-8b", "on": "h100"}}, "not above zero"),
        ({"says": "-5 tokens/s", "decoding": {"model": "llama-3-8b", "on": "h100"}}, "not above zero"),
        ({"says": "-40 GB", "memory": {"model": "llama-3-8b", "tune": "full"}}, "not above zero"),
        (decoding(f"{'9' * 40}e30 tokens/s", bytes_per_parameter="1e30 ** 8"), "too large, or too small"),
        ({"check": "a"}, "compares nothing"),
        ({"check": "a < 1 < a"}, "compares nothing"),
        ({"check": "a in a"}, "compare with"),
        ({"check": "a < 3"}, "mixed units"),
    ],
)  # fmt: skip
def test_bad_claims_are_refused_with_their_place(claim: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=rf"claims.yaml:\d+: 'claims.it(\.says)?': .*{why}"):
        one(claim, a="$3")
