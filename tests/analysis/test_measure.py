"""Every measurement has a value or a reason, the right unit, and never flatters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from run_records import SMOL, arbitrary_records, make_evaluation, make_record, make_step

from trueup.analysis.flops import training_flops
from trueup.analysis.measure import summarize
from trueup.analysis.names import NAMES
from trueup.schema import Event, Measurement, ModelDims, RunRecord, SpanTotal

UNIT_OF_SUFFIX = {
    "_bytes_per_s": "bytes/s",
    "_flops_per_s": "FLOP/s",
    "_tokens_per_s": "tokens/s",
    "_per_useful_token_j": "J/token",
    "_tokens": "tokens",
    "_bytes": "bytes",
    "_share": "1",
    "_count": "count",
    "_flop": "FLOP",
    "_mhz": "MHz",
    "_s": "s",
    "_j": "J",
    "_w": "W",
    "_c": "°C",
    "parameters": "parameters",
}
# Names the field knows without a unit.
UNIT_OF_STEM = {
    "mfu_": "1",
    "loss_scale": "1",
    "loss_": "nats/token",
    "grad_norm_": "1",
    "eval_perplexity_": "1",
    "usd_per_million": "USD/million useful tokens",
}


def expected_unit(name: str) -> str:
    for stem, unit in UNIT_OF_STEM.items():
        if name.startswith(stem):
            return unit
    bare = name.removesuffix("_steady")
    return next(unit for suffix, unit in UNIT_OF_SUFFIX.items() if bare.endswith(suffix))


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_is_in_the_name(name: str) -> None:
    assert NAMES[name].unit == expected_unit(name)
    assert NAMES[name].meaning


def ceiling(flops_per_s: float) -> dict[str, Measurement]:
    return {
        "matmul_ceiling_flops_per_s": Measurement(
            value=flops_per_s, unit="FLOP/s", kind="measured", scope="device"
        )
    }


def found(record: RunRecord, extra: dict[str, Measurement] | None = None) -> dict[str, Measurement]:
    return summarize(record, extra=extra)[0]


def value(measurements: dict[str, Measurement], name: str) -> float:
    one = measurements[name].value
    assert one is not None, measurements[name].reason
    return one


@settings(max_examples=60, deadline=None)
@given(arbitrary_records())
def test_every_name_with_its_unit_and_nothing_negative(record: RunRecord) -> None:
    """optimum-habana 1533: a throughput was negative. Whatever the record, none is here."""
    measurements = found(record, ceiling(1e9))
    assert list(measurements) == list(NAMES)
    for name, one in measurements.items():
        assert one.unit == NAMES[name].unit
        if one.value is None:
            assert one.reason
        elif not name.startswith("loss_"):
            assert one.value >= 0
        if one.value is not None and name.startswith(("mfu_", "padding_share", "head_padding_share")):
            assert one.value <= 1


def test_padding_is_never_useful() -> None:
    """transformers#32469: padding never raises the useful rate. torchtune#2296: a rate says which tokens."""
    dense = found(make_record(), ceiling(1e13))
    steps = [make_step(number, processed_tokens=2048) for number in range(1, 41)]
    padded = found(make_record(steps=steps), ceiling(1e13))
    assert value(padded, "useful_tokens_per_s") == value(dense, "useful_tokens_per_s")
    assert value(padded, "supervised_tokens_per_s") == value(dense, "supervised_tokens_per_s")
    assert value(padded, "processed_tokens_per_s") == 4 * value(dense, "processed_tokens_per_s")
    assert value(padded, "padding_share") == pytest.approx(1 - 480 / 2048)
    assert value(padded, "mfu_useful") == value(dense, "mfu_useful")
    assert value(padded, "mfu_processed") > value(dense, "mfu_processed")
    assert "tokens_per_s" not in padded


def test_rates_are_over_all_training_seconds() -> None:
    steps = [make_step(1, step_s=1.0, data_wait_s=0.5, communication_s=0.5, useful_tokens=300)]
    measurements = found(make_record(steps=steps))
    assert value(measurements, "useful_tokens_per_s") == 150
    assert value(measurements, "data_wait_share") == 0.25
    assert value(measurements, "communication_share") == 0.25


def test_a_run_without_steps() -> None:
    measurements = found(make_record(steps=[]))
    assert value(measurements, "useful_tokens") == 0
    for name in (
        "useful_tokens_per_s",
        "step_p50_s",
        "mfu_useful",
        "loss_first",
        "padding_share",
        "data_wait_share",
    ):
        assert measurements[name].value is None
        assert measurements[name].reason


