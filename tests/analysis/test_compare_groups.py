"""Comparing groups of runs: what is refused, what is said, and that the verdict is the runs' own."""

from __future__ import annotations

import math
from typing import Any

import pytest
from compared_runs import make_group, make_run

from trueup.analysis.comparable import Group
from trueup.analysis.compare import Comparison, compare, group_of
from trueup.analysis.compare_findings import Finding
from trueup.schema import InputError, Measurement, Price, unavailable

COST = "usd_per_million_useful_tokens"
A = [0.101, 0.097, 0.104, 0.099, 0.100]
B = [0.088, 0.085, 0.093, 0.086, 0.089]


def finding(found: Comparison, metric: str = COST, group: str = "b") -> Finding:
    (one,) = (one for one in found.findings if (one.metric, one.group) == (metric, group))
    return one


def figure(value: float, unit: str = "1", **more: Any) -> Measurement:
    return Measurement(value=value, unit=unit, kind="measured", **more)


# --- verdicts ---------------------------------------------------------------------------------------------


def test_the_cheaper_group_is_called_so_with_its_ratio_and_interval() -> None:
    found = compare([make_group("a", A), make_group("b", B, first=1)])
    one = finding(found)
    assert one.verdict == "cheaper"
    assert one.ratio.value == pytest.approx(
        math.exp(sum(math.log(b / a) for a, b in zip(A, B, strict=True)) / 5)
    )
    assert one.ratio.ci is not None
    assert one.ratio.ci[0] < one.ratio.value < one.ratio.ci[1] < 1
    assert found.headline[0].startswith("b is cheaper than a")


def test_swapping_the_groups_turns_every_verdict_over() -> None:
    there = compare([make_group("a", A), make_group("b", B, first=1)])
    back = compare([make_group("b", B, first=1), make_group("a", A)])
    turned = {"cheaper": "dearer", "dearer": "cheaper", "faster": "slower", "slower": "faster"}
    for one in there.findings:
        other = finding(back, one.metric, "a")
        assert other.verdict == turned.get(one.verdict, one.verdict)
        if one.ratio.value is not None:
            assert other.ratio.value == pytest.approx(1 / one.ratio.value)


def test_groups_that_took_turns_on_one_host_are_compared_in_pairs() -> None:
    assert finding(compare([make_group("a", A), make_group("b", B, first=1)])).design == "paired"


@pytest.mark.parametrize(
    "other",
    [
        make_group("b", B, first=100),
        make_group("b", B, first=1, environment={"host": {"hostname": "two"}}),
        make_group("b", B[:4], first=1),
    ],
    ids=["one after the other", "on two hosts", "of unequal size"],
)
def test_others_are_compared_as_groups(other: Group) -> None:
    assert finding(compare([make_group("a", A), other])).design == "welch"


def test_first_one_then_the_other_by_turns_is_paired_too() -> None:
    def at(name: str, first: int, costs: list[float], minutes: tuple[int, ...]) -> Group:
        runs = [
            make_run(f"{first + k:08x}", cost, minute=minute)
            for k, (cost, minute) in enumerate(zip(costs, minutes, strict=True))
        ]
        return Group(name, tuple(runs))

    groups = [at("a", 0, A, (0, 5, 10, 25, 30)), at("b", 50, B, (2, 4, 12, 23, 33))]
    assert finding(compare(groups)).design == "paired"


def test_a_run_against_many_has_figures_and_no_verdict_and_says_how_many_it_takes() -> None:
    found = compare([make_group("here", [0.1]), make_group("b", B, first=100)])
    one = finding(found)
    assert one.verdict == "no verdict"
    assert one.ratio.value is not None
    assert one.ratio.ci is None
    assert one.more_runs is not None
    assert one.more_runs >= 2
    assert "at least 3 of each are needed" in one.words
    assert found.headline[0].startswith("no verdict on b against here")


def test_runs_too_few_to_tell_are_said_to_be_so_with_how_many_more() -> None:
    one = finding(
        compare([make_group("a", [0.1, 0.14, 0.12]), make_group("b", [0.13, 0.11, 0.15], first=100)])
    )
    assert one.verdict == "not enough runs"
    assert one.more_runs is not None
    assert f"about {one.more_runs} more of each" in one.words


def test_nearly_equal_groups_are_the_same() -> None:
    one = finding(compare([make_group("a", A), make_group("b", [1.001 * cost for cost in A], first=1)]))
    assert one.verdict == "the same"
    assert "within 2%" in one.words


