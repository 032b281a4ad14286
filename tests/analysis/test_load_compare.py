"""Loads are compared with loads of the same traffic: the model and its serving may differ, the load not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from compared_runs import make_run
from load_records import PRICE, make_load, request

from trueup.analysis.comparable import ComparedRun
from trueup.analysis.compare import Comparison, compare, group_of
from trueup.analysis.load_bill import load_costs, traffic_given
from trueup.analysis.load_figures import summarize_load
from trueup.schema import InputError, Measurement


def load_run(
    run_id: str, first_s: float = 1.0, *, given: dict[str, Measurement] | None = None, **load: Any
) -> ComparedRun:
    """A load of 60 requests whose first token takes so long."""
    asked = [
        request(
            n, 0.5 * n, first_s=0.5 * n + first_s, last_s=0.5 * n + first_s + 1, done_s=0.5 * n + first_s + 1
        )
        for n in range(60)
    ]
    record = make_load(asked, id=run_id, name=f"load-{run_id}", load=load)
    measurements = summarize_load(record, extra=given or {})
    measurements |= load_costs(record.model_copy(update={"measurements": measurements}), PRICE)
    return ComparedRun.of(record.model_copy(update={"measurements": measurements}))


def compared(before: list[ComparedRun], after: list[ComparedRun], **more: Any) -> Comparison:
    return compare([group_of("before", before), group_of("after", after)], **more)


def test_latency_cost_and_goodput_are_rows_with_intervals_between_runs() -> None:
    before = [load_run(f"a{n}", 1.0 + 0.01 * n, seed=n) for n in range(3)]
    after = [load_run(f"b{n}", 0.5 + 0.01 * n, seed=n) for n in range(3)]
    found = compared(before, after)
    rows = [row.metric for row in found.rows]
    assert rows[0] == "usd_per_million_output_tokens"
    assert {"ttft_p50_s", "goodput_requests_per_s", "e2e_p90_s", "error_share"} <= set(rows)
    ttft = next(one for one in found.findings if one.metric == "ttft_p50_s")
    assert ttft.verdict == "faster"
    assert ttft.ratio.value == pytest.approx(0.51 / 1.01, rel=0.02)
    assert ttft.ratio.ci is not None
    assert "useful" not in " ".join(found.headline)


def test_the_interval_of_a_share_between_runs_ends_at_1() -> None:
    def answered(run_id: str, share: float) -> ComparedRun:
        run = load_run(run_id)
        told = {**run.measurements, "goodput_share": Measurement(value=share, unit="1", kind="measured")}
        return replace(run, measurements=told)

    before = [answered(f"a{n}", share) for n, share in enumerate((0.6, 0.99, 0.98))]
    after = [answered(f"b{n}", share) for n, share in enumerate((0.90, 0.91, 0.92))]
    first, second = (group.figures["goodput_share"] for group in compared(before, after).groups)
    assert first.ci is not None
    assert first.ci[1] == 1.0
    assert "cut at 1" in (first.ci_method or "")
    assert second.ci is not None
    assert second.ci[1] < 1.0
    assert "cut" not in (second.ci_method or "")


def test_fewer_than_three_repeats_have_no_verdict() -> None:
    found = compared([load_run("a0"), load_run("a1")], [load_run("b0", 0.5), load_run("b1", 0.5)])
    assert {one.verdict for one in found.findings} == {"no verdict"}


def test_memory_by_owner_and_quality_stand_on_the_same_page() -> None:
    def given(weights: float, perplexity: float, agreement: float) -> dict[str, Measurement]:
        return {
            "memory_weights_bytes": Measurement(value=weights, unit="bytes", kind="measured"),
            "quality_perplexity": Measurement(value=perplexity, unit="1", kind="measured", ci=(9.0, 11.0)),
            "quality_top_agreement_share": Measurement(value=agreement, unit="1", kind="measured"),
            "quality_perplexity_original": Measurement(value=9.9, unit="1", kind="measured"),
        }

    before = [load_run(f"a{n}", given=given(500e6, 10.0, 1.0), seed=n) for n in range(3)]
    after = [load_run(f"b{n}", given=given(150e6, 10.5, 0.97), seed=n) for n in range(3)]
    found = compared(before, after)
    better = {row.metric: row.better for row in found.rows}
    assert better["memory_weights_bytes"] == "lower"
    assert better["quality_perplexity"] == "lower"
    assert better["quality_top_agreement_share"] == "higher"
    assert "quality_perplexity_original" not in better
    assert found.groups[0].figures["quality_perplexity"].ci == (9.0, 11.0)


def test_of_a_load_that_was_given_no_quality_it_is_said_that_an_original_has_none() -> None:
    judged = {"quality_perplexity": Measurement(value=10.5, unit="1", kind="measured")}
    original, _ = compared([load_run("a0")], [load_run("b0", given=judged)]).groups
    figure = original.figures["quality_perplexity"]
    assert figure.value is None
    assert "no figures of a quality gate; an original has none" in (figure.reason or "")


def judged_and_original(**served: Any) -> tuple[ComparedRun, ComparedRun]:
    """A load on smollm2-135m, and one on what was made of it, with what the gate measured of both."""

    def of(value: float, ci: tuple[float, float]) -> Measurement:
        return Measurement(value=value, unit="1", kind="measured", ci=ci, ci_method="within_run: t")

    given = {
        "quality_perplexity_short": of(15.5, (14.9, 16.1)),
        "quality_perplexity_original_short": of(15.0, (14.5, 15.5)),
        "quality_kl_nats_short": of(0.02, (0.01, 0.03)),
    }
    original, quantised = load_run("a0"), load_run("b0", given=given)
    recipes = (
        {"model": {"path": "smollm2-135m"}, **served},
        {"model": {"path": "small-int8"}, "quality": {"original": "hub/SmolLM2-135M"}},
    )
    first, second = (
        replace(run, header=run.header.model_copy(update={"recipe": {**run.header.recipe, **recipe}}))
        for run, recipe in zip((original, quantised), recipes, strict=True)
    )
    return first, second


def test_the_originals_perplexity_is_what_the_gate_of_the_quantised_model_measured() -> None:
    original, quantised = judged_and_original()
    found = compared([original], [quantised])
    before = found.groups[0].figures
    assert (before["quality_perplexity_short"].value, before["quality_perplexity_short"].ci) == (
        15.0,
        (14.5, 15.5),
    )
    assert before["quality_kl_nats_short"].value is None
    assert "is of hub/SmolLM2-135M, the original, as the gate that judged load-b0" in found.stated[-1]
    (ratio,) = [one for one in found.findings if one.metric == "quality_perplexity_short"]
    assert ratio.ratio.value == pytest.approx(15.5 / 15.0)
    assert ratio.verdict == "no verdict"


@pytest.mark.parametrize(
    "served",
    [{"model": {"path": "another"}}, {"server": {"options": ["--quant=int8"]}}],
    ids=["another model", "rounded while it was loaded"],
)
def test_what_the_gate_measured_of_the_original_is_said_of_no_other(served: dict[str, Any]) -> None:
    original, quantised = judged_and_original(**served)
    found = compared([original], [quantised])
    assert found.groups[0].figures["quality_perplexity_short"].value is None
    assert len(found.stated) == 1


def test_repeats_of_a_judgement_do_not_make_it_surer() -> None:
    original, quantised = judged_and_original()

    def thrice(run: ComparedRun) -> list[ComparedRun]:
        ids = [f"{run.id[:1]}{n}" for n in range(3)]
        return [replace(run, header=run.header.model_copy(update={"id": one})) for one in ids]

    found = compared(thrice(original), thrice(quantised))
    (ratio,) = [one for one in found.findings if one.metric == "quality_perplexity_short"]
    assert ratio.verdict == "no verdict"
    assert "says nothing more of it" in ratio.words


def test_a_month_at_a_stated_traffic_is_a_row() -> None:
    groups = [group_of("before", [load_run("a0")]), group_of("after", [load_run("b0", 0.5)])]
    found = compare(groups, traffic=traffic_given(1e6))
    assert found.rows[0].metric == "usd_per_month"
    assert "$ a month, whole instances" in found.headline[0]
    figures = [group.figures["usd_per_month"] for group in found.groups]
    assert all(one.value is not None and one.value > 0 for one in figures)


def test_how_far_a_loads_own_figures_carry_is_said_of_the_comparison_too() -> None:
    others = Measurement(value=0.4, unit="1", kind="measured")
    busy, slow = load_run("b0", given={"others_cpu_share": others}), load_run("b1")
    rate = Measurement(
        value=slow.measurements["completed_requests_per_s"].value * 2, unit="requests/s", kind="measured"
    )
    slow = replace(slow, measurements={**slow.measurements, "offered_requests_per_s": rate})
    found = compared([load_run("a0")], [busy, slow])
    assert found.groups[0].warnings == ()
    assert found.groups[1].warnings == ("busy machine (1 of 2 loads)", "did not keep up (1 of 2 loads)")
    assert all(words in found.headline[0] for words in found.groups[1].warnings)
    notes = "\n".join(found.notes)
    assert "load-b0: other processes used 40.0% of the client machine's CPU" in notes
    assert "load-b1: the server did not keep up" in notes


def test_the_limits_that_answers_are_held_to_are_said_by_group_where_they_differ() -> None:
    limited = {"limits": {"ttft_s": 2.0, "tpot_s": 0.1}}
    same = compared([load_run("a0", **limited)], [load_run("b0", **limited)])
    assert same.stated == ("goodput and answers within the limits are of: TTFT ≤ 2 s and TPOT ≤ 0.1 s",)
    found = compared([load_run("a0", **limited)], [load_run("b0")], allowed=["limits"])
    assert "TTFT ≤ 2 s and TPOT ≤ 0.1 s of before; no limit was stated of after" in found.stated[0]


def test_no_errors_on_either_side_is_shown_as_none_and_not_as_unknown() -> None:
    found = compared([load_run("a0"), load_run("a1")], [load_run("b0"), load_run("b1")])
    assert [group.figures["error_share"].value for group in found.groups] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("key", "load"),
    [
        ("arrivals", {"rate": 2.0}),
        ("arrivals", {"arrivals": "closed", "concurrency": 4}),
        ("lengths", {"trace_digest": "another"}),
        ("lengths", {"length_scale": 0.5}),
        ("endpoint", {"chat": True}),
        ("limits", {"limits": {"ttft_s": 1.0}}),
    ],
)
def test_loads_that_differ_are_refused_unless_it_is_allowed(key: str, load: dict[str, Any]) -> None:
    before, after = [load_run("a0")], [load_run("b0", **load)]
    with pytest.raises(InputError, match=f"--allow-difference {key}"):
        compared(before, after)
    assert compared(before, after, allowed=[key]).allowed[0].key == key


def test_what_differs_is_said_in_words() -> None:
    one = {"limits": {"ttft_s": 2.0}, "timeout_s": 600.0, "chat": True, "trace_digest": "ab" * 32}
    other = {"limits": {}, "timeout_s": 60.0, "chat": False, "trace_digest": "cd" * 32, "concurrency": 4}
    with pytest.raises(InputError) as caught:
        compared([load_run("a0", **one)], [load_run("b0", **other)])
    told = str(caught.value)
    assert (
        "TTFT ≤ 2 s, given up after 600 s in before; no limit was stated, given up after 60 s in after"
        in told
    )
    assert "poisson, 1 a second in before; poisson, 1 a second, 4 in flight in after" in told
    assert "chat completions in before; completions in after" in told
    assert "a trace with the digest abababababab… in before" in told
    assert not any(sign in told for sign in ("{", "None", "abababababababab"))


def test_another_seed_is_another_repeat_and_no_difference() -> None:
    found = compared([load_run("a0", seed=1)], [load_run("b0", seed=2)])
    assert found.compared == ()
    assert found.groups[0].seeds == ("1",)


def test_a_load_and_a_training_have_nothing_in_common() -> None:
    with pytest.raises(InputError, match=r"is a load on a server, run .* trained a model"):
        compared([load_run("a0")], [make_run("00000001")])


def test_a_training_has_no_traffic() -> None:
    groups = [group_of("a", [make_run("00000001")]), group_of("b", [make_run("00000002")])]
    with pytest.raises(InputError, match="--traffic is for loads"):
        compare(groups, traffic=traffic_given(10))


def test_an_allowance_for_trainings_is_none_for_loads() -> None:
    with pytest.raises(InputError, match=r"--allow-difference data: there is no such thing; .* arrivals"):
        compared([load_run("a0")], [load_run("b0")], allowed=["data"])
