"""`trueup bill`: several prices, energy, one-offs, studies, the red line; and what it refuses."""

from __future__ import annotations

import json
import re
from math import fsum
from pathlib import Path

import pytest
from money_runs import changed, copied, document, only_run

from in_process import Main, refused

OWNED = """\
currency: USD
capital: 8760
life_years: 1
power_w: 1000
pue: 1.5
electricity_per_kwh: 0.1
hours_per_year: 8760
"""


def test_prices_stand_side_by_side(main: Main, finished: Path) -> None:
    bill = document(main, "bill", "last", "--price", "on-demand=7.2", "--price", "capacity-block=1.8")
    totals = {row["model"]: row["total"]["value"] for row in bill["price_models"]}
    assert list(totals) == ["as billed", "on-demand=7.2", "capacity-block=1.8"]
    assert totals["as billed"] == pytest.approx(bill["total_usd"])
    assert totals["on-demand=7.2"] == pytest.approx(2 * bill["total_usd"])
    assert totals["capacity-block=1.8"] == pytest.approx(bill["total_usd"] / 2)


def test_every_price_gives_the_cost_of_a_token_with_kind_and_arithmetic(main: Main, finished: Path) -> None:
    (_, row) = document(main, "bill", "last", "--price", "on-demand=7.2")["price_models"]
    bill = document(main, "bill", "last", "--usd-per-hour", "7.2")
    cost = row["usd_per_million_useful_tokens"]
    assert cost["value"] == pytest.approx(bill["usd_per_million_useful_tokens"]["value"])
    assert (cost["kind"], cost["unit"]) == ("derived", "USD/million useful tokens")
    assert "7.2 USD/h (quoted, given on the command line)" in row["total"]["method"]


def test_a_model_without_a_price_stays_in_the_table_with_the_reason(main: Main, finished: Path) -> None:
    (_, row) = document(main, "bill", "last", "--price", "spot")["price_models"]
    assert row["total"]["kind"] == "unavailable"
    assert "platform.instance" in row["total"]["reason"]
    shown = main("bill", "last", "--price", "spot")
    assert shown.code == 0
    assert "spot: the run's instance is not known" in " ".join(shown.out.split())


def on_instance(home: Path, instance: str, started_at: str = "2026-11-29T10:00:00Z") -> None:
    folder = only_run(home)
    recipe = json.loads((folder / "run.json").read_text())["recipe"]
    recipe["platform"]["instance"] = instance
    changed(folder, recipe=recipe, started_at=started_at)


def test_a_name_alone_is_looked_up_for_the_runs_instance(main: Main, finished: Path) -> None:
    on_instance(finished, "trn1.32xlarge")
    rows = document(main, "bill", "last", "--price", "on-demand", "--price", "reserved-3y")["price_models"]
    assert rows[1]["per_hour"]["value"] >= 21.5  # the provider bills a minute at the least
    assert rows[2]["per_hour"]["value"] == pytest.approx(8.197)


def test_the_report_shows_the_run_under_every_price_that_is_listed(
    main: Main, finished: Path, tmp_path: Path
) -> None:
    on_instance(finished, "trn1.32xlarge")
    assert main("report", "last", "-o", tmp_path / "page.html").code == 0
    under = (tmp_path / "page.html").read_text().partition("<h3>Under other prices</h3>")[2]
    rows = under.partition("</table>")[0]
    models = re.findall(r'<tr><th scope="row">([^<]+)</th>', rows)
    assert models[:2] == ["as billed", "on-demand"]
    assert "reserved-3y" in models
    assert "unavailable" not in rows


def test_a_report_of_a_run_on_an_unknown_machine_has_no_table_of_prices(
    main: Main, finished: Path, tmp_path: Path
) -> None:
    assert main("report", "last", "-o", tmp_path / "page.html").code == 0
    assert "Under other prices" not in (tmp_path / "page.html").read_text()


def test_the_price_is_the_one_of_the_day_the_run_began(main: Main, finished: Path) -> None:
    """p4d cost 32.77 dollars an hour before June 2025."""
    on_instance(finished, "p4d.24xlarge", started_at="2025-03-01T10:00:00Z")
    (_, row) = document(main, "bill", "last", "--price", "on-demand")["price_models"]
    assert "32.77 USD/h" in row["total"]["method"]


def test_an_instance_without_a_list_price_says_that_there_is_none(main: Main, finished: Path) -> None:
    on_instance(finished, "trn2.48xlarge")
    (_, row) = document(main, "bill", "last", "--price", "on-demand")["price_models"]
    assert "no on-demand price is listed" in row["total"]["reason"]


def test_an_old_price_says_so(main: Main, finished: Path) -> None:
    price = {"usd_per_hour": 3.6, "source": "a test", "kind": "quoted", "as_of": "2026-01-01"}
    changed(only_run(finished), price=price, started_at="2026-11-29T10:00:00Z")
    bill = document(main, "bill", "last", "--price", "on-demand=1")
    assert any("older than 90" in note for note in bill["notes"])
    assert any("older than 90" in note for note in bill["price_models"][0]["notes"])