def test_an_interval_within_one_run_never_feeds_a_verdict() -> None:
    steady = figure(0.1, "USD/million useful tokens", ci=(0.0999, 0.1001), ci_method="within_run: bootstrap")
    dear = figure(0.5, "USD/million useful tokens", ci=(0.4999, 0.5001), ci_method="within_run: bootstrap")
    name = "usd_per_million_useful_tokens_steady"
    a = Group("a", (make_run("00000001", figures={name: steady}),))
    b = Group("b", (make_run("00000002", figures={name: dear}),))
    one = finding(compare([a, b]), name)
    assert (one.verdict, one.ratio.ci) == ("no verdict", None)


def test_what_was_learnt_is_not_judged_by_runs_of_one_seed() -> None:
    def group(name: str, first: int, seed: int | None) -> Group:
        recipe = {} if seed is None else {"recipe": {"train": {"seed": seed}}}
        runs = [
            make_run(
                f"{first + k:08x}", figures={"eval_perplexity_best": figure(first + 10 + 0.01 * k)}, **recipe
            )
            for k in range(4)
        ]
        return Group(name, tuple(runs))

    alike = finding(compare([group("a", 0, 7), group("b", 50, 7)]), "eval_perplexity_best")
    assert alike.verdict == "no verdict"
    assert "1 seed" in alike.words
    assert (
        finding(compare([group("a", 0, None), group("b", 50, None)]), "eval_perplexity_best").verdict
        == "worse"
    )


def test_several_groups_are_judged_together_against_the_first() -> None:
    """A difference that would pass alone may not beside many: Holm."""
    near = make_group("b", [1.045 * cost for cost in A], first=100)
    noise = [make_group(f"n{k}", [0.13, 0.07, 0.105, 0.09], first=200 + 50 * k) for k in range(6)]
    assert finding(compare([make_group("a", A), near])).verdict == "dearer"
    assert finding(compare([make_group("a", A), near, *noise])).verdict == "not enough runs"


# --- figures ----------------------------------------------------------------------------------------------


def test_a_groups_figure_is_the_geometric_mean_with_an_interval_between_runs() -> None:
    found = compare([make_group("a", A), make_group("b", B, first=1)]).groups[0].figures[COST]
    assert found.value == pytest.approx(math.exp(sum(map(math.log, A)) / 5))
    assert (found.kind, found.n) == ("derived", 5)
    assert (found.ci_method or "").startswith("between_runs")


def test_one_estimated_figure_makes_the_groups_estimated() -> None:
    guess = Measurement(value=5.0, unit="J", kind="estimated", method="by its TDP")
    runs = (
        make_run("00000001", figures={"energy_j": figure(5.1, "J")}),
        make_run("00000002", figures={"energy_j": guess}),
    )
    found = compare([Group("a", runs), make_group("b", B, first=9)])
    assert found.groups[0].figures["energy_j"].kind == "estimated"


def test_a_figure_nobody_has_is_unavailable_with_the_reason() -> None:
    none = {"energy_j": unavailable("J", "no readable sensor")}
    a, b = (Group(n, (make_run(i, figures=none),)) for n, i in (("a", "00000001"), ("b", "00000002")))
    found = compare([a, b])
    assert found.groups[0].figures["energy_j"].reason == "no readable sensor"
    one = finding(found, "energy_j")
    assert (one.verdict, one.ratio.kind) == ("no verdict", "unavailable")


def test_task_scores_are_in_the_table_and_higher_is_better() -> None:
    def group(name: str, first: int, score: float) -> Group:
        return Group(
            name,
            tuple(
                make_run(f"{first + k:08x}", figures={"gsm8k_accuracy": figure(score + 0.001 * k)})
                for k in range(3)
            ),
        )

    assert finding(compare([group("a", 0, 0.3), group("b", 50, 0.4)]), "gsm8k_accuracy").verdict == "better"


# --- refusals ---------------------------------------------------------------------------------------------


def test_a_run_on_both_sides_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"run 00000000 \(demo\) is on both sides, in 'a' and in 'b'"):
        compare(
            [Group("a", (make_run("00000000"),)), Group("b", (make_run("00000000"), make_run("00000001")))]
        )


def test_a_throughput_of_zero_is_refused() -> None:
    idle = make_run("00000007", figures={"useful_tokens_per_s": figure(0.0, "tokens/s")})
    with pytest.raises(InputError, match=r"run 00000007 \(demo\) has a throughput of 0 tokens/s"):
        compare([make_group("a", A), Group("b", (idle,))])


def test_two_currencies_are_refused() -> None:
    with pytest.raises(InputError, match=r"mixed currencies.*USD/million.*EUR/million"):
        compare([make_group("a", A), Group("b", (make_run("00000099", unit="EUR/million useful tokens"),))])


