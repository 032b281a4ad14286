"""`import trueup`: the names it offers, records from a home, and tables where pandas is installed."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import trueup
from trueup.schema import (
    InputError,
    Measurement,
    MissingExtraError,
    OwnedTerms,
    RunHeader,
    SpanTotal,
    unavailable,
)

NAMES = {
    *("Bill", "Comparison", "ModelBill", "PricedBill", "Records", "RunRecord", "RunSummary"),
    *("__version__", "bill", "compare", "run", "runs"),
}


def write_run(home: Path, run_id: str, name: str, second: int, **header: Any) -> None:
    """A finished run's folder, by hand: ten seconds, of which eight were steps."""
    folder = home / "runs" / run_id
    folder.mkdir(parents=True)
    given: dict[str, Any] = {
        "price": {"usd_per_hour": 3.6, "source": "a test"},
        "started_at": f"2026-11-29T10:15:{second:02}+00:00",
        "wall_s": 10.0,
        "recipe": {"model": {"path": "tiny"}},
    }
    fields = {"state": "finished", "trueup_version": "0", "recipe_digest": "0", **given, **header}
    (folder / "run.json").write_text(RunHeader(id=run_id, name=name, **fields).model_dump_json())
    segments = [
        {"name": "start", "start_s": 0.0, "end_s": 2.0},
        {"name": "step", "start_s": 2.0, "end_s": 10.0},
    ]
    (folder / "segments.jsonl").write_text("".join(json.dumps(one) + "\n" for one in segments))
    (folder / "samples.jsonl").write_text('{"at_s": 1.0, "values": {"cpu_share": 0.5}}\n')
    measured = {
        "useful_tokens": Measurement(value=1000, unit="tokens", kind="measured"),
        "energy_j": unavailable("J", "no power sensor"),
    }
    (folder / "measurements.json").write_text(json.dumps({k: m.model_dump() for k, m in measured.items()}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_run(tmp_path, "aaaa1111", "first", 1)
    write_run(tmp_path, "bbbb2222", "second", 2, price=None)
    monkeypatch.setenv("TRUEUP_HOME", str(tmp_path))
    return tmp_path


def test_the_names_offered_are_these() -> None:
    from trueup import api

    assert set(trueup.__all__) == NAMES
    assert set(api.__all__) == NAMES - {"__version__"}
    assert set(dir(trueup)) >= NAMES
    for name in NAMES - {"__version__"}:
        assert getattr(trueup, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="no attribute 'rusn'"):
        _ = trueup.rusn  # type: ignore[attr-defined]


def test_runs_are_frozen_records_newest_first(home: Path) -> None:
    runs = trueup.runs()
    assert isinstance(runs, trueup.Records)
    assert [(one.id, one.name, one.useful_tokens) for one in runs] == [
        ("bbbb2222", "second", 1000.0),
        ("aaaa1111", "first", 1000.0),
    ]
    with pytest.raises(ValueError, match="frozen"):
        runs[0].name = "other"
    with pytest.raises(TypeError):
        runs[0] = runs[1]  # type: ignore[index]


def test_a_run_is_its_whole_record(home: Path) -> None:
    record = trueup.run("last")
    assert record == trueup.run("second") == trueup.run("bbbb")
    assert (record.id, record.name, record.state) == ("bbbb2222", "second", "finished")
    assert record.header.id == record.id
    assert record.spans == (
        SpanTotal(name="start", seconds=2.0, count=1),
        SpanTotal(name="step", seconds=8.0, count=1),
    )
    assert record.measurements["energy_j"].reason == "no power sensor"
    assert record.samples == ()
    assert trueup.run("last", samples=True).samples[0].values == {"cpu_share": 0.5}
    with pytest.raises(InputError, match="did you mean"):
        trueup.run("secnd")


def test_a_bill_is_at_the_runs_price_or_at_one_given(home: Path) -> None:
    bill = trueup.bill("first")
    assert bill.total_usd == pytest.approx(0.01)
    assert bill.usd_per_million_useful_tokens.value == pytest.approx(10.0)
    assert sum(line.usd for line in bill.lines) == pytest.approx(bill.total_usd, rel=1e-12)
    other = trueup.bill("second", usd_per_hour=7.2, price_source="an offer")
    assert (other.total_usd, other.price.source) == (pytest.approx(0.02), "an offer")
    with pytest.raises(InputError, match="has no price"):
        trueup.bill("second")
    for wrong in (0.0, -1.0, float("nan"), float("inf"), 10**400):
        with pytest.raises(InputError, match="a price of an hour is a number from"):
            trueup.bill("second", usd_per_hour=wrong)


def test_a_bill_is_held_to_a_budget_and_bears_its_part_of_a_one_off(home: Path) -> None:
    bill = trueup.bill("first", one_off=30.0, over=10, budget=0.32)
    assert bill.total_usd == pytest.approx(trueup.bill("first").total_usd + 3.0)
    assert bill.budget is not None
    assert bill.budget.verdict == "over"
    with pytest.raises(InputError, match="a one-off of -1 USD"):
        trueup.bill("first", one_off=-1.0)


def test_a_bill_stands_beside_what_it_would_be_under_other_prices(home: Path) -> None:
    assert trueup.bill("first").price_models == ()
    machine = OwnedTerms(
        currency="USD",
        capital=8000,
        life_years=1,
        hours_per_year=8000,
        power_w=0,
        pue=1,
        electricity_per_kwh=0,
        source="a quotation",
    )
    own, dearer, spot, owned = trueup.bill("first", prices=["on-demand=7.2", "spot", machine]).price_models
    assert (own.model, own.total.value) == ("as billed", pytest.approx(0.01))
    assert dearer.total.value == pytest.approx(0.02)
    assert spot.total.kind == "unavailable"
    assert "instance is not known" in (spot.total.reason or "")
    assert (owned.model, owned.per_hour.value) == ("owned (a quotation)", pytest.approx(1.0))


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ("spot", "a list of price models"),
        ([3.5], "no price model"),
        (["cheap"], "there is no price model 'cheap'"),
        (["owned=server.yaml"], "OwnedTerms"),
    ],
)
def test_what_is_no_price_model_is_refused(home: Path, prices: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        trueup.bill("first", prices=prices)


def test_a_killed_run_is_summed_up_from_what_it_left(home: Path) -> None:
    (home / "runs" / "bbbb2222" / "measurements.json").unlink()
    record = trueup.run("last")
    assert record.measurements["wall_s"].value == 10.0
    assert record.measurements["energy_j"].reason
    assert trueup.bill("last", usd_per_hour=3.6).total_usd == pytest.approx(0.01)


def test_selections_are_compared_as_by_the_command(home: Path) -> None:
    found = trueup.compare("first", "second")
    assert found.reference == "first"
    assert [group.runs for group in found.groups] == [("aaaa1111",), ("bbbb2222",)]
    with pytest.raises(InputError, match="name two selections or more"):
        trueup.compare("first")
    with pytest.raises(InputError, match="no run has a name like"):
        trueup.compare("first", "nobody-*")


def test_another_home_may_be_named_and_a_damaged_run_is_a_warning(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_run(other, "cccc3333", "third", 3)
    (other / "runs" / "dddd4444").mkdir()
    (other / "runs" / "dddd4444" / "run.json").write_text("{")
    with pytest.warns(UserWarning, match="run folder left out: .*dddd4444"):
        (only,) = trueup.runs(home=str(other))
    assert only.id == "cccc3333"


def test_a_mistyped_home_is_not_made(tmp_path: Path) -> None:
    mistyped = tmp_path / "mistyped"
    for call in (trueup.runs, lambda home: trueup.run("last", home=home)):
        with pytest.raises(InputError, match="mistyped does not exist; name the home"):
            call(home=mistyped)
    assert not mistyped.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is not a folder"):
        trueup.runs(home=str(tmp_path / "file"))
    for wrong in ("", 5, b"/tmp"):
        with pytest.raises(InputError, match=r"^home=.*: a home is the path of a folder$"):
            trueup.runs(home=wrong)  # type: ignore[arg-type]


def test_an_argument_of_another_type_is_named(home: Path) -> None:
    for price in ("a", True, [1.0]):
        with pytest.raises(InputError, match=r"^usd_per_hour=.*: a price is a number of dollars"):
            trueup.bill("last", usd_per_hour=price)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^price_source=3: "):
        trueup.bill("last", usd_per_hour=1, price_source=3)  # type: ignore[arg-type]
    for ref in (5, None, trueup.runs()[0]):
        with pytest.raises(InputError, match=r"^ref=.*named by a string"):
            trueup.run(ref)  # type: ignore[arg-type]


def test_a_table_is_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace())
    with pytest.raises(InputError, match=r"'wall_s' is none: give trueup.Records a series of records"):
        trueup.Records({"wall_s": 1.0}).to_pandas()  # type: ignore[type-var]


def test_without_pandas_a_table_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # what an import finds where it is not installed
    with pytest.raises(MissingExtraError, match=r"pip install 'trueup\[pandas\]'"):
        trueup.runs().to_pandas()


def test_pandas_is_given_rows_and_columns_in_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def frame(rows: list[dict[str, Any]], columns: list[str] | None) -> str:
        given.update(rows=rows, columns=columns)
        return "a frame"

    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=frame))
    assert trueup.runs().to_pandas() == "a frame"
    assert given["columns"][:3] == ["id", "kind", "name"]
    assert [row["id"] for row in given["rows"]] == ["bbbb2222", "aaaa1111"]
    assert set(given["rows"][0]) == set(given["columns"])
    assert trueup.Records(()).to_pandas() == "a frame"
    assert given == {"rows": [], "columns": None}


def test_a_real_frame_has_a_row_a_run(home: Path) -> None:
    pytest.importorskip("pandas")
    frame = trueup.runs().to_pandas()
    assert list(frame["id"]) == ["bbbb2222", "aaaa1111"]
    spans = trueup.Records(trueup.run("first").spans).to_pandas()
    assert spans.set_index("name")["seconds"].sum() == 10.0