def test_a_machine_of_ones_own(main: Main, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWNED)
    (_, row) = document(main, "bill", "last", "--price", f"owned={tmp_path / 'own.yaml'}")["price_models"]
    assert row["per_hour"]["value"] == pytest.approx(1.0 + 0.15)  # capital, and 1 kW × 1.5 × 0.1
    assert row["total"]["kind"] == "estimated"


def test_a_run_without_a_price_is_billed_at_the_first_one_asked_for(main: Main, finished: Path) -> None:
    changed(only_run(finished), price=None)
    bill = document(main, "bill", "last", "--price", "spot", "--price", "on-demand=7.2")
    assert bill["price"]["usd_per_hour"] == pytest.approx(7.2)
    refused(main("bill", "last", "--price", "spot"), 2, "has no price")


def test_the_energy_is_priced_where_there_is_a_meter(main: Main, finished: Path) -> None:
    path = only_run(finished) / "measurements.json"
    found = json.loads(path.read_text())
    found["energy_j"] = {**found["energy_j"], "value": 7.2e6, "kind": "measured", "reason": None}
    path.write_text(json.dumps(found))
    bill = document(main, "bill", "last", "--tariff", "0.12")
    assert bill["energy"]["cost"]["value"] == pytest.approx(0.24)
    assert "energy: 2 kWh, measured, is $0.2400 of electricity" in " ".join(
        main("bill", "last", "--tariff", "0.12").out.split()
    )


def test_a_one_off_is_on_the_bill_as_a_line(main: Main, finished: Path) -> None:
    hours = ["--debug-hours", "3", "--usd-per-debug-hour", "100", "--over", "60"]
    plain, bill = document(main, "bill", "last"), document(main, "bill", "last", *hours)
    assert bill["total_usd"] == pytest.approx(plain["total_usd"] + 5.0)
    assert {line["name"]: line["usd"] for line in bill["lines"]}["one_off"] == 5.0
    assert "one-off work, spread over runs" in main("bill", "last", *hours).out


def test_a_pattern_of_names_is_billed_as_a_study(main: Main, finished: Path) -> None:
    copied(finished, "bbbb", "tiny-b", usd_per_hour=7.2)
    copied(finished, "cccc", "tiny-c", state="failed", reason="no memory")
    study = document(main, "bill", "tiny*")
    assert len(study["runs"]) == len(study["bills"]) == 3
    assert study["total"]["value"] == fsum(bill["total_usd"] for bill in study["bills"])
    assert study["useful_tokens"] == fsum(bill["useful_tokens"] for bill in study["bills"])
    assert study["states"] == {"finished": 2, "failed": 1}
    failed = next(bill for bill in study["bills"] if bill["state"] == "failed")
    assert study["unfinished"]["value"] == failed["total_usd"]
    assert "spent on runs that failed" in main("bill", "tiny*").out


def test_several_runs_are_billed_each_and_together(main: Main, finished: Path) -> None:
    copied(finished, "bbbb", "tiny-b")
    assert [bill["run"] for bill in document(main, "bill", "tiny", "bbbb")][1] == "bbbb"
    shown = main("bill", "tiny", "bbbb").out
    assert shown.count("\n  total ") == 3
    assert "2 runs together · 2 finished" in shown


def test_a_one_off_is_spread_over_the_study(main: Main, finished: Path) -> None:
    copied(finished, "bbbb", "tiny-b")
    plain = document(main, "bill", "tiny", "bbbb", "--study")["total"]["value"]
    study = document(main, "bill", "tiny", "bbbb", "--study", "--one-off", "10")
    assert study["total"]["value"] == pytest.approx(plain + 10)
    assert [run["total"]["value"] - plain / 2 for run in study["runs"]] == pytest.approx([5.0, 5.0])


def test_a_study_under_several_prices_is_the_sum_of_its_runs(main: Main, finished: Path) -> None:
    copied(finished, "bbbb", "tiny-b")
    study = document(main, "bill", "tiny", "bbbb", "--study", "--price", "on-demand=7.2")
    of_runs = fsum(bill["price_models"][1]["total"]["value"] for bill in study["bills"])
    assert study["price_models"][1]["total"]["value"] == pytest.approx(of_runs)


@pytest.mark.parametrize(("usd", "code", "word"), [("1e9", 0, "within"), ("1e-9", 3, "over")])
def test_the_red_line_is_marked_and_enforced(
    main: Main, finished: Path, usd: str, code: int, word: str
) -> None:
    held = document(main, "bill", "last", "--budget", usd)["budget"]
    assert held["verdict"] == word
    done = main("bill", "last", "--budget", usd, "--enforce")
    assert done.code == code
    assert f"{word} the budget" in done.out


def test_a_document_is_printed_also_where_the_bill_is_over(main: Main, finished: Path) -> None:
    done = main("bill", "last", "--budget", "1e-9", "--enforce", "--json")
    assert done.code == 3
    assert json.loads(done.out)["budget"]["verdict"] == "over"


