"""The shipped example, claim by claim: verdicts and recomputed values that were worked out by hand."""

from __future__ import annotations

import pytest
from audit_files import EXAMPLES, example

FOLLOWS = {
    "gpu_cost": 23.27,
    "ratio_of_claimed_prices": 40.9,
    "scaling_efficiency": 82.5,
    "compute_share_before": 56.25,
    "trn_run_cost": 11.56,
    "gpu_run_cost": 17.81,
    "run_cost_ratio": 65.0,
    "ratio_of_claimed_totals": 41.0,
    "trn_energy": 2.461,
    "gpu_energy": 1.309,
    "more_energy": 87.8,
    "more_energy_dollars": 0.115,
    "per_million_before": 0.2869,
    "per_million_after": 0.2623,
    "best_against_gpu": 41.03,
    "measured_above_estimate": 11.7,
    "compiler_hours": 21.7,
    "four_small": 3.2,
    "two_small": 1.6,
    "half_the_nodes": 50,
    "memory_saved": 35,
    "bill_saved": 76,
}
DOES_NOT_FOLLOW = {
    "gpu_per_thousand": 0.0018,
    "trn_per_thousand": 0.00126,
    "trn_saves": 30.2,
    "ratio_from_inputs": 69.9,
    "same_data": 117.7,
    "compute_share_after": 69.2,
    "trn_total": 878.6,
    "gpu_total": 1352,
    "ratio_of_totals_from_inputs": 65,
    "against_gpu": 33.6,
    "mean_length": 4468,
    "steps_of_an_epoch": 26_875,
    "spot_per_million": 0.234,
    "reserved_ratio": 64.0,
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_what_follows(name: str) -> None:
    claim = example("money")[name]
    assert claim.verdict == "follows", claim.reason
    assert claim.recomputed is not None
    assert claim.recomputed.value == pytest.approx(FOLLOWS[name], rel=4e-3)


@pytest.mark.parametrize("name", DOES_NOT_FOLLOW)
def test_what_does_not_follow_with_the_recomputed_value_and_the_gap(name: str) -> None:
    claim = example("money")[name]
    assert claim.verdict == "does not follow", claim.reason
    assert claim.recomputed is not None
    assert claim.recomputed.value == pytest.approx(DOES_NOT_FOLLOW[name], rel=4e-3)
    assert claim.gap is not None
    assert claim.gap.value is not None
    assert abs(claim.gap.value) > 0.1


def test_every_claim_about_money_is_held_against_a_verdict_here() -> None:
    others = {"bill_saved_by_memory", "cannot_be_aligned"}
    assert set(example("money")) == FOLLOWS.keys() | DOES_NOT_FOLLOW.keys() | others


def test_the_compiler_trials_take_18_6_to_24_8_hours() -> None:
    recomputed = example("money")["compiler_hours"].recomputed
    assert recomputed is not None
    assert recomputed.ci == pytest.approx((18.6, 24.8))


def test_a_bill_cannot_be_decided_from_memory_alone() -> None:
    claim = example("money")["bill_saved_by_memory"]
    assert claim.verdict == "cannot be decided"
    assert claim.missing == ("memory_share_of_bill",)


def test_78_gib_is_a_multiple_of_64_mib() -> None:
    claim = example("money")["cannot_be_aligned"]
    assert claim.verdict == "does not follow"
    assert "the left side is 0 byte" in claim.reason


@pytest.mark.parametrize(
    ("name", "verdict", "used"),
    [
        ("one_gpu_full", "impossible", 481 / 312),
        ("one_gpu_lora", "implausible", 0.993),
        ("three_gpu_nodes", "possible", 0.0914),
        ("one_trn_node", "possible", 0.1163),
        ("epoch_in_47_minutes", "impossible", 2.30),
        ("memory_needed", "impossible", None),
        ("fits_one_gpu", "impossible", 64.24e9 / (40 * 2**30)),
    ],
)
def test_physical_limits(name: str, verdict: str, used: float | None) -> None:
    claim = example("limits")[name]
    assert claim.verdict == verdict, claim.reason
    if used is not None:
        assert claim.used_share is not None
        assert claim.used_share.value == pytest.approx(used, rel=5e-3)


def test_full_fine_tuning_on_one_gpu_would_need_480_tflop_per_second() -> None:
    needed = example("limits")["one_gpu_full"].needed
    assert needed is not None
    assert needed.value == pytest.approx(480e12, rel=5e-3)


def test_memory_is_said_in_mixed_precision_and_all_in_bf16() -> None:
    reason = example("limits")["memory_needed"].reason
    assert "128.5 GB at 16 B a parameter" in reason
    assert "64.24 GB at 8 B a parameter" in reason


def test_what_a_chip_holds_is_told_in_gib() -> None:
    assert "into the 40 GiB (42.95 GB) of 1 NVIDIA A100" in example("limits")["fits_one_gpu"].reason


@pytest.mark.parametrize(
    ("name", "verdict", "words"),
    [
        ("trn1_chips", "does not hold", "16 AWS Trainium1"),
        ("trn2_cores", "does not hold", "128 physical, 64 logical by default"),
        ("p4d_chips", "does not hold", "40 GiB"),
        ("p4d_price", "does not hold", "21.96 USD/h"),
        ("p4d_price_before_june_2025", "holds", "32.77 USD/h"),
        ("trn1_price", "does not hold", "21.5 USD/h"),
        ("model_size", "does not hold", "8,030,261,248"),
        ("bucket_variable", "does not hold", "no such environment variable"),
        ("memory_flag", "does not hold", "no such compiler flag"),
        ("m5_accelerator", "does not hold", "no accelerator, and 16 GiB of ordinary memory"),
    ],
)
def test_facts(name: str, verdict: str, words: str) -> None:
    claim = example("hardware")[name]
    assert claim.verdict == verdict, claim.reason
    assert words in claim.reason


def test_each_fact_has_its_source_and_date() -> None:
    for claim in example("hardware").values():
        assert all("20" in source for source in claim.sources), claim.sources
        assert claim.sources, claim.name


def test_the_example_has_the_files_that_are_tested_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == {"money", "limits", "hardware"}
    assert sum(len(example(name)) for name in ("money", "limits", "hardware")) >= 45
