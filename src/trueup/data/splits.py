"""Which split a record belongs to: a function of the content of its cluster of copies and near-copies.

The key of a cluster is the content hash of its earliest record, in the order the source is read. From that:

- no two records of one cluster are in different splits;
- data that is appended moves nothing: a new copy follows the record that was there. The one exception is a
  new record that is near to two clusters that were apart: the later one then follows the earlier one, and
  `moved_by_links` says which records that moves;
- a record without near-copies falls by its own content alone, whatever stands around it and in any order.

Order has a say in one thing only: which of several near-copies the others follow. Without it, two near-copies
whose own hashes fall apart could not both stay where they were when each was alone. Shapes: N records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trueup.recipe.models import SplitSection

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)


def uniform(hashes_N16: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Numbers in [0, 1) from the first 53 bits of each content hash."""
    words_N = np.ascontiguousarray(hashes_N16[:, :8]).view(">u8").ravel()
    return np.asarray((words_N >> np.uint64(11)).astype(np.float64) / 2**53)


def natural(points_N: NDArray[np.float64], shares: SplitSection) -> NDArray[np.int8]:
    """Split codes (indices into SPLITS): test below the test share, validation in the next stretch, else
    train."""
    codes_N = np.full(len(points_N), TRAIN, dtype=np.int8)
    codes_N[points_N < shares.test + shares.validation] = VALIDATION
    codes_N[points_N < shares.test] = TEST
    return codes_N


def assign(points_N: NDArray[np.float64], shares: SplitSection) -> tuple[NDArray[np.int8], list[str]]:
    """Split code of every record from the point of its cluster's key, and notes on what the small-data rule
    changed.

    On very small data a split can come out empty; then, and only then, one cluster is moved: to train the one
    furthest from being held out, to validation (when its share is above 0 and there are two different
    clusters to train on) the one nearest to it."""
    codes_N = natural(points_N, shares)
    notes: list[str] = []
    if len(points_N) and not np.any(codes_N == TRAIN):
        codes_N[points_N == points_N.max()] = TRAIN
        notes.append("no record fell to train; the one nearest to it was moved there")
    training = np.unique(points_N[codes_N == TRAIN])
    if shares.validation > 0 and len(training) > 1 and not np.any(codes_N == VALIDATION):
        codes_N[points_N == training[0]] = VALIDATION
        notes.append("no record fell to validation; the one nearest to it was moved there from train")
    return codes_N, notes


def moved_by_links(
    members: Sequence[int], near: Callable[[int, int], bool], codes_N: NDArray[np.int8]
) -> dict[int, int]:
    """Records of one cluster that were in another split before a later record linked their cluster to an
    earlier one, and the record that did. `members` are in order; `codes_N` is where each falls by itself."""
    root: dict[int, int] = {}
    moved: dict[int, int] = {}
    for new in members:
        linked = {root[old] for old in root if near(old, new)}
        first = min(linked, default=new)
        for old, key in root.items():
            if key in linked and key != first:
                root[old] = first
                if codes_N[key] != codes_N[first]:
                    moved[old] = new
        root[new] = first
    return moved
