"""Equal records and near-copies: what is one, what is done with them, and what is said."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_samples import TOKENIZER, alone, answers, prepared, record, row

from trueup.data import prepare, stdlib_docs
from trueup.data.duplicates import (
    ANSWER_WORDS,
    MISSED,
    PERMUTATIONS,
    WINDOW,
    Clusters,
    band_keys,
    band_rows,
    first_equal,
    join_near,
    signature,
    similarity,
    word_pairs,
)
from trueup.data.records import Record
from trueup.recipe.models import DataSection


def clusters_of(records: list[Record], threshold: float) -> list[int]:
    pairs = [word_pairs(one) for one in records]
    found = Clusters(len(pairs))
    sizes = np.asarray([len(one) for one in pairs])
    signatures = np.stack([signature(one) for one in pairs])
    bands = band_keys(signatures, band_rows(threshold))
    join_near(found, np.arange(len(pairs)), bands, signatures, sizes, pairs.__getitem__, threshold)
    return [int(root) for root in found.roots()]


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9, 1.0])
def test_clusters_are_those_of_every_pair_compared(threshold: float) -> None:
    records = [record(row(n % 40, words=60, changed=n // 40 * 2)) for n in range(200)]
    pairs = [word_pairs(one) for one in records]
    expected = Clusters(len(records))
    for a, b in combinations(range(len(records)), 2):
        if similarity(pairs[a], pairs[b]) >= threshold:
            expected.join(a, b)
    assert clusters_of(records, threshold) == expected.roots().tolist()
    joined = len(records) - len(set(clusters_of(records, threshold)))
    assert joined == 0 if threshold == 1.0 else joined > 30


@given(st.floats(0.5, 1))
def test_a_pair_at_the_threshold_is_missed_less_often_than_promised(threshold: float) -> None:
    rows = band_rows(threshold)
    missed = (1 - threshold**rows) ** (PERMUTATIONS // rows)
    assert missed <= MISSED
    more = (1 - threshold ** (rows + 1)) ** (PERMUTATIONS // (rows + 1))
    assert more > MISSED or rows == 16


def test_boilerplate_is_compared_with_its_neighbours_and_not_with_all() -> None:
    texts = [" ".join(["all", "of", "us", "say", "the", "same", "words", "here"]) for _ in range(4 * WINDOW)]
    assert set(
        clusters_of([record({"instruction": str(n), "output": t}) for n, t in enumerate(texts)], 0.8)
    ) == {0}


def test_short_answers_are_compared_with_their_questions() -> None:
    label = "yes " * (ANSWER_WORDS - 1)
    apart = [record({"instruction": f"Is {n} what {n}{n} was meant to be?", "output": label}) for n in (1, 2)]
    assert clusters_of(apart, 0.8) == [0, 1]
    longer = "it is what was meant to be here"
    together = [record({"instruction": f"Is it {n}?", "output": longer}) for n in (1, 2)]
    assert clusters_of(together, 0.8) == [0, 0]


def test_case_punctuation_and_layout_do_not_count() -> None:
    texts = ("The cat sat down, on the old mat.", "the CAT sat down on - the\n\n old mat")
    assert clusters_of([record({"instruction": "?", "output": text}) for text in texts], 1.0) == [0, 0]


def test_chinese_is_compared_by_its_characters() -> None:
    texts = (
        "先把螺丝松开，然后慢慢取下盖子。",
        "先把螺丝松开，然后慢慢取下盖板。",
        "请在周一之前把报告交给财务部门。",
    )
    assert clusters_of([record({"instruction": "?", "output": text}) for text in texts], 0.8) == [0, 0, 2]


@pytest.mark.parametrize("text", ["", "?", "🙂🙂", "+ - * /"])
def test_text_without_words_is_only_like_itself(text: str) -> None:
    items = [record({"instruction": text, "output": "!"}), record({"instruction": text + "~", "output": "!"})]
    assert [len(word_pairs(one)) for one in items] == [1, 1]
    assert clusters_of([*items, items[0]], 0.8) == [0, 1, 0]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_first_equal_is_the_first_equal(values: list[int]) -> None:
    hashes_N16 = np.asarray([[value] * 16 for value in values], dtype=np.uint8)
    assert first_equal(hashes_N16).tolist() == [values.index(value) for value in values]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=40))
def test_roots_are_the_earliest_of_connected_records(edges: list[tuple[int, int]]) -> None:
    found = Clusters(20)
    group = list(range(20))
    for a, b in edges:
        found.join(a, b)
        old, new = group[b], group[a]
        group = [new if one == old else one for one in group]
    assert found.roots().tolist() == [group.index(one) for one in group]


COPIES = [row("a"), row("b"), row("a"), row("a", changed=1), row("c"), row("a", changed=1), row("b")]


@pytest.mark.parametrize(
    ("exact", "near", "kept", "dropped"),
    [
        ("drop", "keep", ["a0", "b0", "a1", "c0"], {"exact_duplicate": 3}),
        ("keep", "keep", ["a0", "b0", "a0", "a1", "c0", "a1", "b0"], {}),
        ("drop", "drop", ["a0", "b0", "c0"], {"exact_duplicate": 3, "near_duplicate": 1}),
        ("keep", "drop", ["a0", "b0", "a0", "c0", "b0"], {"near_duplicate": 2}),
        ("drop", "ignore", ["a0", "b0", "a1", "c0"], {"exact_duplicate": 3}),
    ],
)
def test_what_is_kept_and_counted(
    tmp_path: Path, exact: str, near: str, kept: list[str], dropped: dict[str, int]
) -> None:
    names = {
        item["output"]: name for item, name in zip(COPIES[:5], ["a0", "b0", "a0", "a1", "c0"], strict=True)
    }
    found = prepared(
        tmp_path, COPIES, duplicates={"exact": exact, "near": near}, split={"validation": 0, "test": 0}
    )
    table = found.split("train")
    examples = [table.example(i) for i in range(len(table))]
    texts = [TOKENIZER.decode(tokens[loss]).removesuffix("<|im_end|>") for tokens, loss in examples]
    assert [names[text] for text in texts] == kept
    report = found.report()
    assert report["dropped"] == dropped
    assert report["records"] + sum(dropped.values()) == report["records_read"]
    assert report["duplicates"]["dropped"] == sum(dropped.values())
    assert report["duplicates"]["exact"]["sizes"] == {"2": 3}
    assert report["duplicates"]["near"]["sizes"] == ({} if near == "ignore" else {"4": 1})
    if "exact_duplicate" in dropped:
        assert report["first"]["exact_duplicate"][0]["where"] == "in.jsonl:3"
        assert report["first"]["exact_duplicate"][0]["what"].startswith("equal to in.jsonl:1: What of a")


def test_the_largest_clusters_are_shown(tmp_path: Path) -> None:
    near = prepared(tmp_path, COPIES, duplicates={"exact": "keep"}).report()["duplicates"]["near"]
    assert (near["clusters"], near["records"]) == (1, 4)
    (shown,) = near["largest"]
    assert [one["where"] for one in shown["members"]] == [f"in.jsonl:{n}" for n in (1, 3, 4, 6)]


def test_no_near_copy_of_the_built_in_docstrings_crosses(tmp_path: Path) -> None:
    """Every two near-copies, found by counting the pairs they share, are in one split; by their own hashes
    they were not."""
    section = DataSection(source="stdlib-docs", split={"validation": 0.1, "test": 0.1}, max_length=4096)
    where = answers(prepare(section, TOKENIZER, tmp_path))
    records = [one for one in stdlib_docs.records() if one.turns[1].content in where]
    assert len(records) > 2500
    couples = near_couples(records, 0.8)
    assert len(couples) > 40
    splits = [where[one.turns[1].content] for one in records]
    assert all(splits[a] == splits[b] for a, b in couples)
    by_themselves = alone(records, section.split)
    assert any(by_themselves[a] != by_themselves[b] for a, b in couples)


def near_couples(records: list[Record], threshold: float) -> list[tuple[int, int]]:
    """By an index from every word pair to the records that have it."""
    holders: dict[Any, list[int]] = defaultdict(list)
    couples: list[tuple[int, int]] = []
    sets = [set(word_pairs(one).tolist()) for one in records]
    for n, pairs in enumerate(sets):
        shared: dict[int, int] = defaultdict(int)
        for pair in pairs:
            for other in holders[pair]:
                shared[other] += 1
            holders[pair].append(n)
        couples += [
            (other, n)
            for other, count in shared.items()
            if count / (len(pairs) + len(sets[other]) - count) >= threshold
        ]
    return couples
