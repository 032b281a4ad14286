"""Loads on the page and the terminal: every figure with its interval, by theme, and nothing said twice."""

from __future__ import annotations

import re
from html import unescape

import pytest
from load_samples import make_load
from rich.console import Console

from trueup.analysis.comparable import ComparedRun
from trueup.analysis.compare import Comparison, compare, group_of
from trueup.analysis.load_bill import make_load_bill, traffic_given
from trueup.analysis.load_metrics import load_metrics, themes_of
from trueup.analysis.load_names import LOAD_NAMES
from trueup.report.compare import comparison_text, value_text
from trueup.report.compare_page import LOADED, TRAINED, comparison_page
from trueup.report.load import load_text
from trueup.report.load_page import load_page
from trueup.report.load_words import requests_words
from trueup.schema import Measurement, RunRecord, SpanTotal

TRAFFIC = traffic_given(100_000)
GIVEN = {
    "memory_weights_bytes": Measurement(value=5e8, unit="bytes", kind="measured"),
    "quality_perplexity_ratio_short": Measurement(
        value=1.00035, unit="1", kind="measured", ci=(1.0003, 1.0004), ci_method="within_run: t"
    ),
}


def pair() -> tuple[RunRecord, RunRecord]:
    return make_load("a0", name="before"), make_load("b0", name="after", speed=2.0, given=GIVEN)


def comparison(*records: RunRecord) -> Comparison:
    groups = [group_of(one.name, [ComparedRun.of(one)]) for one in records]
    return compare(groups, traffic=TRAFFIC)


def page_of(*records: RunRecord) -> str:
    return load_page(records, {one.id: make_load_bill(one, traffic=TRAFFIC) for one in records})