def test_steps_done_again_are_useful_once() -> None:
    steps = [make_step(number) for number in (*range(1, 21), *range(15, 41))]
    measurements = found(make_record(steps=steps))
    assert value(measurements, "useful_tokens") == 40 * 480
    assert value(measurements, "processed_tokens") == 46 * 512
    assert value(measurements, "steps_count") == 40
    assert value(measurements, "lost_work_s") > 0
    assert value(measurements, "padding_share") == pytest.approx(32 / 512)


def test_p99_only_from_299_steps() -> None:
    few = found(make_record(steps=[make_step(number) for number in range(1, 299)]))["step_p99_s"]
    assert few.value is None
    assert few.n == 298
    assert "longest took 2.06 s" in (few.reason or "")
    enough = found(make_record(steps=[make_step(number) for number in range(1, 300)]))["step_p99_s"]
    assert enough.value == pytest.approx(2.06)


def test_model_flop_counts_the_head_only_where_loss_is() -> None:
    measurements = found(make_record(), ceiling(158e9))
    one = {"tokens": 480, "head_rows": 300, "attention_sum_sq": 100_000}
    assert value(measurements, "useful_model_flop") == pytest.approx(40 * training_flops(SMOL, **one))
    more = {"tokens": 512, "head_rows": 320, "attention_sum_sq": 100_000}
    assert value(measurements, "processed_model_flop") == pytest.approx(40 * training_flops(SMOL, **more))
    seconds = sum(step.step_s + step.data_wait_s for step in make_record().steps)
    expected = 40 * training_flops(SMOL, **one) / seconds / 158e9
    assert value(measurements, "mfu_useful") == pytest.approx(expected)


def test_lora_is_not_counted_as_full() -> None:
    """litgpt 404: frozen weights counted as trained gave MFU above 1."""
    full = ModelDims(**(SMOL.model_dump() | {"trainable_parameters": SMOL.parameters, "lora_parameters": 0}))
    as_lora, as_full = (found(make_record(header={"model": one}), ceiling(1e12)) for one in (SMOL, full))
    assert 1.3 < value(as_full, "mfu_useful") / value(as_lora, "mfu_useful") < 1.5
    near_the_ceiling = ceiling(1e12 * 1.2 * value(as_lora, "mfu_useful"))
    assert found(make_record(), near_the_ceiling)["mfu_useful"].value == pytest.approx(1 / 1.2)
    assert found(make_record(header={"model": full}), near_the_ceiling)["mfu_useful"].value is None


def test_mfu_above_one_is_never_claimed() -> None:
    for name in ("mfu_useful", "mfu_processed", "mfu_useful_steady"):
        one = found(make_record(), ceiling(1e9))[name]
        assert one.value is None
        assert "no device does more than its ceiling" in (one.reason or "")


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ({"kind": "cpu", "name": "some CPU"}, "this CPU"),
        ({"kind": "cuda", "name": "NVIDIA H100 PCIe"}, "does not hold the chip 'NVIDIA H100 PCIe'"),
        (None, "name is not recorded"),
    ],
)
def test_no_datasheet_no_mfu(device: dict[str, str] | None, reason: str) -> None:
    one = found(make_record(header={"environment": {"device": device}}))["mfu_datasheet_useful"]
    assert one.value is None
    assert reason in (one.reason or "")


def test_datasheet_mfu_names_its_source() -> None:
    environment = {"device": {"kind": "cuda", "name": "NVIDIA H200"}, "world": {"size": 2}}
    measurements = found(make_record(header={"environment": environment}))
    one = measurements["mfu_datasheet_useful"]
    seconds = sum(step.step_s + step.data_wait_s for step in make_record().steps)
    assert one.value == pytest.approx(value(measurements, "useful_model_flop") / seconds / (2 * 989e12))
    assert "989 TFLOP/s" in one.method
    assert "datasheet" in one.method


def test_perplexity_is_of_the_validation_split() -> None:
    evaluations = [
        make_evaluation(0, 32.0),
        make_evaluation(20, 19.0),
        make_evaluation(20, 5.0, split="test"),
        make_evaluation(40, 19.4),
    ]
    measurements = found(make_record(evaluations=evaluations))
    names = ("eval_perplexity_first", "eval_perplexity_best", "eval_perplexity_last")
    assert [value(measurements, name) for name in names] == [32.0, 19.0, 19.4]
    assert value(measurements, "eval_tokens") == 4000


def test_the_loss_scale_is_the_last_steps_or_was_not_used() -> None:
    steps = [make_step(number, loss_scale=scale) for number, scale in ((1, 64.0), (2, 128.0), (3, 1.0))]
    scale = found(make_record(steps=steps))["loss_scale"]
    assert scale.value == 1.0
    assert scale.method == "step 3; lowest of the run 1, highest 128"
    for never in ([], [make_step(1)]):
        scale = found(make_record(steps=never))["loss_scale"]
        assert (scale.value, scale.reason) == (None, "no loss scaling was used")


