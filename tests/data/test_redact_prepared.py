"""Redaction in `prepare`: the tokens, the counts, what is kept of rows that were left out, and the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redact_examples import card
from small_tokenizers import byte_tokenizer

from trueup.data import prepare
from trueup.recipe.models import DataSection

PERSON = "jane.doe@corp-mail.com"
ROWS = [
    {"instruction": "Who?", "response": f"Write to {PERSON} or 13812345678."},
    {"instruction": "Version?", "response": "1.2.3.4 since 2024-01-15"},
    {"instruction": "Card?", "response": f"It is {card('411111111111111')}"},
    {"instruction": f"no answer for {PERSON}", "response": ""},
    {"instruction": "wrong type", "response": [PERSON]},
    {"instruction": "long " + "x " * 100, "response": ["y " * 70 + PERSON]},
]


def prepared(folder: Path, **redact: Any) -> tuple[Any, str]:
    source = folder / "rows.jsonl"
    cut = f'{{"instruction": "cut", "response": "{PERSON}'
    source.write_text("\n".join([*map(json.dumps, ROWS), cut]), encoding="utf-8")
    section = DataSection.model_validate(
        {"source": str(source), "max_length": 400, "redact": redact, "split": {"validation": 0, "test": 0}}
    )
    data = prepare(section, byte_tokenizer(), folder / "home")
    return data, (data.folder / "manifest.json").read_text(encoding="utf-8")


def said(data: Any) -> list[str]:
    table = data.split("train")
    tokenizer = byte_tokenizer()
    return sorted(tokenizer.decode(table.example(n)[0].tolist()) for n in range(len(table)))


def test_no_token_and_no_message_holds_what_was_redacted(tmp_path: Path) -> None:
    data, manifest = prepared(tmp_path, kinds=["email", "phone", "payment_card"])
    everything = "".join(said(data))
    assert "Write to [EMAIL] or [PHONE]." in everything
    assert "1.2.3.4 since 2024-01-15" in everything
    assert "It is [PAYMENT_CARD]" in everything
    report = data.report()
    assert report["redacted"] == {"email": 1, "payment_card": 1, "phone": 1}
    assert report["changed"]["personal_data_replaced"] == 2
    assert set(report["dropped"]) == {"empty_answer", "unreadable_line", "wrong_type"}
    kept = b"".join(path.read_bytes() for path in data.folder.iterdir())
    for text in (manifest.encode(), kept, "".join(map(str, data.messages)).encode()):
        assert b"jane.doe" not in text
        assert b"13812345678" not in text
    assert "no answer for" not in manifest or "after: no answer for [EMAIL]" in manifest


@pytest.mark.parametrize(
    ("action", "reason"), [("replace", "personal_data_replaced"), ("drop", "personal_data")]
)
def test_every_touched_record_is_kept_to_be_shown_with_every_find(
    tmp_path: Path, action: str, reason: str
) -> None:
    """Not only the first few, and across shards of 512 records."""
    rows = [
        {
            "instruction": f"Who is {n}?",
            "response": f"u{n}@corp-mail.com, tel +1 212-555-{n:04}" if n % 9 == 0 else "x",
        }
        for n in range(1100)
    ]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    redact = {"kinds": ["email", "phone"], "action": action}
    section = DataSection.model_validate({"source": str(source), "redact": redact})
    report = prepare(section, byte_tokenizer(), tmp_path / "home", workers=1).report()
    shown = report["first"][reason]
    assert [item["where"] for item in shown] == [f"rows.jsonl:{n + 1}" for n in range(0, 1100, 9)]
    assert all(item["what"].startswith("u…@….com, +1…") for item in shown)
    assert report["redacted"] == {"email": len(shown), "phone": len(shown)}


def test_without_kinds_nothing_is_changed(tmp_path: Path) -> None:
    data, _ = prepared(tmp_path)
    assert data.report()["redacted"] == {}
    assert PERSON in "".join(said(data))


def test_drop_leaves_the_record_out_and_counts_it(tmp_path: Path) -> None:
    data, manifest = prepared(tmp_path, kinds=["email"], action="drop")
    assert data.report()["dropped"]["personal_data"] == 1
    assert data.report()["redacted"] == {"email": 1}
    assert "Write to" not in "".join(said(data))
    assert "jane.doe" not in manifest


@pytest.mark.parametrize("at", range(0, 130, 7))
def test_no_piece_of_a_find_is_kept_of_a_row_that_cannot_be_read(tmp_path: Path, at: int) -> None:
    """An excerpt begins or ends inside a find, or a JSON escape is in it."""
    found = [card("411111111111111"), "-----BEGIN PRIVATE KEY-----\n" + "Qz7" * 100, PERSON]
    rows = [ROWS[1]]
    for value in found:
        text = "x " * at + value + " x" * (at // 2)
        rows += [{"instruction": text, "response": ""}, {"instruction": "?", "response": [text]}]
    lines = [*map(json.dumps, rows), *(json.dumps(rows[n])[:-2] for n in (2, 4, 6))]
    lines.append(lines[-1].replace("@", "\\u0040"))
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    section = DataSection.model_validate(
        {"source": str(source), "redact": {"kinds": ["email", "payment_card", "secret"]}}
    )
    data = prepare(section, byte_tokenizer(), tmp_path / "home")
    assert data.report()["dropped"] == {"empty_answer": 3, "unreadable_line": 4, "wrong_type": 3}
    shown = json.dumps(data.report()["first"])
    for piece in ("1111111", "1111 11", "Qz7", "corp-mail", "jane.doe"):
        assert piece not in shown


def test_other_rules_are_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = prepared(tmp_path, kinds=["email"])
    assert prepared(tmp_path, kinds=["email"])[0].cache_hit
    monkeypatch.setattr("trueup.data.redact.rules_digest", lambda: "other rules")
    assert prepared(tmp_path, kinds=["email"])[0].digest != first.digest