def test_one_group_is_no_comparison() -> None:
    with pytest.raises(InputError, match="name two selections or more"):
        compare([make_group("a", A)])


def test_a_group_in_which_nothing_finished_is_refused_with_what_became_of_it() -> None:
    with pytest.raises(InputError, match=r"b\*: no finished run to compare \(00000001 is failed\)"):
        group_of("b*", [make_run("00000001", state="failed")])


def test_runs_that_did_not_finish_are_left_out_and_named() -> None:
    broken = make_run("0000abcd", 99.0, state="failed", reason="out of memory")
    found = compare([group_of("a", [*make_group("a", A).runs, broken]), make_group("b", B, first=1)])
    (gone,) = found.groups[0].left_out
    assert (gone.id, gone.state, gone.reason) == ("0000abcd", "failed", "out of memory")
    assert found.groups[0].figures[COST].n == 5


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("data", {"digest": "ffff"}),
        ("loss_mask", {"recipe": {"data": {"loss_on": "all"}}}),
        ("sequence", {"recipe": {"data": {"max_length": 256}}}),
        ("sequence", {"recipe": {"data": {"overlong": "truncate"}}}),
        ("model", {"recipe": {"model": {"path": "llama"}}}),
        ("evaluation", {"recipe": {"evaluate": {"max_tokens": 9}}}),
        ("tokenizer", {"model": None}),
    ],
)
def test_what_is_not_compared_must_agree_and_the_difference_is_named(
    key: str, change: dict[str, Any]
) -> None:
    groups = [make_group("a", A), make_group("b", B, first=1, **change)]
    with pytest.raises(
        InputError, match=rf"(?s)differ in what is not being compared.*  {key}, .*--allow-difference {key}"
    ):
        compare(groups)
    allowed = ["model", "tokenizer"] if key == "tokenizer" else [key]
    assert key in [one.key for one in compare(groups, allowed=allowed).allowed]


def test_why_the_data_differ_is_said() -> None:
    mine = make_group("b", B, first=1, digest="f", recipe={"data": {"source": "mine.jsonl"}})
    with pytest.raises(InputError, match=r"data\.source: stdlib-docs in a; mine\.jsonl in b"):
        compare([make_group("a", A), mine])
    with pytest.raises(InputError, match="the source held something else"):
        compare([make_group("a", A), make_group("b", B, first=1, digest="f")])


def test_an_unknown_difference_cannot_be_allowed() -> None:
    with pytest.raises(
        InputError, match="--allow-difference dta: there is no such thing; it is one of data, "
    ):
        compare([make_group("a", A), make_group("b", B, first=1)], allowed=["dta"])


# --- by a setting -----------------------------------------------------------------------------------------


def test_runs_of_one_selection_are_grouped_by_a_setting() -> None:
    low = make_group("low", A, recipe={"tune": {"rank": 4}})
    high = make_group("high", B, first=1, recipe={"tune": {"rank": 64}})
    found = compare([Group("all", (*low.runs, *high.runs))], by="tune.rank")
    assert [group.name for group in found.groups] == ["tune.rank=4", "tune.rank=64"]
    assert finding(found, group="tune.rank=64").verdict == "cheaper"


def test_runs_are_grouped_by_platform() -> None:
    gpu = {"environment": {"device": {"kind": "cuda", "name": "H200"}}}
    groups = [make_group("a", A), make_group("b", B, first=1, **gpu)]
    assert [one.name for one in compare(groups, by="platform").groups] == [
        "platform=cpu, some CPU",
        "platform=cuda, H200",
    ]


def test_the_setting_that_groups_may_differ_in_the_data_it_makes() -> None:
    short = make_group("s", A, digest="1", recipe={"data": {"max_length": 128}})
    long = make_group("l", B, first=1, digest="2")
    found = compare([Group("all", (*short.runs, *long.runs))], by="data.max_length")
    assert {one.key for one in found.allowed} == {"data", "sequence"}


def test_a_run_selected_twice_counts_once_when_grouped() -> None:
    low = make_group("low", A, recipe={"tune": {"rank": 4}})
    high = make_group("high", B, first=1)
    found = compare([low, Group("all", (*low.runs, *high.runs))], by="tune.rank")
    assert [len(one.runs) for one in found.groups] == [5, 5]


