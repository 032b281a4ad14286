"""Which checkpoints go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.checkpoint.retention import Retention, Saved


def removed(saved: list[int], *, best: int | None = None, size: int = 10, **rules: int) -> list[int]:
    return Retention(**rules).to_remove([Saved(step, size, best) for step in saved])


@pytest.mark.parametrize(
    ("saved", "best", "rules", "gone"),
    [
        ([], None, {}, []),
        ([20], None, {"keep": 1}, []),
        ([20, 40, 60], None, {"keep": 2}, [20]),
        ([60, 20, 40], None, {"keep": 2}, [20]),
        ([20, 40, 60], 20, {"keep": 1}, [40]),
        ([20, 40, 60], 30, {"keep": 1}, [20, 40]),
        ([20, 40, 60, 80], None, {"keep": 1, "keep_every": 40}, [20, 60]),
        ([20, 40, 60, 80], None, {"keep": 4, "disk_bytes": 25}, [20, 40]),
        ([20, 40, 60, 80], 20, {"keep": 4, "disk_bytes": 25}, [40, 60]),
        ([20, 40, 60, 80], None, {"keep": 1, "keep_every": 20, "disk_bytes": 30}, [20]),
        ([20, 40, 60], 20, {"keep": 3, "disk_bytes": 1}, [40]),
        ([1, 2, 3, 4], None, {"keep": 2, "keep_before": 5}, [2]),
        ([1, 5, 6, 7], None, {"keep": 2, "keep_before": 5}, []),
        ([1, 5, 9, 10], None, {"keep": 2, "keep_before": 5}, [1]),
        ([20, 40, 60], None, {"keep": 1, "keep_before": 5}, [20]),
        ([1, 5, 6, 7], None, {"keep": 2, "keep_before": 5, "disk_bytes": 1}, [6]),
    ],
)
def test_the_rules(saved: list[int], best: int | None, rules: dict[str, int], gone: list[int]) -> None:
    assert removed(saved, best=best, **rules) == gone


def test_the_newest_says_which_is_the_best() -> None:
    saved = [Saved(20, 1, 20), Saved(40, 1, 20), Saved(60, 1, 40), Saved(80, 1, None)]
    assert Retention(keep=1).to_remove(saved[:3]) == [20]
    assert Retention(keep=1).to_remove(saved) == [20, 40, 60]


@pytest.mark.parametrize("disk_bytes", [None, 1])
def test_there_is_always_one_to_go_back_to(disk_bytes: int | None) -> None:
    """However frequent the saves, and no more of them than it takes."""
    rules = Retention(keep=2, keep_before=5, disk_bytes=disk_bytes)
    left: list[int] = []
    for step in range(1, 100):
        left.append(step)
        gone = rules.to_remove([Saved(one, 10) for one in left])
        left = [one for one in left if one not in gone]
        assert len(left) <= 4
        assert any(step - 10 <= one <= step - 5 for one in left) or step < 6


steps = st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=12)


@given(
    steps=steps,
    sizes=st.lists(st.integers(0, 9), min_size=12, max_size=12),
    best=st.one_of(st.none(), st.integers(0, 60)),
    keep=st.integers(1, 5),
    keep_every=st.one_of(st.none(), st.integers(1, 20)),
    keep_before=st.one_of(st.none(), st.integers(1, 60)),
    disk_bytes=st.one_of(st.none(), st.integers(1, 60)),
)
def test_whatever_the_rules(
    steps: list[int],
    sizes: list[int],
    best: int | None,
    keep: int,
    keep_every: int | None,
    keep_before: int | None,
    disk_bytes: int | None,
) -> None:
    saved = [Saved(step, size, best) for step, size in zip(steps, sizes, strict=False)]
    rules = Retention(keep=keep, keep_every=keep_every, keep_before=keep_before, disk_bytes=disk_bytes)
    gone = rules.to_remove(saved)
    assert gone == sorted(set(gone))
    assert set(gone) <= set(steps)
    old = [step for step in steps if keep_before is not None and step <= max(steps) - keep_before]
    next_old = [] if keep_before is None else [min(set(steps) - set(old))]
    always = {max(steps), best, *sorted(old)[-1:], *next_old}
    assert not always & set(gone)
    left = [one for one in saved if one.step not in gone]
    assert rules.to_remove(left) == []  # nothing more goes at a second look
    total = sum(one.bytes for one in left)
    if disk_bytes is None:
        assert not {*sorted(steps)[-keep:]} & set(gone)
        assert keep_every is None or not any(step % keep_every == 0 for step in gone)
    elif total > disk_bytes:
        assert {one.step for one in left} <= always
    without_budget = rules.model_copy(update={"disk_bytes": None}).to_remove(saved)
    for_room = [step for step in gone if step not in without_budget]
    others = [one.step for one in left if one.step not in always]
    assert not for_room or not others or max(for_room) < min(others)  # the oldest go first
