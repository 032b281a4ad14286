"""A run beside its repetition: what to expect, what deviates, what was different around them."""

from __future__ import annotations

from typing import Any

import pytest
from compared_runs import make_header, make_run

from trueup.analysis.compare_reproduction import Repeated, Reproduction, recipe_to_repeat, reproduction
from trueup.schema import InputError, Measurement, ShapePlan, unavailable

RATE = "useful_tokens_per_s_steady"


def rate(value: float, reach: float | None = 0.01) -> dict[str, Measurement]:
    ci = None if reach is None else (value * (1 - reach), value * (1 + reach))
    method = None if reach is None else "within_run: circular block bootstrap"
    return {RATE: Measurement(value=value, unit="tokens/s", kind="measured", ci=ci, ci_method=method)}


def row(found: Reproduction, name: str = RATE) -> Repeated:
    (one,) = (one for one in found.measurements if one.name == name)
    return one


def test_with_earlier_repeats_their_spread_says_what_to_expect() -> None:
    original = make_run("00000001", figures=rate(100.0))
    repeats = [make_run(f"{k:08x}", figures=rate(value)) for k, value in enumerate((98.0, 103.0), start=2)]
    inside = row(reproduction(original, make_run("00000009", figures=rate(105.0)), [original, *repeats]))
    assert (inside.verdict, inside.expected_from) == ("within", "between_runs: 3 earlier runs")
    outside = row(reproduction(original, make_run("00000009", figures=rate(150.0)), repeats))
    assert (outside.verdict, outside.deviates) == ("outside", True)


def test_without_them_there_is_only_the_interval_within_the_run_and_it_says_so() -> None:
    found = reproduction(make_run("00000001", figures=rate(100.0)), make_run("00000002", figures=rate(104.0)))
    one = row(found)
    assert (one.expected_from or "").startswith("within_run")
    assert one.verdict == "outside"
    assert not one.deviates
    assert "within one run only" in found.summary


@pytest.mark.parametrize(
    "other",
    [{"state": "failed"}, {"environment": {"host": {"hostname": "two"}}}],
    ids=["failed", "elsewhere"],
)
def test_runs_that_failed_or_ran_elsewhere_are_no_repeats(other: dict[str, Any]) -> None:
    repeats = [make_run(f"{k:08x}", figures=rate(100.0 + k), **other) for k in (2, 3, 4)]
    found = reproduction(
        make_run("00000001", figures=rate(100.0)), make_run("00000009", figures=rate(101.0)), repeats
    )
    assert found.repeats == ()


def test_the_repetition_itself_says_nothing_of_what_to_expect() -> None:
    original, again = make_run("00000001", figures=rate(100.0)), make_run("00000002", figures=rate(300.0))
    found = reproduction(original, again, [original, again, make_run("00000003", figures=rate(101.0))])
    assert found.repeats == ()


def test_equal_values_are_identical() -> None:
    assert (
        row(
            reproduction(make_run("00000001", figures=rate(100.0)), make_run("00000002", figures=rate(100.0)))
        ).verdict
        == "identical"
    )


def test_a_share_deviates_by_points_not_by_parts_of_itself() -> None:
    def shares(value: float) -> dict[str, Measurement]:
        return {"others_cpu_share": Measurement(value=value, unit="1", kind="measured")}

    small = row(
        reproduction(
            make_run("00000001", figures=shares(0.001)), make_run("00000002", figures=shares(0.004))
        ),
        "others_cpu_share",
    )
    assert not small.deviates
    large = row(
        reproduction(make_run("00000001", figures=shares(0.001)), make_run("00000002", figures=shares(0.3))),
        "others_cpu_share",
    )
    assert large.deviates
    assert large.deviation == pytest.approx(0.299)


def test_what_is_no_longer_measured_is_said() -> None:
    gone = {RATE: unavailable("tokens/s", "no steady state")}
    one = row(reproduction(make_run("00000001", figures=rate(100.0)), make_run("00000002", figures=gone)))
    assert (one.verdict, one.deviation) == ("not measured now", None)


def test_every_difference_around_the_two_is_listed() -> None:
    again = make_run(
        "00000002",
        environment={"versions": {"torch": "2.14.0"}},
        recipe={"tune": {"rank": 4}, "train": {"seed": 1}},
    )
    found = reproduction(make_run("00000001"), again)
    assert [one.key for one in found.environment] == ["versions.torch"]
    assert [one.key for one in found.settings] == ["tune.rank"]


def test_other_data_are_noted() -> None:
    found = reproduction(make_run("00000001"), make_run("00000002", digest="ffff"))
    assert "the data were not the same: the source gives other records now" in found.notes


def test_a_run_is_no_repetition_of_itself() -> None:
    with pytest.raises(InputError, match="run 00000001 is no repetition of itself"):
        reproduction(make_run("00000001"), make_run("00000001"))


def test_what_the_run_chose_is_written_into_the_recipe() -> None:
    choices = {
        "device": "cpu", "threads": "2", "precision": "fp32", "compile": "none", "shapes": "bucket",
    }  # fmt: skip
    shapes = ((4, 128), (1, 512))
    plan = ShapePlan(
        strategy="bucket", compile="none", static=True, full=shapes, training=shapes, evaluation=shapes,
        tokens_per_microbatch=512, micro_batches_per_step=1, steps_per_epoch=3, data="d", reason="cheapest",
    )  # fmt: skip
    header = make_header(
        "00000001", shape_plan=plan, choices={k: {"value": v, "reason": "r"} for k, v in choices.items()}
    )
    recipe = recipe_to_repeat(header)
    assert recipe["platform"] == {"device": "cpu", "instance": None, "threads": 2}
    assert recipe["precision"] == {"policy": "fp32"}
    assert recipe["compile"] == {"mode": "none"}
    assert recipe["shapes"] == {"strategy": "bucket", "buckets": [128, 512], "tokens_per_microbatch": 512}
    assert recipe["train"] == header.recipe["train"]


def test_a_run_of_several_processes_is_not_started_from_here() -> None:
    with pytest.raises(InputError, match="was of 4 processes: start it again under torchrun"):
        recipe_to_repeat(make_header("00000001", environment={"world": {"size": 4}}))


def test_another_seed_and_another_price_are_settings_that_differ() -> None:
    again = make_run("00000002", figures=rate(150.0), recipe={"price": {"usd_per_hour": 1.0}})
    found = reproduction(make_run("00000001", figures=rate(100.0)), again)
    assert [one.key for one in found.settings] == ["train.seed", "price.usd_per_hour"]
