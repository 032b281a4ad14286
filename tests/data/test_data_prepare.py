"""Prepared data: deterministic, found again, rebuilt when damaged, whole or not there at all."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizers import byte_tokenizer, chatml_tokenizer

from trueup.data import Prepared, arrow_folder, prepare
from trueup.data.splits import SPLITS, assign, uniform
from trueup.recipe.models import DataSection, SplitSection
from trueup.schema import InputError, StorageError

TOKENIZER = chatml_tokenizer()


def rows(count: int) -> list[dict[str, str]]:
    return [
        {"instruction": f"What is {n}?", "output": f"The number {n}" + "!" * (n % 40)} for n in range(count)
    ]


def write(path: Path, items: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)


def make(
    tmp_path: Path, items: list[dict[str, str]], tokenizer: Any = TOKENIZER, **settings: Any
) -> Prepared:
    section = DataSection(source=write(tmp_path / "in.jsonl", items), **settings)
    return prepare(section, tokenizer, tmp_path / "data")


def contents(prepared: Prepared) -> dict[str, list[tuple[list[int], list[bool]]]]:
    found = {}
    for name in SPLITS:
        table = prepared.split(name)
        examples = [table.example(i) for i in range(len(table))]
        found[name] = [(tokens.tolist(), loss.tolist()) for tokens, loss in examples]
        assert table.lengths.tolist() == [len(tokens) for tokens, _ in examples]
        assert table.supervised.tolist() == [int(loss.sum()) for _, loss in examples]
    return found


def test_the_report_and_facts_agree_with_a_recount(tmp_path: Path) -> None:
    prepared = make(tmp_path, [*rows(1500), {"instruction": "Q", "output": " "}], max_length=80)
    report, found = prepared.report(), contents(prepared)
    lengths = np.concatenate([prepared.split(name).lengths for name in SPLITS])
    assert report["records"] == len(lengths)
    assert report["records_read"] == 1501 == len(lengths) + sum(report["dropped"].values())
    assert report["dropped"]["empty_answer"] == 1
    assert report["dropped"]["too_long"] > 0
    assert report["splits"] == {name: len(examples) for name, examples in found.items()}
    assert report["tokens"] == {
        "min": lengths.min(),
        "p50": np.sort(lengths)[-(-len(lengths) // 2) - 1],
        "p90": np.sort(lengths)[-(-len(lengths) * 9 // 10) - 1],
        "p99": np.sort(lengths)[-(-len(lengths) * 99 // 100) - 1],
        "max": lengths.max(),
        "total": lengths.sum(),
    }
    assert report["supervised_tokens"] == sum(sum(loss) for part in found.values() for _, loss in part)
    for start, stop, count in prepared.facts.length_histogram:
        assert count == np.sum((lengths >= start) & (lengths < stop))
    assert sum(count for *_, count in prepared.facts.length_histogram) == len(lengths)
    assert (report["redacted"], report["cache_hit"], report["dataset"]) == ({}, False, prepared.digest)
    assert json.loads(json.dumps(report)) == report
    assert prepared.facts.dropped == report["dropped"]
    assert prepared.pad.id not in prepared.end_ids


def test_supervised_tokens_decode_to_the_answer_and_its_end(tmp_path: Path) -> None:
    items = rows(1100)  # more than one Arrow batch
    prepared = make(tmp_path, items, split={"validation": 0, "test": 0})
    table = prepared.split("train")
    assert len(table) == 1100
    for i in (0, 1, 1023, 1024, 1099):
        tokens, loss = table.example(i)
        assert TOKENIZER.decode(tokens[loss]) == items[i]["output"] + "<|im_end|>"


def test_the_same_inputs_give_the_same_bytes_and_are_found_again(tmp_path: Path) -> None:
    first = make(tmp_path, rows(50))
    again = make(tmp_path, rows(50))
    assert (first.cache_hit, again.cache_hit) == (False, True)
    assert contents(first) == contents(again)
    assert first.report() | {"cache_hit": True} == again.report()
    (tmp_path / "other").mkdir()
    elsewhere = make(tmp_path / "other", rows(50))
    assert not elsewhere.cache_hit
    for name in (arrow_folder.EXAMPLES_FILE, arrow_folder.INDEX_FILE, arrow_folder.MANIFEST_FILE):
        assert (first.folder / name).read_bytes() == (elsewhere.folder / name).read_bytes()


def test_any_changed_input_is_another_data_set(tmp_path: Path) -> None:
    digests = [
        make(tmp_path, rows(50)).digest,
        make(tmp_path, rows(51)).digest,
        make(tmp_path, rows(50), max_length=100).digest,
        make(tmp_path, rows(50), loss_on="all").digest,
        make(tmp_path, rows(50), limit=10).digest,
        make(tmp_path, rows(50), split={"validation": 0.1}).digest,
        make(tmp_path, rows(50), byte_tokenizer(eos_token="<|im_end|>")).digest,
        make(tmp_path, rows(50), byte_tokenizer(None, eos_token="<|im_end|>")).digest,
    ]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "name", [arrow_folder.EXAMPLES_FILE, arrow_folder.INDEX_FILE, arrow_folder.MANIFEST_FILE]
)
@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_a_damaged_cache_is_rebuilt_with_a_message(tmp_path: Path, name: str, damage: str) -> None:
    first = make(tmp_path, rows(50))
    expected = contents(first)
    file = first.folder / name
    content = bytearray(file.read_bytes())
    file.unlink()
    if damage == "short":
        file.write_bytes(content[:-20])
    elif damage == "flipped":
        content[len(content) // 2 if name != arrow_folder.MANIFEST_FILE else 0] ^= 0xFF
        file.write_bytes(content)
    again = make(tmp_path, rows(50))
    assert not again.cache_hit
    assert "was damaged" in again.messages[0]
    assert contents(again) == expected
    assert make(tmp_path, rows(50)).cache_hit
    assert [path.name for path in (tmp_path / "data").iterdir()] == [first.digest]


def test_limit_takes_the_first_records(tmp_path: Path) -> None:
    prepared = make(tmp_path, rows(50), limit=7)
    assert prepared.report()["records"] == 7


def test_too_long_is_dropped_or_truncated_and_counted(tmp_path: Path) -> None:
    items = [*rows(3), {"instruction": "Q", "output": "x" * 300}, {"instruction": "y" * 300, "output": "A"}]
    dropped = make(tmp_path, items, max_length=100).report()
    assert dropped["dropped"] == {"too_long": 2}
    assert "the limit is 100" in dropped["first"]["too_long"][0]["what"]
    prepared = make(tmp_path, items, max_length=100, overlong="truncate")
    assert prepared.report()["dropped"] == {"no_supervised_tokens": 1}
    assert prepared.report()["changed"] == {"truncated": 1}
    assert prepared.report()["tokens"]["max"] == 100


@pytest.mark.parametrize("overlong", ["drop", "truncate"])
def test_all_too_long_names_the_longest_and_the_limit(tmp_path: Path, overlong: str) -> None:
    items = [{"instruction": "Q" * n, "output": "A" * 90} for n in (60, 90)]
    with pytest.raises(InputError, match=r"none of its 2 .*longest has 2\d\d tokens, data.max_length is 30"):
        make(tmp_path, items, max_length=30, overlong=overlong)
    assert list((tmp_path / "data").iterdir()) == []


def test_nothing_usable_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"2 empty_answer.*in\.jsonl:1"):
        make(tmp_path, [{"instruction": "Q", "output": ""}] * 2)


def test_a_vocabulary_larger_than_the_model_is_refused_before_reading(tmp_path: Path) -> None:
    section = DataSection(source=write(tmp_path / "in.jsonl", rows(3)))
    with pytest.raises(InputError, match="larger than the model's"):
        prepare(section, TOKENIZER, tmp_path / "data", vocab_size=100)


def test_splits_are_stable_when_data_is_appended(tmp_path: Path) -> None:
    before = contents(make(tmp_path, rows(200), split={"validation": 0.2, "test": 0.2}))
    after = contents(make(tmp_path, rows(400)[::-1], split={"validation": 0.2, "test": 0.2}))
    for name in SPLITS:
        assert len(before[name]) > 5
        assert all(example in after[name] for example in before[name])


def test_equal_records_fall_into_one_split() -> None:
    hashes_N16 = np.asarray([[n % 7 * 36] * 16 for n in range(70)], dtype=np.uint8)
    codes, _ = assign(uniform(hashes_N16), SplitSection(validation=0.3, test=0.3))
    assert all(len(set(codes[k::7].tolist())) == 1 for k in range(7))


@pytest.mark.parametrize(
    ("points", "validation", "test", "expected"),
    [
        ([0.5, 0.9], 0.05, 0.05, [1, 0]),  # validation would be empty: the nearest one
        ([0.5, 0.5, 0.9], 0.05, 0.0, [1, 1, 0]),  # with its copies
        ([0.5], 0.05, 0.05, [0]),  # one record trains
        ([0.5, 0.9], 0.0, 0.05, [0, 0]),  # no validation was asked for
        ([0.01, 0.02], 0.05, 0.05, [2, 0]),  # nothing fell to train
        ([0.01, 0.06], 0.0, 0.5, [2, 0]),
        ([0.06, 0.07, 0.5], 0.05, 0.05, [1, 1, 0]),
    ],
)
def test_small_data_rule(points: list[float], validation: float, test: float, expected: list[int]) -> None:
    codes, notes = assign(np.asarray(points), SplitSection(validation=validation, test=test))
    assert codes.tolist() == expected
    natural = [2 if p < test else 1 if p < test + validation else 0 for p in points]
    assert bool(notes) == (expected != natural)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StorageError), (errno.EROFS, InputError), (errno.EIO, StorageError)]
)
def test_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match="data"):
        make(tmp_path, rows(20))
    assert list((tmp_path / "data").iterdir()) == []


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Any]:
    """Mounts a tmpfs with the given options; skips where this user may not."""
    places: list[Path] = []

    def do(options: str) -> Path:
        place = tmp_path / f"mount{len(places)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if sys.platform != "linux" or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a tmpfs is not allowed here")
        places.append(place)
        return place

    yield do
    for place in places:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


def test_what_earlier_rules_prepared_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(prepare.__globals__, "FORMAT", arrow_folder.FORMAT - 1)
    earlier = make(tmp_path, rows(20))
    monkeypatch.undo()
    now = make(tmp_path, rows(20))
    assert (now.cache_hit, now.digest == earlier.digest) == (False, False)
    assert make(tmp_path, rows(20)).cache_hit


@pytest.mark.parametrize("count", [300, 3000])  # the disk fills at the last write, and in the middle
def test_a_full_disk(tmp_path: Path, mount: Any, count: int) -> None:
    home = mount("size=64k")
    section = DataSection(source=write(tmp_path / "in.jsonl", rows(count)))
    with pytest.raises(StorageError, match=r"No space left on device.*Free some space"):
        prepare(section, TOKENIZER, home)
    assert list(home.iterdir()) == []


def test_a_read_only_home(tmp_path: Path, mount: Any) -> None:
    home = mount("ro")
    section = DataSection(source=write(tmp_path / "in.jsonl", rows(3)))
    with pytest.raises(InputError, match=r"cannot be written to.*TRUEUP_HOME"):
        prepare(section, TOKENIZER, home / "data")


def test_a_prepared_set_opens_in_a_read_only_home(tmp_path: Path, mount: Any) -> None:
    home = mount("size=4m")
    section = DataSection(source=write(tmp_path / "in.jsonl", rows(20)))
    first = prepare(section, TOKENIZER, home)
    subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
    again = prepare(section, TOKENIZER, home)
    assert again.cache_hit
    assert contents(again) == contents(first)


def test_the_built_in_source_is_prepared_without_torch(tmp_path: Path) -> None:
    script = (
        "import sys, trueup.data\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules), 'heavy import'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    prepared = prepare(DataSection(source="stdlib-docs", max_length=512), TOKENIZER, tmp_path)
    report = prepared.report()
    assert report["format"]["name"] == "stdlib-docs"
    assert report["records"] + report["dropped"]["too_long"] == report["records_read"] > 2800
    assert prepare(DataSection(source="stdlib-docs", max_length=512), TOKENIZER, tmp_path).cache_hit
