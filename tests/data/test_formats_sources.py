"""Streams that stay small, digests that follow content, the hub without a network, and what prepare says."""

from __future__ import annotations

import io
import json
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conformance.writers import arrow_stream, json_lines, json_list, json_object, parquet, table_text
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from small_tokenizers import byte_tokenizer, chatml_tokenizer

from trueup.data import containers, json_stream, prepare
from trueup.data.records import Tally
from trueup.data.sources import open_source
from trueup.data.template import ChatTemplate
from trueup.recipe.models import DataSection
from trueup.schema import InputError, MissingExtraError

ROW = {"prompt": "Q", "completion": "A"}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def digest(path: Path | str) -> str:
    return open_source(DataSection(source=str(path))).digest


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@given(
    rows=st.lists(JSON_VALUES, max_size=5),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
    window=st.integers(1, 40),
)
def test_a_document_is_read_as_the_standard_library_reads_it(
    rows: list[Any], indent: int | None, ascii_only: bool, window: int
) -> None:
    text = json.dumps(rows, indent=indent, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "WINDOW_CHARACTERS", window)
        found = list(json_stream.document_rows(io.StringIO(text), "a.json", frozenset()))
        assert found == list(enumerate(rows, start=1))
        if rows:
            with pytest.raises(InputError, match=r"a\.json:\d+: "):
                list(json_stream.document_rows(io.StringIO(text[:-1]), "a.json", frozenset()))


@pytest.mark.parametrize(
    ("name", "write_rows"),
    [
        ("a.json", json_list),
        ("b.json", json_object),
        ("a.jsonl", json_lines),
        ("a.csv", table_text),
        ("a.arrow", arrow_stream),
        ("a.parquet", parquet),
        ("a.txt", lambda rows: b"".join(row["completion"].encode() + b"\n\n" for row in rows)),
    ],
)
def test_the_memory_does_not_grow_with_the_file(tmp_path: Path, name: str, write_rows: Any) -> None:
    path = tmp_path / name
    path.write_bytes(write_rows([{"prompt": f"Q{n}", "completion": f"{n} " * 1500} for n in range(6000)]))
    assert path.stat().st_size > 40_000_000 or name == "a.parquet"  # it packs repetition
    source, tally = open_source(DataSection(source=str(path))), Tally()
    tracemalloc.start()
    try:
        count = sum(1 for _ in source.records(tally))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == (6000 if name != "a.txt" else -(-path.stat().st_size // containers.PIECE_CHARACTERS))
    assert peak < 16_000_000


def test_a_line_longer_than_the_limit_is_counted_and_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "LONGEST_LINE", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines([ROW, {"prompt": "x" * 1000, "completion": "A"}, ROW]))
    tally = Tally()
    records = list(open_source(DataSection(source=str(path))).records(tally))
    assert [record.origin for record in records] == ["a.jsonl:1", "a.jsonl:3"]
    assert tally.dropped == {"unreadable_line": 1}
    assert "longer than 100 bytes; it begins: {" in tally.first["unreadable_line"][0]["what"]


def test_a_value_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "WINDOW_CHARACTERS", 16)
    monkeypatch.setattr(json_stream, "LONGEST_VALUE", 1000)
    with pytest.raises(InputError, match=r"a\.json:1: a value of more than 1000 characters"):
        list(json_stream.document_rows(io.StringIO('["' + "x" * 10_000), "a.json", frozenset()))


@given(st.text(alphabet="ab\n é", max_size=200), st.integers(8, 30))
def test_plain_text_in_pieces_is_the_whole_text(text: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(containers, "PIECE_CHARACTERS", piece)
        patch.setattr(containers, "open_utf8", lambda *_: io.BytesIO(text.encode()))
        file = containers.DataFile(Path("a.txt"), "a.txt", "txt")
        pieces = [row["text"] for _, row in containers.rows(file, frozenset())]
    assert "".join(pieces) == text
    assert all(len(part) <= piece for part in pieces)
    assert all(part.endswith("\n") for part in pieces[:-1] if "\n" in part)


def test_the_digest_is_of_the_content_in_reading_order(tmp_path: Path) -> None:
    one, two = json_lines([ROW]), json_lines([{"prompt": "R", "completion": "B"}])
    first = digest(write(tmp_path / "first", {"a.jsonl": one, "s/b.jsonl": two}))
    assert digest(write(tmp_path / "moved", {"a.jsonl": one, "s/b.jsonl": two, ".hidden": b"x"})) == first
    assert digest(write(tmp_path / "renamed", {"1.jsonl": one, "2.jsonl": two})) == first
    assert digest(f"{tmp_path}/renamed/*.jsonl") == first
    assert digest(write(tmp_path / "order", {"b.jsonl": one, "a.jsonl": two})) != first
    assert digest(write(tmp_path / "joined", {"a.jsonl": one + two})) != first
    assert digest(write(tmp_path / "kinds", {"a.txt": one}) / "a.txt") != digest(
        write(tmp_path / "kinds", {"a.jsonl": one}) / "a.jsonl"
    )


def test_a_folder_is_read_through_links_once_and_in_the_order_of_a_glob(tmp_path: Path) -> None:
    files = {f"{name}/x.jsonl": json_lines([{**ROW, "prompt": name}]) for name in ("a", "a-b", "a b", "é")}
    root = write(tmp_path / "in", files)
    outside = write(tmp_path / "outside", {"y.jsonl": json_lines([{**ROW, "prompt": "linked"}])})
    (root / "link").symlink_to(outside)
    (root / "a" / "loop").symlink_to(root)

    def prompts(source: str) -> list[str]:
        records = open_source(DataSection(source=source)).records(Tally())
        return [record.turns[0].content for record in records]

    assert prompts(str(root)) == ["a b", "a-b", "a", "linked", "é"]
    assert prompts(f"{root}/*/*.jsonl") == prompts(str(root))
    assert digest(f"{root}/*/*.jsonl") == digest(root)


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*_: Any, onerror: Any, **__: Any) -> Any:
        onerror(PermissionError(13, "Permission denied", "in/secret"))

    monkeypatch.setattr("os.walk", walk)
    with pytest.raises(InputError, match="cannot be read: Permission denied; check data"):
        open_source(DataSection(source=str(tmp_path)))


