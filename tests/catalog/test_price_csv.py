"""Prices from CSV files: SkyPilot's columns, the same by zone, our own; all of a file or nothing."""

from __future__ import annotations

import csv
import math
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.catalog import PriceBook, instances
from trueup.catalog.price_csv import read_price_csv
from trueup.schema import InputError

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "aws_price_rows.csv"
SKYPILOT = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
trn1.32xlarge,Trainium,16,128,512,"{'Gpus': [{'Name': 'Trainium'}]}",21.5,6.1428,us-east-1,us-east-1a,x86_64
trn1.32xlarge,Trainium,16,128,512,"{'Gpus': [{'Name': 'Trainium'}]}",21.5,4.1506,us-east-1,us-east-1b,x86_64
trn1.32xlarge,Trainium,16,128,512,"{'Gpus': [{'Name': 'Trainium'}]}",,,ap-south-1,ap-south-1a,x86_64
x9.huge,,,2,8,,0.5,0.1,us-east-1,us-east-1a,x86_64
"""
OWN = """\
instance,region,model,amount_per_hour,currency,as_of,source
p5.48xlarge,eu-central-1,reserved-1y,40.5,EUR,2026-03-01,our contract
P5.48xlarge,eu-central-1,on_demand,,EUR,2026-03-01,our contract
"""


def test_skypilots_columns() -> None:
    found = read_price_csv(
        SKYPILOT, name="vms.csv", as_of="2026-11-01", known={*instances()}, skip_unknown=True
    )
    assert found.columns == "SkyPilot catalog"
    assert found.left_out == {"x9.huge": 1}
    assert {row.currency for row in found.rows} == {"USD"}
    assert {row.source for row in found.rows} == {"SkyPilot catalog, file vms.csv"}
    shown = [(row.model, row.region, row.zone, row.amount_per_hour) for row in found.rows]
    assert shown == [
        ("on_demand", "us-east-1", None, 21.5),
        ("spot", "us-east-1", "us-east-1a", 6.1428),
        ("spot", "us-east-1", "us-east-1b", 4.1506),
        ("on_demand", "ap-south-1", None, None),
        ("spot", "ap-south-1", "ap-south-1a", None),
    ]
    assert [row.reason for row in found.rows[3:]] == [
        "the source has no on-demand price",
        "the source has no spot price",
    ]
    everything = read_price_csv(SKYPILOT, name="vms.csv", as_of="2026-11-01")
    assert everything.left_out == {}
    assert "x9.huge" in {row.instance for row in everything.rows}


def test_names_that_are_not_known_are_told_once_each_with_the_names_near_them() -> None:
    rows = [",".join([f"nowhere.{n // 2}", *["1"] * 9]) for n in range(14)]
    text = SKYPILOT.replace("x9.huge", "trn1.32xlarg") + "\n".join(rows) + "\n"
    with pytest.raises(InputError) as caught:
        read_price_csv(text, name="vms.csv", as_of="2026-11-01", known={*instances()})
    first, second, *_, more, advice = str(caught.value).splitlines()
    assert first.startswith(
        "vms.csv:5: the catalog holds no instance named 'trn1.32xlarg'; did you mean trn1."
    )
    assert (
        second
        == "vms.csv:6: the catalog holds no instance named 'nowhere.0' (in 2 rows); no name in it is near"
    )
    assert more == "and 3 more"
    assert "--skip-unknown" in advice


def test_our_own_columns() -> None:
    found = read_price_csv(OWN, name="own.csv")
    assert found.columns == "trueup's own"
    contract, missing = found.rows
    assert (contract.model, contract.amount_per_hour, contract.currency) == ("reserved_1y", 40.5, "EUR")
    assert (contract.as_of, contract.source, contract.kind) == ("2026-03-01", "our contract", "quoted")
    assert (missing.instance, missing.amount_per_hour, missing.reason) == (
        "p5.48xlarge",
        None,
        "the file has no price",
    )


@given(
    amounts=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5, unique=True),
    comma=st.booleans(),
)
def test_our_own_columns_give_back_what_was_written(amounts: list[float], comma: bool) -> None:
    out = StringIO()
    columns = ["amount_per_hour", "instance", "model", "region", "zone", "currency", "as_of", "source"]
    writer = csv.writer(out)
    writer.writerow(columns)
    source = 'a "list", of prices' if comma else "a list"
    for n, amount in enumerate(amounts):
        writer.writerow(
            [repr(amount), "m7g.large", "spot", "us-east-1", f"z{n}", "USD", "2026-03-01", source]
        )
    found = read_price_csv(out.getvalue(), name="own.csv")
    assert [row.amount_per_hour for row in found.rows] == amounts
    assert {row.source for row in found.rows} == {source}


def test_a_file_that_does_not_say_when_needs_a_date() -> None:
    with pytest.raises(InputError, match=r"vms\.csv has the SkyPilot catalog's columns.*--as-of"):
        read_price_csv(SKYPILOT, name="vms.csv")
    undated = "instance,region,model,amount_per_hour,currency\nm7g.large,us-east-1,spot,1,USD\n"
    with pytest.raises(InputError, match=r"own\.csv:2: .*--as-of"):
        read_price_csv(undated, name="own.csv")
    (row,) = read_price_csv(undated, name="own.csv", as_of="2026-03-01").rows
    assert (row.as_of, row.source) == ("2026-03-01", "file own.csv")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("21.5,6.1428", "-21.5,6.1428", r"vms\.csv:2: amount_per_hour: expected .* \(got -21\.5\)"),
        ("21.5,6.1428", "0,6.1428", r"vms\.csv:2: amount_per_hour"),
        ("21.5,6.1428", "nan,6.1428", r"vms\.csv:2: amount_per_hour"),
        ("21.5,6.1428", "cheap,6.1428", r"vms\.csv:2: Price 'cheap' is no number"),
        (
            "21.5,4.1506",
            "22.5,4.1506",
            r"vms\.csv:3: trn1\.32xlarge on-demand in us-east-1: 22\.5, and on line 2",
        ),
        ("us-east-1,us-east-1b", ",us-east-1b", r"vms\.csv:3: region"),
        ("21.5,4.1506,us-east-1,us-east-1b", "21.5,4.1506,us-east-1,us-east-1a", "and on line 2 6.1428"),
        (",us-east-1b,x86_64", ",us-east-1b,x86_64,more", r"vms\.csv:3: more fields than the 11 columns"),
        ("\"{'Gpus'", "\"x\"{'Gpus'", r"vms\.csv:2: not CSV"),
        ("InstanceType", "Machine", "known are files with: instance, region, model"),
    ],
)
def test_a_wrong_row_is_told_with_its_line(old: str, new: str, words: str) -> None:
    assert old in SKYPILOT
    with pytest.raises(InputError, match=words):
        read_price_csv(SKYPILOT.replace(old, new, 1), name="vms.csv", as_of="2026-11-01")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("currency", "money", "has no column 'currency'"),
        ("source\n", "sources\n", "unknown column 'sources'; did you mean 'source'"),
        (",EUR,2026", ",euro,2026", r"own\.csv:2: currency"),
        (",EUR,2026", ",,2026", r"own\.csv:2: currency is empty; a price row says it"),
        ("reserved-1y", "savings", r"own\.csv:2: no price model 'savings'"),
        ("2026-03-01", "March", r"own\.csv:2: as_of: 'March' is no date"),
        ("region,", "region,instance,", "two columns are named 'instance'"),
        (OWN, "", "is empty"),
    ],
)
def test_a_wrong_row_of_our_own_is_told(old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_price_csv(OWN.replace(old, new, 1), name="own.csv")


def test_many_wrong_rows_are_counted() -> None:
    rows = "".join(f"m7g.large,us-east-1,spot,-{n},USD,2026-03-01\n" for n in range(1, 9))
    with pytest.raises(InputError, match=r"own\.csv:6: [^\n]+\nand 3 more"):
        read_price_csv(f"instance,region,model,amount_per_hour,currency,as_of\n{rows}", name="own.csv")


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample of real prices is not here")
def test_real_rows_by_zone() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    lines = list(csv.DictReader(StringIO(text)))
    found = read_price_csv(text, name=SAMPLE.name, as_of="2026-11-01")
    assert found.columns == "prices by zone"
    assert found.left_out == {}
    spot = {row.zone: row.amount_per_hour for row in found.rows if row.model == "spot"}
    assert len([row for row in found.rows if row.model == "spot"]) == len(lines)
    assert math.isclose(spot["apne1-az4"] or 0, 7.5205)
    book = PriceBook(collected=found.rows)
    assert book.find("p4d.24xlarge", "on_demand", region="eu-central-1").amount_per_hour == 27.43298
    missing = book.find("trn1.32xlarge", "on_demand", region="ap-south-1")
    assert (missing.amount_per_hour, missing.reason) == (None, "the source has no on-demand price")
    without = {(row.instance, row.region) for row in found.rows if row.amount_per_hour is None}
    assert without == {
        ("trn1.32xlarge", "ap-south-1"),
        ("trn2.3xlarge", "ap-southeast-4"),
        ("trn2.48xlarge", "us-east-2"),
    }


@pytest.mark.parametrize(
    ("currency", "said"),
    [
        ("", "own.csv:2: currency is empty; a price row says it"),
        ("usd", "own.csv:2: currency 'usd' is none; write its three capital letters, such as USD"),
    ],
)
def test_a_currency_that_is_missing_or_no_code_is_told_in_words(currency: str, said: str) -> None:
    text = OWN.splitlines()[0] + f"\np5.48xlarge,eu-central-1,on-demand,40.5,{currency},2026-03-01,x\n"
    with pytest.raises(InputError) as refused:
        read_price_csv(text, name="own.csv")
    assert str(refused.value) == said
