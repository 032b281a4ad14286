"""Splits by cluster: no near-copy crosses, what is appended moves nothing, order matters inside a cluster."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_samples import alone, answers, prepared, record, row

from trueup.data.duplicates import similarity, word_pairs
from trueup.data.splits import moved_by_links
from trueup.recipe.models import SplitSection

SHARES = {"validation": 0.25, "test": 0.25}
# A record is (which made-up text, how many of its last words are others): equal first numbers are near.
KINDS = st.tuples(st.integers(0, 30), st.integers(0, 2))


def where_of(items: list[tuple[int, int]]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(seed, changed=changed) for seed, changed in items]
        return answers(prepared(Path(folder), rows, split=SHARES))


def answer(item: tuple[int, int]) -> str:
    return row(item[0], changed=item[1])["output"]


def enough(items: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """With records that fall to every split, so that the rule for very small data stays out of it."""
    return [*((seed, 0) for seed in range(100, 140)), *items]


def test_the_records_of_one_text_are_near_and_those_of_two_are_not() -> None:
    pairs = [word_pairs(record(row(seed, changed=changed))) for seed in (1, 2) for changed in (0, 1, 2)]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert similarity(pairs[a], pairs[b]) >= 0.8
        assert similarity(pairs[a], pairs[b + 3]) < 0.3


@settings(max_examples=15, deadline=None)
@given(st.lists(KINDS, min_size=1, max_size=30), st.lists(KINDS, max_size=30))
def test_near_copies_stay_together_and_appended_records_move_nothing(
    items: list[tuple[int, int]], appended: list[tuple[int, int]]
) -> None:
    before, after = where_of(enough(items)), where_of([*enough(items), *appended])
    assert {text: after[text] for text in before} == before
    for seed, _ in [*items, *appended]:
        assert len({after[answer((seed, n))] for n in range(3) if answer((seed, n)) in after}) == 1


@settings(max_examples=15, deadline=None)
@given(st.lists(KINDS, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_order_decides_nothing_but_which_near_copy_the_others_follow(
    items: list[tuple[int, int]], shuffler: random.Random
) -> None:
    shuffled = enough(items)
    shuffler.shuffle(shuffled)
    here, there = where_of(enough(items)), where_of(shuffled)
    assert here.keys() == there.keys()
    for seed in {seed for seed, _ in shuffled}:
        texts = {answer((seed, n)) for n in range(3)} & here.keys()
        kinds = [n for n in range(3) if answer((seed, n)) in texts]
        own = set(alone([record(row(seed, changed=n)) for n in kinds], SplitSection(**SHARES)))
        assert {there[text] for text in texts} <= own
        if len(own) == 1:
            assert all(here[text] == there[text] for text in texts)


def chain_link() -> list[str]:
    """Two texts that are not near, in different splits by themselves, and one that is near to both."""
    shares = SplitSection(**SHARES)
    for seed in range(500):
        words = row(f"chain{seed}", words=40)["output"].split()
        texts = [" ".join(words[:34]), " ".join(words[6:]), " ".join(words[2:38])]
        rows = [{"instruction": f"Say {n}.", "output": text} for n, text in enumerate(texts)]
        pairs = [word_pairs(record(one)) for one in rows]
        own = alone([record(one) for one in rows], shares)
        near = [similarity(pairs[a], pairs[b]) >= 0.8 for a, b in ((0, 1), (0, 2), (1, 2))]
        if near == [False, True, True] and own[0] != own[1]:
            return texts
    raise AssertionError("no such texts were made")


def test_a_record_that_links_two_clusters_says_what_it_moves(tmp_path: Path) -> None:
    texts = chain_link()
    rows = [{"instruction": f"Say {n}.", "output": text} for n, text in enumerate(texts)]
    rows = [*(row(seed) for seed in range(100, 140)), *rows]
    before = prepared(tmp_path / "before", rows[:-1], split=SHARES)
    after = prepared(tmp_path / "after", rows, split=SHARES)
    assert before.messages == ()
    first, second, link = texts
    was, now = answers(before), answers(after)
    assert was[first] != was[second]
    assert now[first] == now[second] == now[link] == was[first]
    moved = {text for text in was if was[text] != now[text]}
    assert moved == {second}
    (message,) = after.messages
    assert message.startswith(f"in.jsonl:42 is in {now[first]}, and by itself would be in ")


@settings(max_examples=100)
@given(st.integers(2, 8), st.data())
def test_moves_are_those_that_preparing_again_after_each_record_would_show(
    count: int, data: st.DataObject
) -> None:
    edge = st.booleans()
    near = {(a, b): data.draw(edge) for b in range(count) for a in range(b)}
    codes = np.asarray([data.draw(st.integers(0, 2)) for _ in range(count)], dtype=np.int8)

    def splits(upto: int) -> list[int]:
        root = list(range(upto))
        for (a, b), linked in near.items():
            if linked and b < upto:
                low, high = sorted((root[a], root[b]))
                root = [low if one == high else one for one in root]
        return [int(codes[one]) for one in root]

    expected = {}
    for new in range(1, count):
        before, after = splits(new), splits(new + 1)
        expected.update({old: new for old in range(new) if before[old] != after[old]})
    found = moved_by_links(range(count), lambda a, b: near[min(a, b), max(a, b)], codes)
    assert found == expected


@pytest.mark.parametrize(
    "shares", [SplitSection(validation=0.1, test=0.2), SplitSection(validation=0, test=0)]
)
def test_shares_are_kept(shares: SplitSection) -> None:
    counts = Counter(alone([record(row(n, words=3)) for n in range(4000)], shares))
    assert abs(counts["test"] / 4000 - shares.test) < 0.03
    assert abs(counts["validation"] / 4000 - shares.validation) < 0.03