def test_the_hub_without_the_package_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"'hub:o/n' needs the package 'datasets': .*trueup\[hub\]"):
        open_source(DataSection(source="hub:o/n"))


def test_the_hub_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'o/n' on the Hub\nmore")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=fail))
    with pytest.raises(
        InputError, match=r"ConnectionError: Couldn't reach 'o/n' on the Hub\. It needs a net"
    ):
        open_source(DataSection(source="hub:o/n"))
    with pytest.raises(InputError, match="expected hub:OWNER/NAME"):
        open_source(DataSection(source="hub:name"))


def test_a_hub_data_set_is_read_from_the_packages_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def load(name: str, **settings: Any) -> Any:
        asked.append((name, settings))
        return SimpleNamespace(cache_files=[{"filename": str(tmp_path / "n-train.arrow")}])

    write(tmp_path, {"n-train.arrow": arrow_stream([ROW] * 3)})
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    source = open_source(DataSection(source="hub:o/n@main#test"))
    records = list(source.records(Tally()))
    assert asked == [("o/n", {"split": "test", "revision": "main"})]
    assert [record.origin for record in records] == [f"o/n/n-train.arrow:{n}" for n in (1, 2, 3)]
    assert source.digest == digest(tmp_path / "n-train.arrow")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": "q"}, "maps prompt; expected prompt and completion"),
        ({"prompt": "q", "text": "t"}, "maps prompt, text; expected"),
        ({"text": "t", "system": "s"}, "plain text has no system turn"),
        ({"prompt": "q", "completion": ""}, "at least 1 character"),
        ({"prompt": "q", "answer": "a"}, "answer"),
    ],
)
def test_a_map_that_describes_no_format_is_refused(columns: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSection(source="a.csv", columns=columns)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=r"data\.format is alpaca, but data\.columns describes text"):
        DataSection(source="a.csv", format="alpaca", columns={"text": "t"})  # type: ignore[arg-type]


def test_prepare_reports_every_file_and_says_what_it_read(tmp_path: Path) -> None:
    pairs = [{"prompt": f"Question {n}?", "chosen": f"yes, {n}", "rejected": "no"} for n in range(40)]
    root = write(
        tmp_path / "in", {"a.jsonl": json_lines(pairs), "b.txt": b"Once upon a time.", "README": b"x"}
    )
    section = DataSection(source=str(root), split={"validation": 0, "test": 0})  # type: ignore[arg-type]
    prepared = prepare(section, chatml_tokenizer(), tmp_path / "data")
    report = prepared.report()
    assert report["records"] == 41
    assert report["format"]["name"] == "preference, text"
    assert report["format"]["evidence"] == "2 files, each by its own first rows: 1 preference, 1 text"
    assert [(f["file"], f["container"], f["format"], f["rows"]) for f in report["format"]["files"]] == [
        ("a.jsonl", "jsonl", "preference", 40),
        ("b.txt", "txt", "text", 1),
    ]
    for said in (
        "descriptions: README",
        "read as their chosen side",
        "plain text is used without a template",
    ):
        assert any(said in message for message in prepared.messages)
    again = prepare(section, chatml_tokenizer(), tmp_path / "data")
    assert again.cache_hit
    assert again.messages == prepared.messages


@pytest.mark.parametrize("loss_on", ["answer", "all"])
def test_plain_text_stands_between_bos_and_eos_and_is_all_learned(loss_on: Any) -> None:
    adds = byte_tokenizer(adds_bos=True, bos_token="<s>", eos_token="</s>")
    adds_none = byte_tokenizer(eos_token="</s>")
    without_end = byte_tokenizer()
    record = next(iter_text("Once.\n"))
    for tokenizer, expected in (
        (adds, "<s>Once.\n</s>"),
        (adds_none, "Once.\n</s>"),
        (without_end, "Once.\n"),
    ):
        template = ChatTemplate(tokenizer)
        example = template.encode([template.render(record)], loss_on)[0]
        assert tokenizer.decode(example.tokens_T) == expected
        assert example.loss_T.tolist() == [False] + [True] * (len(example.tokens_T) - 1)


def iter_text(text: str) -> Any:
    from trueup.data.records import Record, Turn

    yield Record((Turn("text", text),), "a.txt:1")


def test_a_refusal_of_the_folder_one_is_in_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"data.source '{tmp_path.name}': picture.png cannot be read"):
        open_source(DataSection(source="."))
