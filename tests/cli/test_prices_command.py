"""`trueup prices`: what it lists, keeps, imports and fetches, and how it refuses."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from in_process import Done, Main, refused
from trueup.catalog import aws_prices
from trueup.catalog.aws_prices import Clients
from trueup.cli import price_book, prices
from trueup.cli.price_book import price_of
from trueup.recipe import Recipe
from trueup.schema import InputError, MissingExtraError, PriceRow, TrueupError

CONTRACT = ("--currency", "USD", "--region", "us-east-1", "--source", "our contract")
PAGE = Path(__file__).parents[2] / "docs" / "prices.md"
SKYPILOT = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone
p5.48xlarge,H100,8,192,2048,55.5,20.5,us-east-1,us-east-1a
x9.huge,,,2,8,0.5,0.1,us-east-1,us-east-1a
"""


def days_ago(days: int) -> str:
    return (datetime.now(UTC).date() - timedelta(days=days)).isoformat()


def documented_keys() -> set[str]:
    table = PAGE.read_text(encoding="utf-8").split("| key | meaning |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def listed(main: Main, *arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(main("prices", "list", *arguments, "--json").out)["prices"]
    return rows


def test_list_shows_what_came_with_trueup(main: Main) -> None:
    table = main("prices", "list", "--instance", "trn2.48xlarge", "--on", days_ago(0))
    for part in (
        "trn2.48xlarge",
        "on-demand",
        "unavailable",
        "no on-demand price is listed",
        "35.76",
        "published",
    ):
        assert part in table.out
    (row,) = listed(main, "--instance", "p5en.48xlarge", "--region", "us-west-1")
    assert set(row) == documented_keys()
    assert (row["amount_per_hour"], row["currency"], row["origin"]) == (79.12, "USD", "published")
    assert {row["model"] for row in listed(main, "--model", "reserved-3y")} == {"reserved_3y"}


def test_list_says_what_held_on_a_day(main: Main) -> None:
    def amounts(*more: str) -> list[float]:
        return [row["amount_per_hour"] for row in listed(main, "--instance", "p4d.24xlarge", *more)]

    assert amounts("--on", "2024-03-01") == [32.77]
    assert amounts() == [21.957642]
    assert amounts("--history") == [32.77, 21.957642]


def test_list_marks_stale_prices(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (price_book, prices):  # whatever the clock says
        monkeypatch.setattr(module, "today", lambda: date(2026, 11, 30))
    (row,) = listed(main, "--instance", "m7g.large")
    assert "as of 2026-06" in row["stale"]
    shown = main("prices", "list", "--instance", "m7g.large")
    assert "2026-06, stale" in shown.out
    assert "may hold no more" in shown.err
    assert listed(main, "--instance", "m7g.large", "--on", "2026-06-20")[0]["stale"] is None


def test_set_comes_before_what_is_published_and_keeps_history(main: Main) -> None:
    set_ = ("prices", "set", "p5.48xlarge", *CONTRACT)
    done = main(*set_, "--per-hour", "40", "--as-of", days_ago(30), "--json")
    assert json.loads(done.out)["amount_per_hour"] == 40
    assert main(*set_, "--per-hour", "35").code == 0
    ours = ("--instance", "p5.48xlarge", "--region", "us-east-1", "--model", "on-demand")
    now = {row["origin"]: row["amount_per_hour"] for row in listed(main, *ours)}
    before = {row["origin"]: row["amount_per_hour"] for row in listed(main, *ours, "--on", days_ago(10))}
    assert (now["own"], before["own"]) == (35, 40)


def test_a_price_set_twice_for_a_day_is_refused_unless_it_replaces(main: Main, home: Path) -> None:
    set_ = ("prices", "set", "p5.48xlarge", *CONTRACT)
    assert main(*set_, "--per-hour", "40").code == 0
    kept = (home / "prices.jsonl").read_bytes()
    refused(main(*set_, "--per-hour", "35"), 2, "overlapping prices of p5.48xlarge on-demand", "--replace")
    assert (home / "prices.jsonl").read_bytes() == kept
    assert main(*set_, "--per-hour", "35", "--replace").code == 0
    assert (home / "prices.jsonl").read_bytes().startswith(kept)
    (own,) = (row for row in listed(main, "--history") if row["origin"] == "own")
    assert own["amount_per_hour"] == 35


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("p5.48xlarge", "--per-hour", "-3", *CONTRACT), ("amount_per_hour", "expected a number from")),
        (("p5.48xlarge", "--per-hour", "0", *CONTRACT), ("amount_per_hour",)),
        (("p5.48xlarge", "--per-hour", "nan", *CONTRACT), ("amount_per_hour",)),
        (("p5.48xlarge", "--per-hour", "3", *CONTRACT, "--as-of", "2999-01-01"), ("lies in the future",)),
        (("p5.48xlarge", "--per-hour", "3", *CONTRACT, "--from", "2999-01-01"), ("lies in the future",)),
        (("p5.48xlarge", "--per-hour", "3", *CONTRACT, "--as-of", "June"), ("as_of", "is no date")),
        (("p5.48xlarge", "--per-hour", "3", *CONTRACT[2:], "--currency", "dollars"), ("currency",)),
        (("p5.48xlarge", "--per-hour", "3", *CONTRACT, "--model", "owned"), ("no price model 'owned'",)),
        (("p5.48xlarg", "--per-hour", "3", *CONTRACT), ("no instance named 'p5.48xlarg'", "p5.48xlarge")),
    ],
)
def test_set_refuses_what_is_no_price(
    main: Main, home: Path, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    refused(main("prices", "set", *arguments), 2, *parts)
    assert not (home / "prices.jsonl").exists()


def test_one_price_in_two_currencies_is_refused(main: Main) -> None:
    assert (
        main("prices", "set", "p5.48xlarge", "--per-hour", "3", *CONTRACT, "--as-of", days_ago(3)).code == 0
    )
    euro = ("--per-hour", "3", "--currency", "EUR", *CONTRACT[2:])
    refused(main("prices", "set", "p5.48xlarge", *euro), 2, "in USD and in EUR")


def test_a_name_of_ones_own_is_taken_when_asked(main: Main) -> None:
    own = ("prices", "set", "Lab-8xH100", "--per-hour", "12", *CONTRACT)
    refused(main(*own), 2, "no instance named 'Lab-8xH100'")
    assert main(*own, "--new-instance").code == 0
    assert listed(main, "--instance", "lab-8xh100")[0]["amount_per_hour"] == 12


def test_import_says_whose_columns_they_are(main: Main, tmp_path: Path) -> None:
    file = tmp_path / "vms.csv"
    file.write_text(SKYPILOT)
    refused(main("prices", "import", file), 2, "vms.csv", "--as-of DATE")
    done = main("prices", "import", file, "--as-of", days_ago(1), "--skip-unknown")
    assert "SkyPilot catalog columns; 2 rows (1 on-demand, 1 spot), 2 of them new" in done.err
    assert "note: 1 row left out, of instances that the catalog does not know: x9.huge" in done.err
    again = json.loads(main("prices", "import", file, "--as-of", days_ago(1), "--all", "--json").out)
    assert again == {
        "columns": "SkyPilot catalog",
        "left_out": {},
        "rows": 4,
        "missing": 0,
        "models": {"on_demand": 2, "spot": 2},
        "added": 2,
    }
    spot = listed(main, "--instance", "p5.48xlarge", "--model", "spot")
    assert [(row["zone"], row["origin"]) for row in spot] == [("us-east-1a", "collected")]


OWN_HEADER = "instance,region,model,amount_per_hour,currency,as_of,source\n"
OWN_ROW = "trn1.32xlarge,us-east-2,reserved-1y,13.5,USD,2026-05-04,our contract\n"


def test_import_refuses_a_name_that_the_catalog_does_not_know(main: Main, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    slip = OWN_ROW.replace("trn1.32xlarge", "trn1.32xlrge")
    file.write_text(OWN_HEADER + OWN_ROW + slip)
    said = "own.csv:3: the catalog holds no instance named 'trn1.32xlrge'; did you mean trn1.32xlarge"
    refused(main("prices", "import", file), 2, said, "--skip-unknown", "--all")
    assert not (home / "prices.jsonl").exists()
    assert "1 row left out" in main("prices", "import", file, "--skip-unknown").err
    assert "2 rows (2 reserved-1y), 1 of them new" in main("prices", "import", file, "--all").err
    refused(main("prices", "import", file, "--all", "--skip-unknown"), 2, "give one")


def test_import_takes_what_a_file_says_twice_once(main: Main, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text(OWN_HEADER + OWN_ROW + OWN_ROW)
    assert "2 rows (2 reserved-1y), 1 of them new" in main("prices", "import", file).err
    assert len((home / "prices.jsonl").read_text().splitlines()) == 1


def test_import_counts_one_row_as_one_row(main: Main, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text(OWN_HEADER + OWN_ROW)
    assert "columns; 1 row (1 reserved-1y), 1 of them new" in main("prices", "import", file).err


def test_import_takes_a_whole_file_or_nothing(main: Main, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "vms.csv"
    file.write_text(SKYPILOT.replace("0.5,", "-0.5,"))
    refused(main("prices", "import", file, "--as-of", days_ago(1), "--all"), 2, "vms.csv:3: amount_per_hour")
    assert not (home / "prices.jsonl").exists()


@pytest.mark.parametrize(
    ("content", "code", "parts"),
    [
        (None, 2, ("no such CSV file",)),
        (b"\xff\xfe\x00", 2, ("not UTF-8",)),
        (b"", 2, ("is empty",)),
        (b"a,b\n1,2\n", 2, ("known are files with",)),
    ],
)
def test_import_refuses_other_files(
    main: Main, tmp_path: Path, content: bytes | None, code: int, parts: tuple[str, ...]
) -> None:
    file = tmp_path / "x.csv"
    if content is not None:
        file.write_bytes(content)
    refused(main("prices", "import", file, "--as-of", days_ago(1)), code, *parts)


def test_import_takes_what_a_spreadsheet_saves(main: Main, tmp_path: Path) -> None:
    file = tmp_path / "vms.csv"
    file.write_bytes(SKYPILOT.replace("\n", "\r\n").encode("utf-8-sig"))
    assert main("prices", "import", file, "--as-of", days_ago(1), "--all").code == 0


def test_import_refuses_a_folder(main: Main, tmp_path: Path) -> None:
    refused(main("prices", "import", tmp_path, "--as-of", days_ago(1)), 2, "is a folder; give one CSV file")


def test_import_refuses_what_has_no_end(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trueup.cli.prices.MOST_BYTES", 1000)
    refused(main("prices", "import", "/dev/zero", "--as-of", days_ago(1)), 2, "larger than 1000 bytes")


def test_a_date_in_the_future_is_refused(main: Main, tmp_path: Path) -> None:
    file = tmp_path / "vms.csv"
    file.write_text(SKYPILOT)
    for arguments in (("list", "--on", "2999-01-01"), ("import", str(file), "--as-of", "2999-01-01")):
        refused(main("prices", *arguments), 2, "lies in the future")
    refused(main("prices", "list", "--on", "June"), 2, "a date is written")


def test_a_price_that_ends_before_it_begins_is_refused_in_a_line(main: Main) -> None:
    ends = ("--from", "2026-05", "--to", "2026-03")
    done = main("prices", "set", "p5.48xlarge", "--per-hour", "39.5", *CONTRACT, *ends)
    refused(done, 2, "before it begins on 2026-05")
    assert "{" not in done.err


def test_a_damaged_price_file_is_named(main: Main, home: Path) -> None:
    (home / "prices.jsonl").write_text("{}\n")
    refused(main("prices", "list"), 1, "prices.jsonl:1")


def row(instance: str, now: datetime, **changes: Any) -> PriceRow:
    fields: dict[str, Any] = {
        "instance": instance, "region": "us-east-1", "model": "on_demand", "amount_per_hour": 50.0,
        "currency": "USD", "as_of": now.isoformat(), "source": "AWS Price List API", "kind": "quoted",
    }  # fmt: skip
    return PriceRow(**(fields | changes))


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """AWS as it may answer: on-demand prices, one spot price, and no leave to see capacity blocks."""
    asked: list[str] = []

    def list_prices(clients: Clients, instance: str, now: datetime) -> list[PriceRow]:
        asked.append(instance)
        return [row(instance, now)]

    def spot_prices(clients: Clients, instance: str, days: float, now: datetime) -> list[PriceRow]:
        return [row(instance, now, model="spot", zone="us-east-1a", amount_per_hour=9.0)]

    def capacity_blocks(clients: Clients, instance: str, hours: int, now: datetime) -> list[PriceRow]:
        raise TrueupError("AWS refused to get the capacity blocks")

    monkeypatch.setattr(aws_prices, "open_clients", lambda region: Clients(region or "us-east-1", None, None))
    for made in (list_prices, spot_prices, capacity_blocks):
        monkeypatch.setattr(aws_prices, made.__name__, made)
    return asked


def test_refresh_keeps_what_came_and_fails_for_what_did_not(main: Main, aws: list[str]) -> None:
    def refresh(*arguments: str) -> Done:
        return main("prices", "refresh", "--from", "aws", *arguments)

    done = refresh("--instance", "p5.48xlarge", "--json")
    assert done.code == 1
    assert "AWS refused to get the capacity blocks" in done.err
    document = json.loads(done.out)
    assert (document["rows"], document["added"], document["region"]) == (2, 2, "us-east-1")
    kept = {row["model"]: row["amount_per_hour"] for row in listed(main, "--instance", "p5.48xlarge")}
    assert kept["spot"] == 9.0
    assert "50" in main("prices", "list", "--instance", "p5.48xlarge", "--region", "us-east-1").out
    assert refresh("--instance", "m7g.large").code == 0  # no accelerator, so no capacity blocks


def test_a_spot_price_that_has_ended_is_kept_once(
    main: Main, home: Path, aws: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spot_prices(clients: Clients, instance: str, days: float, now: datetime) -> list[PriceRow]:
        began, ended = f"{days_ago(3)}T00:00:00Z", f"{days_ago(2)}T00:00:00Z"
        row_of = partial(row, instance, now, model="spot", zone="us-east-1a")
        first = row_of(amount_per_hour=9.0, valid_from=began, valid_to=ended)
        return [first, row_of(amount_per_hour=8.0, valid_from=ended)]

    monkeypatch.setattr(aws_prices, "spot_prices", spot_prices)
    for _ in range(3):
        main("prices", "refresh", "--from", "aws", "--instance", "p5.48xlarge")
    lines = (home / "prices.jsonl").read_text().splitlines()
    assert sum('"valid_to"' in line for line in lines) == 1


def test_refresh_without_credentials_says_so_once(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> list[PriceRow]:
        raise InputError("Unable to locate credentials")

    monkeypatch.setattr(aws_prices, "open_clients", lambda region: Clients(region or "us-east-1", None, None))
    monkeypatch.setattr(aws_prices, "list_prices", without)
    done = main("prices", "refresh", "--from", "aws")
    refused(done, 2, "Unable to locate credentials")
    assert done.err.count("credentials") == 1


def test_refresh_asks_for_every_instance_of_the_catalog(main: Main, aws: list[str]) -> None:
    from trueup.catalog import instances

    main("prices", "refresh", "--from", "aws")
    assert aws == sorted(instances())


def test_refresh_refuses_unknown_instances_before_it_asks(main: Main, aws: list[str]) -> None:
    refused(
        main("prices", "refresh", "--from", "aws", "--instance", "p9.huge"), 2, "no instance named 'p9.huge'"
    )
    assert aws == []


def test_refresh_without_boto3_names_the_extra(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(region: str | None) -> Clients:
        raise MissingExtraError("boto3", "aws", "fetching prices from AWS")

    monkeypatch.setattr(aws_prices, "open_clients", without)
    refused(main("prices", "refresh", "--from", "aws"), 2, "pip install 'trueup[aws]'")


def test_a_recipes_instance_costs_what_the_homes_own_price_says(
    main: Main, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUEUP_HOME", str(home))
    sections = {"model": {"path": "tiny"}, "data": {"source": "x"}, "platform": {"instance": "p5.48xlarge"}}
    recipe = Recipe.model_validate(sections)
    published = price_of(recipe)
    main("prices", "set", "p5.48xlarge", "--per-hour", "39.5", *CONTRACT)
    own = price_of(recipe)
    assert published is not None
    assert own is not None
    assert (published.usd_per_hour, own.usd_per_hour) == (55.04, 39.5)
    assert "our contract" in (own.source or "")