def told(renderable: object) -> str:
    console = Console(width=300, record=True, file=None, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_before_and_after_have_memory_latency_quality_and_the_months_bill_on_one_page() -> None:
    for page in (page_of(*pair()), comparison_page(comparison(*pair()))):
        themes = re.findall(r"<h4>(.*?)</h4>", page)
        assert themes[:5] == ["Cost", "Rate", "Latency", "Memory", "Quality"]
        for row in (
            "$ a month, whole instances",
            "TTFT, p50",
            "memory: weights",
            "quality: perplexity ratio short",
        ):
            assert row in page


def test_each_figure_that_varies_has_its_interval_beside_it() -> None:
    """Of two runs, within each: rates, percentiles, shares, money, quality; counted bytes vary not at all."""
    found = comparison(*pair())
    for row in found.rows:
        for group in found.groups:
            figure = group.figures[row.metric]
            if figure.value is None or row.metric.startswith("memory_"):
                continue
            assert figure.ci is not None, row.metric
            assert re.search(r"±|\(.+ to .+\)", value_text(figure, row.metric)), row.metric


def test_no_shares_interval_leaves_0_to_1() -> None:
    found = comparison(*pair())
    shares = [name for name in found.groups[0].figures if name.endswith("_share")]
    assert {"goodput_share", "error_share"} <= set(shares)
    for group in found.groups:
        for name in shares:
            ci = group.figures[name].ci
            assert ci is None or 0 <= ci[0] <= ci[1] <= 1


def test_a_share_shows_its_ends_and_not_a_part_of_per_cent() -> None:
    share = Measurement(value=0.92, unit="1", kind="measured", ci=(0.88, 0.95), ci_method="within_run: a")
    assert value_text(share, "goodput_share") == "92.0 % (88.0 to 95.0 %) within run"


@pytest.mark.parametrize(
    ("ci", "shown"),
    [
        ((97.1, 102.9), "100 ±2.9 %"),
        ((92.59, 108.0), "100 (92.59 to 108)"),
        ((100 / 2.24, 224.0), "100 (44.64 to 224)"),
        ((0.0, 200.0), "100 (0 to 200)"),
    ],
)
def test_an_interval_is_said_as_more_or_less_only_where_both_ends_are_as_far(
    ci: tuple[float, float], shown: str
) -> None:
    rate = Measurement(value=100.0, unit="tokens/s", kind="measured", ci=ci, ci_method="between_runs: t")
    assert value_text(rate, "output_tokens_per_s") == shown


def test_a_rate_without_an_interval_says_why_and_so_does_what_follows_from_it() -> None:
    """Few answers of many keep the limit, so that goodput has too few for an interval; tokens have enough."""
    strict = {"name": "after", "load": {"arrivals": "poisson", "rate": 2.0, "limits": {"ttft_s": 0.6}}}
    found = comparison(make_load("a0", recipe={**strict, "name": "before"}), make_load("b0", recipe=strict))
    before = found.groups[0].figures
    assert before["output_tokens_per_s"].ci is not None
    for name in ("goodput_requests_per_s", "usd_per_month", "usd_per_month_part"):
        assert before[name].ci is None
        assert "no interval: of " in before[name].method
    for shown in (told(comparison_text(found)), comparison_page(found)):
        assert re.search(
            r"no interval of \$ a month, whole instances.* of before: of \d+ answers, and 20", shown
        )


def test_a_figure_with_an_interval_around_0_shows_its_ends() -> None:
    lost = Measurement(value=0.01, unit="1", kind="measured", ci=(-0.02, 0.04), ci_method="between_runs: a")
    assert value_text(lost, "quality_task_drop_share") == "1.0 % (-2.0 to 4.0 %)"


def test_a_ratio_is_not_rounded_out_of_its_interval() -> None:
    name = "quality_perplexity_ratio_short"
    assert value_text(GIVEN[name], name).startswith("1.0004 ±")
    assert ">1.0004<br>" in page_of(*pair())


@pytest.mark.parametrize("page", [page_of, lambda *runs: comparison_page(comparison(*runs))])
def test_no_table_of_loads_scrolls_sideways(page: object) -> None:
    assert 'class="scroll"' not in page(*pair())  # type: ignore[operator]


def test_more_loads_than_columns_stand_below_one_another() -> None:
    many = [make_load(f"{n:08x}", name=f"load-{n}") for n in range(9)]
    assert 'class="sides many"' in page_of(*many)
    assert 'class="sides many"' not in page_of(*many[:7])


def test_every_row_of_a_comparison_has_one_theme() -> None:
    names = [*LOAD_NAMES, *GIVEN, "usd_per_month", "plan_weights_bytes", "quality_task_drop_share"]
    rows = load_metrics(names)
    themes = themes_of(rows, lambda row: row.name)
    assert sorted(row.name for _, held in themes for row in held) == sorted(row.name for row in rows)


def test_the_footnote_speaks_of_what_is_on_the_page() -> None:
    loads = comparison(*pair())
    assert LOADED in comparison_page(loads)
    assert TRAINED not in comparison_page(loads)
    assert "never a request" in comparison_page(loads)
    trained = loads.model_copy(update={"kind": "train"})
    assert TRAINED in comparison_page(trained)
    assert "never a step" in comparison_page(trained)


def test_why_there_is_no_split_is_told_once_on_page_and_terminal() -> None:
    record = pair()[0]
    bill = make_load_bill(record)
    why = "no dollars for input and output tokens apart, by time"
    assert told(load_text(record, bill)).count(why) == 1
    page = load_page([record], {record.id: bill})
    assert page.count(why) == 1
    assert "<dt>by time</dt>" in page


def test_what_no_group_has_is_below_the_table_with_the_reason() -> None:
    found = comparison(*pair())
    page = comparison_page(found)
    assert re.search(r"no [^:]*preemptions[^:]*: the server", page)
    assert '<th scope="row">preemptions</th>' not in page
    assert re.search(r"no [^:]*preemptions[^:]*: the server", told(comparison_text(found)))


def test_one_sentence_says_why_a_side_has_no_quality() -> None:
    figure = Measurement(value=0.5, unit="1", kind="measured")
    given = {f"quality_{name}_share_short": figure for name in ("a", "b", "c", "d", "e")}
    found = comparison(make_load("a0"), make_load("b0", name="after", given=given))
    for shown in (told(comparison_text(found)), comparison_page(found)):
        assert shown.count(" of before: it was given no figures of a quality gate") == 1
        assert "quality: c share short and 2 more of before: it was given" in shown


def test_a_bill_does_not_say_that_a_server_was_started_which_ran_already() -> None:
    record = pair()[0].model_copy(update={"spans": (SpanTotal(name="load", seconds=7.92, count=1),)})
    shown = told(load_text(record, make_load_bill(record)))
    assert "starting and ending the load" in shown
    assert "and server" not in shown


def busy(record: RunRecord) -> RunRecord:
    """Beside neighbours that used half of the CPU."""
    share = Measurement(value=0.5, unit="1", kind="measured")
    return record.model_copy(update={"measurements": {**record.measurements, "others_cpu_share": share}})


def test_nobody_reads_a_busy_machines_month_without_a_word_of_it() -> None:
    before, after = pair()
    found = comparison(before, busy(after))
    for shown in (told(comparison_text(found)), comparison_page(found)):
        assert "Beware: after: busy machine" in shown
        assert re.search(r"\$ a month, whole instances.+\$.+, busy machine", shown)
        assert "after: other processes used 50.0% of the client machine" in shown
    assert "Beware" not in told(comparison_text(comparison(before, after)))


def test_a_comparison_says_its_limits_and_its_traffic() -> None:
    found = comparison(*pair())
    for shown in (told(comparison_text(found)), unescape(comparison_page(found))):
        assert "answers within the limits are of: TTFT ≤ 1.4 s" in shown
        assert f"a month is of {TRAFFIC.words}" in shown


def test_a_closed_load_is_not_said_to_be_offered() -> None:
    """An older record has a figure all the same."""
    record = make_load(
        recipe={"name": "before", "load": {"arrivals": "closed", "concurrency": 2, "limits": {}}}
    )
    rate = Measurement(value=1.047, unit="requests/s", kind="measured")
    record = record.model_copy(
        update={"measurements": {**record.measurements, "offered_requests_per_s": rate}}
    )
    said = list(requests_words(record))
    assert not [line for line in said if "offered" in line]
    assert [line for line in said if "answered:" in line]
    assert "offered" in "".join(requests_words(make_load()))
