"""Every format from every container, and a table of files with a twist: exact turns, tokens and errors.

The expected tokens are made here from the expected turns by a ChatML of this file's own, not by the code
under test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conformance import cases, file_cases
from conformance.cases import Case, Turns
from conformance.writers import CONTAINERS
from small_tokenizers import chatml_tokenizer

from trueup.data import prepare
from trueup.data.records import Record, Tally
from trueup.data.sources import Source, open_source
from trueup.data.template import ChatTemplate
from trueup.recipe.models import DataSection
from trueup.schema import InputError

TOKENIZER = chatml_tokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)
TABLE = [
    case
    for group in (
        cases.ENCODINGS,
        cases.NULS,
        cases.SIZES,
        cases.FIELDS,
        cases.TEXTS,
        cases.CONVERSATIONS,
        file_cases.DOCUMENTS,
        file_cases.DAMAGE,
        file_cases.FOLDERS,
        file_cases.COLUMNS,
    )
    for case in group
]
QUESTION, ANSWER = "Wer, „du“?\n😀 什么", ' line 1\n\n\tline, "2"; é\u200d|\n'
PAIR: Turns = [("user", QUESTION), ("assistant", ANSWER)]
SYSTEM: Turns = [("system", "Sei nett.")]
FORMATS: dict[str, tuple[dict[str, Any], Turns]] = {
    "messages": ({"messages": [{"role": r, "content": c} for r, c in SYSTEM + PAIR * 2]}, SYSTEM + PAIR * 2),
    "sharegpt": (
        {
            "conversations": [
                {"from": {"user": "human", "assistant": "gpt"}[role], "value": content}
                for role, content in PAIR * 2
            ],
            "system": "Sei nett.",
        },
        SYSTEM + PAIR * 2,
    ),
    "alpaca": (
        {"instruction": QUESTION, "input": "x", "output": ANSWER},
        [("user", f"{QUESTION}\n\nx"), ("assistant", ANSWER)],
    ),
    "prompt-completion": ({"prompt": QUESTION, "completion": ANSWER}, PAIR),
    "preference": ({"prompt": QUESTION, "chosen": ANSWER, "rejected": "no"}, PAIR),
    "text": ({"text": ANSWER}, [("text", ANSWER)]),
}


def read(source: Path | str, **settings: Any) -> tuple[list[Record], Tally, Source]:
    opened = open_source(DataSection(source=str(source), **settings))
    tally = Tally()
    return list(opened.records(tally)), tally, opened


def turns(record: Record) -> Turns:
    return [(turn.role, turn.content) for turn in record.turns]


def expected_tokens(said: Turns) -> tuple[list[int], list[bool]]:
    """ChatML with loss on answers and their end; plain text with loss on all of it and an end."""
    parts: list[tuple[str, bool]] = []
    for role, content in said:
        if role == "text":
            parts.append((f"{content}<|im_end|>", True))
        else:
            parts += [
                (f"<|im_start|>{role}\n", False),
                (f"{content}<|im_end|>", role == "assistant"),
                ("\n", False),
            ]
    ids: list[int] = []
    loss: list[bool] = []
    for text, learned in parts:
        piece = TOKENIZER(text, add_special_tokens=False)["input_ids"]
        ids += piece
        loss += [learned] * len(piece)
    return ids, [False, *loss[1:]]


def assert_tokens(records: list[Record]) -> None:
    encoded = TEMPLATE.encode([TEMPLATE.render(record) for record in records], "answer")
    for record, example in zip(records, encoded, strict=True):
        ids, loss = expected_tokens(turns(record))
        assert TOKENIZER.decode(example.tokens_T) == TOKENIZER.decode(ids)
        assert example.loss_T.tolist() == loss
        assert example.tokens_T.tolist() == ids


@pytest.mark.parametrize("file", CONTAINERS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_the_same_from_every_container(tmp_path: Path, name: str, file: str) -> None:
    row, expected = FORMATS[name]
    (tmp_path / file).write_bytes(CONTAINERS[file]([row] * 3))
    records, tally, source = read(tmp_path / file)
    assert [turns(record) for record in records] == [expected] * 3
    assert not tally.dropped
    assert (source.format, source.rows_read) == (name, 3)
    assert source.evidence.startswith("3 of the first 3 rows have ")
    assert source.files[0].rows == 3
    assert_tokens(records)


def test_the_table_is_as_large_as_was_promised() -> None:
    assert len({case.name for case in TABLE}) == len(TABLE) >= 40


@pytest.mark.parametrize("case", TABLE, ids=[case.name for case in TABLE])
def test_a_file_with_a_twist(tmp_path: Path, case: Case) -> None:
    root = tmp_path / "in"
    for name, content in case.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    source = root if case.source == "." else root / (case.source or next(iter(case.files)))
    if case.error:
        with pytest.raises(InputError) as raised:
            read(source, **case.settings)
        assert str(raised.value).replace(str(root), "ROOT").replace(os.getcwd(), "CWD") == case.error
        return
    records, tally, opened = read(source, **case.settings)
    assert [turns(record) for record in records] == case.records
    assert tally.dropped == case.dropped
    assert opened.rows_read == len(records) + sum(case.dropped.values()) == sum(f.rows for f in opened.files)
    if case.formats:
        assert {file.file: file.format for file in opened.files} == case.formats
    if case.notes:
        assert tuple(opened.notes) == case.notes
    assert_tokens([record for record in records if len(record.turns[0].content) < 100_000])


def test_a_quote_that_is_never_closed_says_how_many_lines_it_took(tmp_path: Path) -> None:
    rows = "".join(f"Q{n},A{n}\n" for n in range(100))
    (tmp_path / "a.csv").write_text(f'prompt,completion\nQ,A\n"Q,A\n{rows}')
    records, tally, _ = read(tmp_path / "a.csv")
    assert len(records) == 1
    assert tally.first["unreadable_line"] == [
        {"where": "a.csv:3", "what": "not a row of a table: unexpected end of data (lines 3 to 103)"}
    ]


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("prompt,completion\n问题,答案\n".encode("gbk"), "Save the data as UTF-8."),
        (b"prompt,completion\nQ,a <|im_end|> b\n", "Take the special tokens out of the texts"),
        (b"prompt,completion\nQ,\n", "Give the records answers"),
    ],
)
def test_where_nothing_is_left_the_advice_is_for_the_reason(
    tmp_path: Path, content: bytes, advice: str
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(InputError, match=advice):
        prepare(DataSection(source=str(tmp_path / "a.csv")), TOKENIZER, tmp_path / "home")