def test_the_report_marks_the_red_line_of_the_recipe(main: Main, finished: Path, tmp_path: Path) -> None:
    folder = only_run(finished)
    recipe = json.loads((folder / "run.json").read_text())["recipe"]
    changed(folder, recipe=recipe | {"budget": {"usd_per_million_tokens": 1e-6}})
    assert main("report", "last", "-o", tmp_path / "page.html").code == 0
    assert 'class="budget over"' in (tmp_path / "page.html").read_text()
    assert main("bill", "last", "--enforce").code == 3


def test_training_ends_with_3_where_the_run_is_over_its_budget(
    main: Main, built: Path, recipe_file: Path
) -> None:
    line = ["--set", "budget.usd_per_million_tokens=1e-6", "--set", "train.max_steps=1"]
    done = main("train", recipe_file, *line, "--enforce")
    assert done.code == 3
    assert "over the budget" in done.err
    refused(main("train", recipe_file, "--enforce"), 2, "budget.usd_per_million_tokens")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--price", "cheap"], "there is no price model 'cheap'"),
        (["--price", "on-demand=0"], "an amount an hour above zero"),
        (["--price", "on-demand=-2"], "an amount an hour above zero"),
        (["--price", "on-demand=nan"], "an amount an hour above zero"),
        (["--price", "on-demand=2 dollars"], "an amount an hour above zero"),
        (["--price", "reserved-3y=2,utilization=0.7"], "reserved-3y has no 'utilization'"),
        (["--price", "reserved-3y=2,utilisation=much"], "utilisation is a number"),
        (["--price", "reserved-3y=2,utilisation=0"], "utilisation: expected a number from"),
        (["--price", "spot=1,interruptions_per_hour=-1"], "=-1: a rate of -1.0 interruptions an hour"),
        (["--price", "owned"], "owned=FILE.yaml"),
        (["--price", "owned=absent.yaml"], "owned=absent.yaml: no such file of an owned machine"),
        (["--price", "owned=."], "owned=.: is a folder"),
        (["--price", "owned=/dev/zero"], "larger than 100000 bytes"),
        (["--tariff", "0"], "a tariff of 0.0"),
        (["--budget", "-1"], "a budget of -1.0 USD per million tokens (--budget): expected a number from"),
        (["--one-off", "-1"], "a one-off of -1 USD (--one-off)"),
        (["--usd-per-hour", "1.7e308", "--one-off", "1.7e308"], "--usd-per-hour 1.7e+308: expected"),
        (["--one-off", "1.7e308"], "a one-off of 1.7e+308 USD (--one-off): expected a number from 0 to"),
        (["--one-off", "1", "--over", "9" * 400], "a one-off (--one-off) over 99999999999999999999 runs"),
        (["--debug-hours", "1e200", "--usd-per-debug-hour", "1e200"], "a one-off of inf USD"),
        (["--debug-hours", "-1", "--usd-per-debug-hour", "-1"], "numbers of 0 or more"),
        (["--one-off", "1", "--debug-hours", "1"], "not both"),
        (["--debug-hours", "1"], "go together"),
        (["--over", "3"], "--over spreads a one-off"),
        (["--enforce"], "no red line to enforce"),
    ],
)
def test_what_is_no_price_is_refused(main: Main, finished: Path, arguments: list[str], said: str) -> None:
    done = main("bill", "last", *arguments)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a mapping of keys"),
        ("[1, 2", "not valid YAML"),
        (OWNED.replace("pue: 1.5", "pue: 0.5"), "pue: expected a number from 1 to 100 (got 0.5)"),
        (OWNED.replace("capital", "capitol"), "unknown key 'capitol'; did you mean 'capital'?"),
        (OWNED + "colour: red\n", "unknown key 'colour'; the keys are currency, capital"),
        (OWNED + "1: 2\n", "unknown key '1'; the keys are"),
        (OWNED.replace("currency: USD\n", ""), "'currency' is required and missing"),
        (OWNED.replace("8760", "much", 1), "own.yaml:2: capital: Input should be a valid number"),
        (OWNED.replace("8760", "1.7e308", 1), "own.yaml:2: capital: expected a number from"),
        (OWNED + "residual: 9000\n", "own.yaml: residual of 9000 is above the capital of 8760"),
    ],
)
def test_a_machine_that_is_not_described_whole_is_refused(
    main: Main, finished: Path, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "own.yaml").write_text(text)
    refused(main("bill", "last", "--price", f"owned={tmp_path / 'own.yaml'}"), 2, "own.yaml", said)


def test_currencies_stand_side_by_side_and_are_not_added(main: Main, finished: Path) -> None:
    euros = ["--price", "on-demand=7.2EUR"]
    (_, row) = document(main, "bill", "last", *euros)["price_models"]
    assert (row["currency"], row["total"]["unit"]) == ("EUR", "EUR")
    assert row["usd_per_million_useful_tokens"]["unit"] == "EUR/million useful tokens"
    refused(main("bill", "last", *euros, "--one-off", "5"), 2, "one-off in USD cannot be added", "EUR")


def test_a_damaged_time_is_refused(main: Main, finished: Path) -> None:
    changed(only_run(finished), wall_s=-5.0)
    refused(main("bill", "last"), 2, "its wall clock took -5.0 s")
