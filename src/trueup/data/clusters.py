"""The clusters of copies and near-copies of a data set: what is kept of them, and what is said of them.

Shapes: N records; C clusters of more than one record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.recipe.models import DataSection, DuplicatesSection

from .duplicates import Clusters, band_rows, first_equal, join_near, similarity
from .gathered import Gathered
from .records import FIRST_SHOWN, excerpt
from .splits import SPLITS, moved_by_links, natural, uniform

_MEMBERS_SHOWN = 4
_REPLAYED_MEMBERS = 200  # larger clusters are not searched for links: it takes their size squared


@dataclass(frozen=True)
class Duplicates:
    """`kept_N`: which records stay; `key_N`: the number of the record whose hash decides the split of each;
    `summary` is for the manifest and `notes` are for a person."""

    kept_N: NDArray[np.bool_]
    key_N: NDArray[np.int32]
    summary: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def find_duplicates(records: Gathered, section: DataSection) -> Duplicates:
    """Find them, count those that are dropped in the records' tally."""
    rules = section.duplicates
    first_N = first_equal(records.hashes_N16)
    numbers_N = np.arange(len(records), dtype=np.int32)
    is_copy_N = first_N != numbers_N
    clusters = Clusters(len(records))
    if rules.near != "ignore":
        join_near(
            clusters,
            numbers_N[~is_copy_N],
            records.bands(band_rows(rules.threshold)),
            records.signatures_NP,
            records.sizes_N,
            records.pairs_of,
            rules.threshold,
        )
    near_N = clusters.roots()[first_N]
    kept_N = np.ones(len(records), dtype=np.bool_)
    if rules.exact == "drop":
        kept_N &= ~is_copy_N
        _count(records, "exact_duplicate", np.flatnonzero(is_copy_N), first_N, "equal to")
    if rules.near == "drop":
        dropped_N = ~is_copy_N & (near_N != numbers_N)
        kept_N &= near_N == first_N  # copies of a near-copy go with it
        _count(records, "near_duplicate", np.flatnonzero(dropped_N), near_N, "near to")
        if rules.exact == "keep":
            also = np.flatnonzero(is_copy_N & (near_N != first_N))
            _count(records, "near_duplicate", also, near_N, "near to")
    notes = [] if rules.near == "drop" else _links(records, section, first_N, near_N)
    return Duplicates(kept_N, near_N, _summary(records, rules, first_N, near_N, kept_N), notes)


def _count(
    records: Gathered, reason: str, dropped: NDArray[np.int64], of_N: NDArray[np.int32], words: str
) -> None:
    if not len(dropped):
        return
    for n in dropped[:FIRST_SHOWN].tolist():
        what = f"{words} {records.origin(int(of_N[n]))}: {records.shown(n)}"
        records.tally.drop(reason, records.origin(n), what)
    records.tally.dropped[reason] += max(0, len(dropped) - FIRST_SHOWN)


def _summary(
    records: Gathered,
    rules: DuplicatesSection,
    first_N: NDArray[np.int32],
    near_N: NDArray[np.int32],
    kept_N: NDArray[np.bool_],
) -> dict[str, Any]:
    """Clusters of equal records, and of records that are near or equal, with the first few of each."""
    found: dict[str, Any] = {
        "near_threshold": None if rules.near == "ignore" else rules.threshold,
        "records_in_no_cluster": int(np.sum(np.bincount(near_N, minlength=len(near_N)) == 1)),
        "dropped": int(np.sum(~kept_N)),
    }
    for name, key_N in (("exact", first_N), ("near", near_N)):
        sizes_N = np.bincount(key_N, minlength=len(key_N))
        if name == "near":  # a cluster with nothing but equal records is no cluster of near-copies
            distinct_N = np.bincount(
                near_N, weights=first_N == np.arange(len(first_N)), minlength=len(near_N)
            )
            sizes_N = np.where(distinct_N > 1, sizes_N, 0)
        roots_C = np.flatnonzero(sizes_N > 1)
        sizes = Counter(sizes_N[roots_C].tolist())
        largest_C = roots_C[np.argsort(-sizes_N[roots_C], kind="stable")][:FIRST_SHOWN]
        found[name] = {
            "clusters": len(roots_C),
            "records": int(sizes_N[roots_C].sum()),
            "sizes": {str(size): count for size, count in sorted(sizes.items())},
            "largest": [_shown(records, np.flatnonzero(key_N == root)) for root in largest_C.tolist()],
        }
    return found


def _shown(records: Gathered, members: NDArray[np.int64]) -> dict[str, Any]:
    shown = members[:_MEMBERS_SHOWN].tolist()
    return {
        "size": len(members),
        "members": [{"where": records.origin(n), "what": excerpt(records.shown(n))} for n in shown],
    }


def _links(
    records: Gathered, section: DataSection, first_N: NDArray[np.int32], near_N: NDArray[np.int32]
) -> list[str]:
    """What a person who appended data must know: records that a later one moved to another split."""
    codes_N = natural(uniform(records.hashes_N16), section.split)
    distinct = np.flatnonzero(first_N == np.arange(len(first_N)))
    sizes_N = np.bincount(near_N[distinct], minlength=len(near_N))
    distinct = distinct[sizes_N[near_N[distinct]] >= 3]  # fewer link nothing
    order = distinct[np.argsort(near_N[distinct], kind="stable")]
    _, starts = np.unique(near_N[order], return_index=True)
    notes: list[str] = []
    threshold = section.duplicates.threshold

    def near(a: int, b: int) -> bool:
        return similarity(records.pairs_of(a), records.pairs_of(b)) >= threshold

    for members in np.split(order, starts[1:]):
        if not 3 <= len(members) <= _REPLAYED_MEMBERS or len(np.unique(codes_N[members])) == 1:
            continue
        first = int(members[0])
        moved = moved_by_links(members.tolist(), near, codes_N)
        for old, new in moved.items():
            notes.append(
                f"{records.origin(old)} is in {SPLITS[codes_N[first]]}, and by itself would be in "
                f"{SPLITS[codes_N[old]]}: {records.origin(new)} is near to it and to "
                f"{records.origin(first)}, and near-copies stay together"
            )
    if len(notes) > FIRST_SHOWN:
        notes = [*notes[:FIRST_SHOWN], f"and {len(notes) - FIRST_SHOWN} more records moved like these"]
    return notes
