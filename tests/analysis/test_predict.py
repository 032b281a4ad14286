"""Both predictions: lines that add up, units of the formulas, and reasons in place of borrowed constants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prediction_samples import (
    LORA,
    PRICE,
    SMOL,
    calibrated,
    calibration,
    datasheet,
    job,
    micro_batch,
    with_first_products,
)

from trueup.analysis.flops import training_flops
from trueup.analysis.predict import ring_seconds, usd_per_million
from trueup.analysis.predict_lines import LINES
from trueup.analysis.predict_memory import PROGRAMS_KEPT
from trueup.analysis.predict_terms import Tuning, head_sizes, sizes_of
from trueup.schema import Measurement, Prediction, unavailable

FULL = Tuning("full")


def value(prediction: Prediction, name: str) -> float:
    found = prediction.lines[name]
    assert found.value is not None, found.reason
    return found.value


def test_every_line_is_predicted_or_says_why_not() -> None:
    for one in (calibrated(), datasheet(), datasheet(name=None)):
        assert list(one.lines) == list(LINES)
        assert {line.kind for line in one.lines.values()} <= {"predicted", "unavailable"}
        assert all(line.method for line in one.lines.values() if line.value is not None)


def test_compute_padding_and_communication_are_the_step() -> None:
    one = calibrated()
    parts = sum(value(one, name) for name in ("compute_s", "padding_s", "communication_s"))
    assert value(one, "step_s") == pytest.approx(parts)


def test_padding_takes_its_share_of_the_processed_tokens() -> None:
    one = calibrated(job(steps=[(micro_batch(useful=384),)]))
    assert value(one, "padding_s") == pytest.approx(0.25 * value(one, "step_s"))


def test_the_datasheet_step_is_its_flops_at_the_published_peak() -> None:
    many = micro_batch(useful=65536, rows=128, width=512, attention_sum_sq=33_554_432)
    one = datasheet(job(steps=[(many,)]))
    flop = training_flops(SMOL, tokens=65536, head_rows=100, attention_sum_sq=33_554_432)
    assert value(one, "step_s") == pytest.approx(flop / 190e12)


def test_a_small_step_takes_the_time_to_read_its_weights() -> None:
    one = datasheet(job(steps=[(micro_batch(useful=8, width=8, head_rows=4, attention_sum_sq=64),)]))
    weights, trained = value(one, "weights_bytes"), SMOL.trainable_parameters
    assert value(one, "step_s") == pytest.approx((2 * weights + 7 * 4 * trained) / (820 * 2**30))


def test_a_device_the_catalog_does_not_hold_has_no_ceilings() -> None:
    one = datasheet(name=None)
    for name in ("step_s", "compute_s", "useful_tokens_per_s", "usd_per_million_useful_tokens_steady"):
        assert one.lines[name].value is None
        assert "catalog does not hold" in (one.lines[name].reason or "")


def test_fp32_steps_have_no_published_peak() -> None:
    assert "fp32" in (datasheet(job(policy="fp32")).lines["step_s"].reason or "")


def test_another_precision_policy_than_the_calibrated_one_is_not_guessed() -> None:
    reason = calibrated(job(policy="fp32")).lines["step_s"].reason or ""
    assert "trueup calibrate --precision fp32" in reason


def test_without_a_calibration_the_reason_says_how_to_get_one() -> None:
    from trueup.analysis.predict import by_calibration

    lines = by_calibration(job(), None, host=True, platform="some CPU").lines
    assert "run `trueup calibrate`" in (lines["step_s"].reason or "")
    assert lines["weights_bytes"].value is not None


def test_attention_of_another_kind_than_the_calibrated_one_is_not_guessed() -> None:
    one = job()
    reason = calibrated(replace(one, memory=replace(one.memory, attention="row"))).lines["step_s"].reason
    assert "by row" in (reason or "")


def test_a_compiled_step_is_known_only_where_runs_measured_what_compiling_gains() -> None:
    estimated = Measurement(value=0.8, unit="1", kind="estimated", method="a paper")
    measured = Measurement(value=0.8, unit="1", kind="measured", method="runs")
    assert calibrated(job(compiled_ratio=estimated)).lines["step_s"].value is None
    assert calibrated(job(compiled_ratio=unavailable("1", "none"))).lines["step_s"].value is None
    assert value(calibrated(job(compiled_ratio=measured)), "step_s") == pytest.approx(
        0.8 * value(calibrated(), "step_s")
    )


def test_ranks_share_the_micro_batches_and_the_slowest_counts() -> None:
    steps = [(micro_batch(),) * 3]
    alone, two = calibrated(job(steps=steps)), calibrated(job(steps=steps, ranks=2))
    assert value(alone, "compute_s") / 2 < value(two, "compute_s") < value(alone, "compute_s")
    assert two.lines["step_s"].value is None
    assert "no collective" in (two.lines["step_s"].reason or "")


def test_the_rings_formula_has_its_worked_value() -> None:
    assert ring_seconds(16, 1e9, 384e9, 1e-5) == pytest.approx(2 * 15 * 1e-5 + 2 * 15 / 16 * 1e9 / 384e9)


def test_communication_on_an_instance_is_the_rings_at_the_published_link() -> None:
    one = datasheet(job(ranks=16, steps=[(micro_batch(),) * 16]))
    size = 4 * SMOL.trainable_parameters
    assert value(one, "communication_s") == pytest.approx(2 * 15 / 16 * size / 384e9)
    assert "latency is not published" in one.lines["communication_s"].method


@pytest.mark.parametrize(
    ("usd_per_hour", "tokens_per_s", "expected"),
    [(21.50, 12_275, 0.487), (8.197, 12_275, 0.185), (55.04, 98_184, 0.156)],
)
def test_dollars_per_million_have_the_published_worked_values(
    usd_per_hour: float, tokens_per_s: float, expected: float
) -> None:
    assert usd_per_million(usd_per_hour, tokens_per_s) == pytest.approx(expected, abs=5e-4)


@given(st.floats(0.01, 1e4))
def test_twice_the_price_is_twice_the_dollars(price: float) -> None:
    name = "usd_per_million_useful_tokens_steady"
    once, twice = (
        calibrated(job(price=PRICE.model_copy(update={"usd_per_hour": factor * price}))) for factor in (1, 2)
    )
    assert value(twice, name) == pytest.approx(2 * value(once, name))


def test_without_a_price_there_are_no_dollars() -> None:
    found = calibrated(job(price=None)).lines["usd_per_million_useful_tokens_steady"]
    assert "no price" in (found.reason or "")


def test_the_99th_percentile_needs_as_many_steps_as_a_measured_one() -> None:
    assert "needs 299" in (calibrated().lines["step_p99_s"].reason or "")


def test_steps_that_stand_for_more_say_so() -> None:
    one = calibrated(job(planned=4000))
    assert "mean of 10 of 4,000 planned steps" in one.lines["compute_s"].method
    reason = one.lines["step_p99_s"].reason or ""
    assert reason.startswith("10 of 4,000 planned steps were counted, since each has many micro-batches")
    assert value(one, "step_s") == value(calibrated(), "step_s")


def test_the_99th_percentile_is_of_the_mixture_of_shapes() -> None:
    steps = [(micro_batch(),)] * 290 + [(micro_batch(rows=4),)] * 10
    one = calibrated(job(steps=steps))
    assert value(one, "step_p99_s") > 2 * value(one, "step_s")


def test_the_peak_of_a_process_has_what_it_takes_by_itself() -> None:
    one = calibrated()
    assert value(one, "base_bytes") == 6e8
    assert value(one, "peak_memory_bytes") >= 6e8 + value(one, "training_bytes")


def test_a_process_that_was_not_calibrated_has_no_peak() -> None:
    bare = calibration(measurements={})
    assert calibrated(of=bare).lines["peak_memory_bytes"].value is None
    assert calibrated(of=bare).lines["data_wait_s"].value is None


def test_tokens_per_second_count_the_wait_for_data() -> None:
    one = calibrated()
    seconds = value(one, "step_s") + value(one, "data_wait_s")
    assert value(one, "useful_tokens_per_s") == pytest.approx(2 * 480 / seconds)


def test_more_adapters_take_longer() -> None:
    wider = replace(LORA, targets=(*LORA.targets, "gate_proj", "up_proj", "down_proj"))
    assert value(calibrated(job(tuning=wider)), "step_s") > value(calibrated(), "step_s")


def test_the_arithmetic_names_the_parts_of_a_step() -> None:
    how = calibrated().lines["compute_s"].method
    assert "linear layers" in how
    assert "mean of 10 planned steps" in how


def test_each_size_of_a_product_is_compiled_for_once() -> None:
    """Two widths in ten steps: what their sizes take is spread over the steps, and named."""
    steps = [(micro_batch(width=width),) for width in (256, 512) * 5]
    plain, compiling = (
        calibrated(job(steps=steps)),
        calibrated(job(steps=steps), with_first_products(1e-3, 0)),
    )
    new = len(sizes_of(SMOL, LORA, 256) | sizes_of(SMOL, LORA, 512))
    assert value(compiling, "step_s") - value(plain, "step_s") == pytest.approx(new * 1e-3 / 10)
    assert "products of sizes not met before" in compiling.lines["compute_s"].method
    assert "products of sizes not met before" not in plain.lines["compute_s"].method


def test_what_was_warmed_up_is_not_compiled_for_again() -> None:
    steps = [(micro_batch(width=256),)] * 10
    warmed = job(steps=steps, warmed_tokens=frozenset({256}))
    assert value(calibrated(warmed, with_first_products(1e-3, 0)), "step_s") == pytest.approx(
        value(calibrated(warmed), "step_s")
    )


def test_of_a_long_plan_each_size_is_compiled_for_once_too() -> None:
    steps = [(micro_batch(width=256),)] * 10
    extra = [
        value(calibrated(one, with_first_products(1e-3, 0)), "step_s") - value(calibrated(one), "step_s")
        for one in (job(steps=steps), job(steps=steps, planned=1000))
    ]
    assert extra[0] == pytest.approx(100 * extra[1])


def test_a_new_width_takes_what_it_took_in_steps() -> None:
    """A program that is made on the way costs more than one that is made alone."""
    steps = [(micro_batch(width=width),) for width in (256, 512) * 5]
    plain, once, twice = (
        value(calibrated(job(steps=steps), with_first_products(1e-3, 0, new_width_s=ratio)), "step_s")
        for ratio in (0.0, 1.0, 2.0)
    )
    assert twice - plain == pytest.approx(2 * (once - plain))


def test_the_peak_has_a_program_for_each_size() -> None:
    one = job(steps=[(micro_batch(width=256),)] * 10, ready_attention=50)
    met = len(sizes_of(SMOL, LORA, 256))
    with_programs = calibrated(one, with_first_products(1e-3, 1e9))  # so large that training is the peak
    how = with_programs.lines["peak_memory_bytes"].method
    assert f"{met} of widths met on the way x 1e+03 MB + 50 of attention x 1e+03 MB" in how
    twice = calibrated(one, with_first_products(1e-3, 2e9))
    assert value(twice, "peak_memory_bytes") - value(with_programs, "peak_memory_bytes") == pytest.approx(
        (met + 50) * 1e9
    )


def test_the_head_is_made_ready_with_attention() -> None:
    steps = [(micro_batch(width=256),)] * 10
    warmed = job(steps=steps, warmed_tokens=frozenset({256}))
    ready = job(steps=steps, warmed_tokens=frozenset({256}), ready_tokens=256)
    without, with_head = (
        value(calibrated(one, with_first_products(1e-3, 1e9)), "peak_memory_bytes") for one in (warmed, ready)
    )
    assert with_head - without == pytest.approx(1e9 * len(head_sizes(SMOL, 256)))


def test_no_more_programs_of_widths_are_kept_than_the_library_keeps() -> None:
    wide, wider = (
        value(
            calibrated(
                job(steps=[(micro_batch(width=width),) for width in range(8, last, 8)]),
                with_first_products(1e-3, 1e9),
            ),
            "peak_memory_bytes",
        )
        for last in (2000, 4000)
    )
    assert wider - wide < 1e9  # larger products, no more of them
    assert wide < (PROGRAMS_KEPT + 10) * 1e9


def test_getting_attention_ready_may_be_the_peak() -> None:
    one = calibrated(job(ready_places=100_000))
    assert "getting attention ready" in one.lines["peak_memory_bytes"].method
    twice = calibrated(job(ready_places=200_000))
    more = value(twice, "peak_memory_bytes") - value(one, "peak_memory_bytes")
    assert more == pytest.approx(100_000 * (27 * 9 * 64 + 16 * 2 * 3 * 64 + 10 * 9 * 16))


def test_a_large_gradient_of_the_head_is_handed_back_before_a_save() -> None:
    """Blocks above 32 MiB go back to the system: the copies of a save do not come on top of them."""
    full = SMOL.model_copy(update={"trainable_parameters": SMOL.parameters, "lora_parameters": 0})
    peaks = []
    for vocab in (14_000, 15_000):  # 32.3 MB and 34.6 MB, of either side of 33.6
        dims = full.model_copy(update={"vocab": vocab})
        one = replace(job(), dims=dims, tuning=FULL)
        one = replace(one, memory=replace(one.memory, dims=dims, tuning=FULL))
        peaks.append(value(calibrated(one), "peak_memory_bytes"))
    assert peaks[1] < peaks[0]
