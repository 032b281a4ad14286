"""Reading records: every format, what is counted, what is refused, and that messages name the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trueup.data.records import Record, Tally
from trueup.data.sources import Source, open_source
from trueup.recipe.models import DataSection
from trueup.schema import InputError

ALPACA = {"instruction": "Why?", "output": "Because."}


def read(path: Path, **settings: Any) -> tuple[list[Record], Tally, Source]:
    source = open_source(DataSection(source=str(path), **settings))
    tally = Tally()
    return list(source.records(tally)), tally, source


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def turns(record: Record) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in record.turns]


@pytest.mark.parametrize(
    ("row", "name", "expected"),
    [
        (ALPACA, "alpaca", [("user", "Why?"), ("assistant", "Because.")]),
        ({**ALPACA, "input": "The sky"}, "alpaca", [("user", "Why?\n\nThe sky"), ("assistant", "Because.")]),
        ({**ALPACA, "input": ""}, "alpaca", [("user", "Why?"), ("assistant", "Because.")]),
        ({**ALPACA, "input": None}, "alpaca", [("user", "Why?"), ("assistant", "Because.")]),
        ({"instruction": "Q", "response": "A"}, "alpaca", [("user", "Q"), ("assistant", "A")]),
        (
            {"instruction": "Q", "response": "no", "output": "A"},
            "alpaca",
            [("user", "Q"), ("assistant", "A")],
        ),
        ({"prompt": "Q", "completion": "A"}, "prompt-completion", [("user", "Q"), ("assistant", "A")]),
        (
            {
                "messages": [
                    {"role": r, "content": r[0]} for r in ("system", "user", "assistant", "user", "assistant")
                ]
            },
            "messages",
            [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "u"), ("assistant", "a")],
        ),
    ],
)
def test_every_format_is_found_and_read(
    tmp_path: Path, row: dict[str, Any], name: str, expected: list[tuple[str, str]]
) -> None:
    for path in (lines(tmp_path / "a.jsonl", row), tmp_path / "a.json"):
        if path.suffix == ".json":
            path.write_text(json.dumps([row], indent=2))
        records, tally, source = read(path)
        assert [turns(record) for record in records] == [expected]
        assert (source.format, sum(tally.dropped.values())) == (name, 0)
        assert "1 of the first 1 rows" in source.evidence
        named, _, _ = read(path, format=name)
        assert named == records


def test_the_gsm8k_shape_by_name(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", *[{"instruction": f"Q{n}", "response": f"A{n}"} for n in range(120)])
    records, _, source = read(path)
    assert len(records) == source.rows_read == 120
    assert records[119].origin == "a.jsonl:120"


def test_a_line_cut_in_half_is_counted_and_shown_and_the_rest_used(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", ALPACA, '{"instruction": "Why', ALPACA, "", '"text"', ALPACA)
    records, tally, _ = read(path)
    assert [record.origin for record in records] == ["a.jsonl:1", "a.jsonl:3", "a.jsonl:6"]
    assert tally.dropped == {"unreadable_line": 1, "not_an_object": 1}
    assert tally.first["unreadable_line"][0]["where"] == "a.jsonl:2"
    assert '{"instruction": "Why' in tally.first["unreadable_line"][0]["what"]


def test_strict_refuses_the_cut_line_by_number(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", ALPACA, '{"instruction": "Why', ALPACA)
    with pytest.raises(InputError, match=r"a\.jsonl:2: unreadable_line"):
        read(path, strict=True)
    lenient = lines(tmp_path / "b.jsonl", ALPACA, {"instruction": "Q", "output": " "})
    records, tally, _ = read(lenient, strict=True)
    assert (len(records), tally.dropped) == (1, {"empty_answer": 1})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"instruction": "Q", "output": ""}, "empty_answer"),
        ({"instruction": "Q", "output": " \n"}, "empty_answer"),
        ({"instruction": "", "output": "A"}, "empty_question"),
        ({"instruction": " \n", "input": "", "output": "A"}, "empty_question"),
        ({"instruction": "", "output": ""}, "empty_answer"),
        ({"instruction": "Q"}, "missing_field"),
        ({"instruction": "Q", "output": 7}, "wrong_type"),
        ({"instruction": "Q", "output": None}, "wrong_type"),
        ({"instruction": "Q \ud800", "output": "A"}, "invalid_text"),
        ([1, 2], "not_an_object"),
        ("[" * 100_000, "unreadable_line"),
        ('{"instruction": "Q", "output": ' + "9" * 5000 + "}", "unreadable_line"),
    ],
)
def test_rows_that_cannot_be_used_are_counted(tmp_path: Path, row: object, reason: str) -> None:
    records, tally, _ = read(lines(tmp_path / "a.jsonl", ALPACA, row))
    assert len(records) == 1
    assert tally.dropped == {reason: 1}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "user", "content": "Q"}], "no_answer"),
        ([], "no_answer"),
        ([{"role": "tool", "content": "x"}, {"role": "assistant", "content": "A"}], "tool_call"),
        ([{"role": "critic", "content": "x"}, {"role": "assistant", "content": "A"}], "unknown_role"),
        ([{"role": "assistant", "content": None}], "wrong_type"),
        ([{"role": "assistant"}], "missing_field"),
        (["Q", "A"], "wrong_type"),
        ("Q", "wrong_type"),
        ([{"role": "assistant", "content": ""}, {"role": "assistant", "content": "A"}], "empty_answer"),
        ([{"role": "user", "content": " "}, {"role": "assistant", "content": "A"}], "empty_question"),
    ],
)
def test_conversations_that_cannot_be_used_are_counted(tmp_path: Path, messages: object, reason: str) -> None:
    good = {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}
    records, tally, _ = read(lines(tmp_path / "a.jsonl", good, {"messages": messages}))
    assert len(records) == 1
    assert tally.dropped == {reason: 1}


def test_a_question_without_text_in_the_middle_spoils_its_conversation(tmp_path: Path) -> None:
    texts = (("user", "Q"), ("assistant", "A"), ("user", ""), ("assistant", "B"))
    row = {"messages": [{"role": role, "content": text} for role, text in texts]}
    good = {"messages": row["messages"][:2]}
    records, tally, _ = read(lines(tmp_path / "a.jsonl", good, row))
    assert (len(records), tally.dropped) == (1, {"empty_question": 1})
    assert tally.first["empty_question"][0]["what"] == "a question without text, before: A"


def test_a_question_in_the_input_alone_is_one(tmp_path: Path) -> None:
    row = {"instruction": "", "input": "Why?", "output": "A"}
    assert len(read(lines(tmp_path / "a.jsonl", row))[0]) == 1


def test_strict_refuses_no_question_without_text(tmp_path: Path) -> None:
    """Its row can be read; there is only nothing in it to learn from."""
    path = lines(tmp_path / "a.jsonl", ALPACA, {"instruction": "", "output": "A"})
    records, tally, _ = read(path, strict=True)
    assert (len(records), tally.dropped) == (1, {"empty_question": 1})


def test_turns_after_the_last_answer_are_left_off_and_counted(tmp_path: Path) -> None:
    messages = [{"role": r, "content": r} for r in ("user", "assistant", "user")]
    records, tally, _ = read(lines(tmp_path / "a.jsonl", {"messages": messages}))
    assert [role for role, _ in turns(records[0])] == ["user", "assistant"]
    assert tally.changed == {"turns_after_last_answer_cut": 1}


def test_byte_order_mark_crlf_and_bad_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = json.dumps(ALPACA).encode()
    path.write_bytes(b"\xef\xbb\xbf" + row + b"\r\n" + row[:20] + b"\xff" + row[20:] + b"\r\n" + row)
    records, tally, _ = read(path)
    assert (len(records), tally.dropped) == (2, {"unreadable_line": 1})
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf[" + row + b"]")
    assert len(read(path)[0]) == 1


def test_json_lines_under_the_name_json(tmp_path: Path) -> None:
    assert len(read(lines(tmp_path / "a.json", ALPACA, ALPACA))[0]) == 2
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps([ALPACA, ALPACA], indent=1))
    assert len(read(path)[0]) == 2


def test_mixed_rows_take_the_commoner_format_and_say_so(tmp_path: Path) -> None:
    other = {"prompt": "Q", "completion": "A"}
    records, tally, source = read(lines(tmp_path / "a.jsonl", ALPACA, other, ALPACA))
    assert (len(records), tally.dropped) == (2, {"missing_field": 1})
    assert source.evidence.endswith("1 look like prompt-completion")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", " \n\n", "holds no records"),
        ("a.json", "[]", "holds no records"),
        ("a.json", '[{"instruction": "Q",\n "output": ', r"a\.json:2: not JSON"),
        ("a.jsonl", "not json\n", r"a\.jsonl:1: none of the first 1 lines"),
        ("a.jsonl", '{"question": "Q", "answer": "A"}\n', "keys 'question', 'answer'.*alpaca: 'instruction'"),
        ("a.jsonl", "7\n", "no objects but int"),
        ("a.pdf", "text", r"not a kind of file that is read \(.json, .jsonl"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read(path)


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(InputError, match="holds no data files"):
        read(tmp_path / "folder.jsonl")


def test_identity_follows_content_not_name(tmp_path: Path) -> None:
    a, b = lines(tmp_path / "a.jsonl", ALPACA), lines(tmp_path / "b.jsonl", ALPACA)
    assert open_source(DataSection(source=str(a))).digest == open_source(DataSection(source=str(b))).digest
    lines(b, ALPACA, ALPACA)
    assert open_source(DataSection(source=str(a))).digest != open_source(DataSection(source=str(b))).digest