def test_a_value_that_is_not_a_number_is_unavailable() -> None:
    steps = [make_step(1, loss=math.nan, grad_norm=math.inf)]
    evaluations = [make_evaluation(0, math.nan), make_evaluation(1, 7.0)]
    measurements = found(make_record(steps=steps, evaluations=evaluations))
    for name in ("loss_first", "grad_norm_max", "eval_perplexity_first"):
        assert measurements[name].value is None
        assert "not a finite number" in (measurements[name].reason or "")
    assert value(measurements, "eval_perplexity_best") == 7.0


def test_the_steady_part_is_of_the_steps_that_stand_alone() -> None:
    """Seconds of steps that were done again are neither in its rate nor in its utilisation."""
    once = [make_step(number) for number in range(1, 41)]
    lost = [make_step(number, step_s=6.0) for number in range(30, 41)]
    ceiling = {"matmul_ceiling_flops_per_s": Measurement(value=1e15, unit="FLOP/s", kind="measured")}
    straight, repeated = (
        summarize(make_record(steps=steps), extra=ceiling)[0]
        for steps in (once, [*once[:29], *lost, *once[29:]])
    )
    for name in ("mfu_useful_steady", "useful_tokens_per_s_steady"):
        assert repeated[name].value == pytest.approx(value(straight, name))


def test_compiles_are_counted_with_their_place_and_cause() -> None:
    def compiled(at_s: float, seconds: float, hits: int, *, late: bool) -> Event:
        data = {"seconds": seconds, "cache_hits": hits, "after_warm_up": late}
        return Event(at_s=at_s, kind="compile", message="compiled", data=data)

    events = [
        compiled(5.0, 4.0, 2, late=False),
        compiled(30.0, 3.0, 0, late=True),
        Event(at_s=31.0, kind="note", message="something else"),
    ]
    record = make_record(events=events)
    measurements = found(record)
    assert value(measurements, "compile_count") == 2
    assert value(measurements, "compile_s") == 7.0
    assert value(measurements, "compile_after_warm_up_count") == 1
    assert value(measurements, "compile_cache_hits_count") == 2
    spans = (*record.spans, SpanTotal(name="compile", seconds=6.5, count=2))
    assert value(found(record.model_copy(update={"spans": spans})), "compile_s") == 6.5
    elsewhere = Event(at_s=6.0, kind="compile", message="", data={"seconds": 1.0, "in_span": False})
    more = {"spans": spans, "events": (*events, elsewhere)}
    assert value(found(record.model_copy(update=more)), "compile_s") == 7.5


def test_what_a_resumed_run_compiles_in_its_second_warm_up_is_not_late() -> None:
    """It comes after the first step of the process before."""
    data = {"seconds": 4.0, "after_warm_up": False}
    events = [Event(at_s=at_s, kind="compile", message="warm-up", data=data) for at_s in (5.0, 30.0)]
    record = make_record(events=events)
    assert record.steps[0].start_s < 30.0
    assert value(found(record), "compile_after_warm_up_count") == 0


def test_compiles_of_a_log_that_does_not_tell_are_not_guessed_to_be_late() -> None:
    events = [Event(at_s=30.0, kind="compile", message="compiled", data={"seconds": 3.0})]
    late = found(make_record(events=events))["compile_after_warm_up_count"]
    assert (late.value, late.reason) == (None, "the compile log does not tell")


def test_nothing_compiled_is_zero_and_says_so() -> None:
    measurements = found(make_record())
    assert value(measurements, "compile_count") == 0
    assert "nothing was compiled" in measurements["compile_s"].method


def test_extra_wins_and_passes_through() -> None:
    extra = {
        "peak_host_bytes": Measurement(value=5e9, unit="bytes", kind="measured"),
        "energy_j": Measurement(value=960.0, unit="J", kind="measured", scope="node"),
        "sampler_share": Measurement(value=0.001, unit="1", kind="measured"),
    }
    measurements = found(make_record(), extra)
    assert set(measurements) == set(NAMES) | {"sampler_share"}
    assert value(measurements, "peak_host_bytes") == 5e9
    assert value(measurements, "energy_per_useful_token_j") == pytest.approx(960 / (40 * 480))


def test_the_verdict_comes_with_the_measurements() -> None:
    measurements, steady = summarize(make_record())
    assert steady["verdict"] == "steady"
    assert value(measurements, "steady_steps_count") == steady["n"]
    assert value(measurements, "time_to_steady_s") == 10.0 + 2.1 * steady["start_step"]
    short, verdict = summarize(make_record(steps=[make_step(1)]))
    assert verdict["verdict"] == "too short"
    assert "too short" in (short["useful_tokens_per_s_steady"].reason or "")
