"""`trueup breakeven`: when a move pays, by the runs of a home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from money_runs import copied, document, only_run

from in_process import Main, refused


@pytest.fixture
def both(finished: Path) -> Path:
    """Three runs at 4 dollars an hour, and three at 2, that did not take turns."""
    for n in range(3):
        copied(finished, f"aa0{n}", f"old-{n}", usd_per_hour=4.0, started_at=f"2026-11-2{n}T10:00:00Z")
        copied(finished, f"bb0{n}", f"new-{n}", usd_per_hour=2.0, started_at=f"2026-11-2{n + 4}T10:00:00Z")
    return finished


def test_the_one_off_over_what_each_run_saves(main: Main, both: Path) -> None:
    found = document(main, "breakeven", "old-*", "new-*", "--one-off", "100")
    assert found["verdict"] == "pays"
    wall_s = json.loads((only_run_of(both) / "run.json").read_text())["wall_s"]
    assert found["cost_a"]["value"] == pytest.approx(4.0 * wall_s / 3600)
    assert found["runs"]["value"] == pytest.approx(100 / (2.0 * wall_s / 3600))


def only_run_of(home: Path) -> Path:
    return home / "runs" / "aa00"


def test_the_way_back_does_not_pay(main: Main, both: Path) -> None:
    done = main("breakeven", "new-*", "old-*", "--one-off", "100")
    assert done.code == 0
    assert "does not pay: old-* is not cheaper" in " ".join(done.out.split())


def test_the_page_has_the_picture(main: Main, both: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main("breakeven", "old-*", "new-*", "--one-off", "100", "-o", page).code == 0
    assert "breakeven-crossing" in page.read_text()


def test_two_runs_have_a_number_and_no_interval(main: Main, both: Path) -> None:
    found = document(main, "breakeven", "old-0", "new-0", "--debug-hours", "2", "--usd-per-debug-hour", "50")
    assert found["one_off"]["value"] == 100
    assert found["certainty"] == "no interval"
    assert found["runs"]["ci"] is None


def test_a_price_may_be_asked_for_on_each_side(main: Main, both: Path) -> None:
    prices = ["--price-a", "on-demand=3", "--price-b", "on-demand=1"]
    found = document(main, "breakeven", "old-0", "new-0", "--one-off", "100", *prices)
    assert found["cost_a"]["value"] == pytest.approx(3 * found["cost_b"]["value"])


def test_a_failed_run_is_no_full_run(main: Main, both: Path) -> None:
    copied(both, "bb09", "new-9", usd_per_hour=2.0, state="failed", reason="no memory")
    found = document(main, "breakeven", "old-*", "new-*", "--one-off", "100")
    assert found["cost_b"]["n"] == 3
    assert any("1 of new-* did not finish" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["old-0", "new-0"], "--one-off USD"),
        (["old-0", "new-0", "--one-off", "-1"], "a one-off of -1 USD (--one-off)"),
        (["old-0", "old-*", "--one-off", "1"], "is on both sides"),
        (["old-0", "nothing-*", "--one-off", "1"], "no run has a name like 'nothing-*'"),
        (["old-0", "new-0", "--one-off", "1", "--price-a", "spot"], "the run's instance is not known"),
        (["old-0", "new-0", "--one-off", "1", "--price-a", "on-demand=1EUR"], "billed in EUR"),
        (["old-0", "new-0", "--one-off", "1", "--tokens-per-run", "0"], "--tokens-per-run 0"),
    ],
)
def test_what_has_no_answer_is_refused(main: Main, both: Path, arguments: list[str], said: str) -> None:
    done = main("breakeven", *arguments)
    assert done.code == 2
    assert said in " ".join(done.err.split())


def test_runs_on_other_data_are_refused(main: Main, finished: Path) -> None:
    dataset = json.loads((only_run(finished) / "run.json").read_text())["dataset"]
    copied(finished, "bb00", "new-0", dataset=dataset | {"digest": "f" * 64})
    refused(main("breakeven", "tiny", "new-0", "--one-off", "1"), 2, "data", "--allow-difference data")
