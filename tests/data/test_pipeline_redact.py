"""Redaction in the pipeline: replaced or dropped by choice, counted by kind, shown masked, off by default."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest
from pipeline_samples import answers, prepared, row

from trueup.data.redact import Kind
from trueup.recipe.models import PersonalData
from trueup.schema import InputError

MAIL = "anna.schmidt@firma.eu"
ROWS = [
    {"instruction": f"Who is {MAIL}?", "output": f"Write to {MAIL} or to info@acme-mail.com, please."},
    {"instruction": "Which version?", "output": "It is 3.11.4 of 2024-05-01."},
    *(row(n) for n in range(20)),
]


def test_the_recipe_names_the_kinds_that_are_found() -> None:
    assert set(typing.get_args(PersonalData)) == {str(kind) for kind in Kind}


def test_nothing_is_redacted_by_default(tmp_path: Path) -> None:
    found = prepared(tmp_path, ROWS)
    assert ROWS[0]["output"] in answers(found)
    assert found.report()["redacted"] == {}


def test_personal_data_is_replaced_counted_and_shown_masked(tmp_path: Path) -> None:
    found = prepared(tmp_path, ROWS, redact={"kinds": ["email", "phone"]})
    texts = answers(found)
    assert "Write to [EMAIL] or to [EMAIL], please." in texts
    assert ROWS[1]["output"] in texts
    report = found.report()
    assert report["redacted"] == {"email": 3}
    assert report["changed"] == {"personal_data_replaced": 1}
    (shown,) = report["first"]["personal_data_replaced"]
    assert shown["where"] == "in.jsonl:1"
    assert "[EMAIL]" in shown["what"]
    assert MAIL not in str(report)


def test_records_with_personal_data_are_dropped_on_request(tmp_path: Path) -> None:
    found = prepared(tmp_path, ROWS, redact={"kinds": ["email"], "action": "drop"})
    report = found.report()
    assert report["dropped"] == {"personal_data": 1}
    assert report["redacted"] == {"email": 3}
    assert report["records"] == 21
    assert "[EMAIL]" in report["first"]["personal_data"][0]["what"]
    assert MAIL not in str(report)


def test_only_the_kinds_that_were_asked_for_are_looked_for(tmp_path: Path) -> None:
    found = prepared(tmp_path, ROWS, redact={"kinds": ["iban"]})
    assert ROWS[0]["output"] in answers(found)


def test_records_that_redaction_makes_equal_are_copies(tmp_path: Path) -> None:
    items = [
        {"instruction": "Whom to ask?", "output": f"Please write to {name}@firma.eu about it."}
        for name in ("maria.rossi", "jan.kowalski")
    ]
    report = prepared(tmp_path, items, redact={"kinds": ["email"]}).report()
    assert report["dropped"] == {"exact_duplicate": 1}


def test_a_data_set_of_nothing_but_personal_data_says_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 personal_data.*data\.redact\.action to replace"):
        prepared(tmp_path, ROWS[:1], redact={"kinds": ["email"], "action": "drop"})