@pytest.mark.parametrize(
    ("by", "why"), [("tune.rnk", "none of the runs has it"), ("tune.rank", "all 5 finished runs have")]
)
def test_a_setting_that_does_not_part_the_runs_is_refused(by: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        compare([make_group("a", A)], by=by)


# --- what could explain it --------------------------------------------------------------------------------


def test_everything_around_the_runs_that_differs_is_listed() -> None:
    around = {"host": {"kernel": "6.6"}, "versions": {"torch": "2.14.0"}}
    found = compare([make_group("a", A), make_group("b", B, first=1, environment=around)])
    listed = {one.key: one.values for one in found.environment}
    assert listed == {
        "host.kernel": {"a": "6.1", "b": "6.6"},
        "versions.torch": {"a": "2.13.0", "b": "2.14.0"},
    }


def test_the_settings_compared_are_listed_without_seeds_and_prices() -> None:
    found = compare(
        [
            make_group("a", A),
            make_group("b", B, first=1, recipe={"tune": {"rank": 4}, "price": {"usd_per_hour": 9}}),
        ]
    )
    assert [one.key for one in found.compared] == ["tune.rank"]


def test_the_gate_on_quality_is_no_setting_of_a_training() -> None:
    gated = make_group("b", B, first=1, recipe={"quality": {"short": 20, "margin": 0.02}})
    assert compare([make_group("a", A), gated]).compared == ()


def test_what_an_older_record_does_not_speak_of_is_told_from_a_setting_that_is_none() -> None:
    later = {"train": {"new": 1}, "platform": {"instance": "p4d.24xlarge"}}
    found = compare([make_group("a", A), make_group("b", B, first=1, recipe=later)])
    assert {one.key: one.absent for one in found.compared} == {"train.new": ("a",), "platform.instance": ()}


def test_a_section_that_is_none_on_one_side_is_recorded_there() -> None:
    older = make_group("a", A, recipe={"budget": None})
    limited = make_group("b", B, first=1, recipe={"budget": {"usd_per_million_tokens": 0.3}})
    assert all(one.absent == () for one in compare([older, limited]).compared)


def test_groups_that_ran_one_after_the_other_on_one_host_are_noted() -> None:
    found = compare([make_group("a", A), make_group("b", B, first=100)])
    assert any("not in turns" in note for note in found.notes)
    apart = compare([make_group("a", A), make_group("b", B, first=1)])
    assert apart.notes == ()


def test_runs_at_the_same_time_on_one_host_are_noted() -> None:
    found = compare([make_group("a", A, wall_s=90.0), make_group("b", B, first=1)])
    assert any("ran at the same time on one host" in note for note in found.notes)


def test_neighbours_of_one_side_only_are_noted() -> None:
    busy = {"others_cpu_share_steady": figure(0.3)}
    quiet = {"others_cpu_share_steady": figure(0.0)}
    a = Group("a", tuple(make_run(f"{k:08x}", cost, figures=quiet, minute=2 * k) for k, cost in enumerate(A)))
    b = Group(
        "b", tuple(make_run(f"{k + 9:08x}", cost, figures=busy, minute=2 * k + 1) for k, cost in enumerate(B))
    )
    assert any("30.0% beside b" in note for note in compare([a, b]).notes)


# --- the front --------------------------------------------------------------------------------------------


def placed(name: str, first: int, usd: float, perplexity: float, wall_s: float) -> Group:
    figures = {"eval_perplexity_best": figure(perplexity), "wall_s": figure(wall_s, "s")}
    return Group(name, (make_run(f"{first:08x}", usd, figures=figures),))


def test_the_front_holds_what_no_other_group_beats_everywhere() -> None:
    groups = [placed("cheap", 1, 0.1, 20, 60), placed("good", 2, 0.3, 10, 60), placed("bad", 3, 0.4, 21, 61)]
    found = compare(groups)
    assert {one.group: one.behind for one in found.front} == {
        "cheap": (),
        "good": (),
        "bad": ("cheap", "good"),
    }
    assert "cheap, good; behind it: bad (behind cheap, good)" in found.front_words


def test_a_group_without_a_quality_has_no_place_on_the_front() -> None:
    found = compare([placed("a", 1, 0.1, 20, 60), make_group("b", [0.2], first=9)])
    assert [one.group for one in found.front] == ["a"]
    assert found.front_words.endswith("without a place for want of a figure: b")


def test_a_price_of_long_ago_is_noted_once_for_each_group() -> None:
    old = Price(usd_per_hour=3.6, source="a list", as_of="2026-01-01")
    notes = compare([make_group("a", [1.0, 1.1], price=old), make_group("b", [1.0, 1.1], first=1)]).notes
    (note,) = [one for one in notes if "as of 2026-01-01" in one]
    assert note.startswith("a: ")


def test_a_run_without_a_readable_start_is_refused() -> None:
    damaged = Group("a", (make_run("00000001", started_at="last week"),))
    with pytest.raises(InputError, match="run 00000001 has no place among others"):
        compare([damaged, make_group("b", [1.0], first=1)])
