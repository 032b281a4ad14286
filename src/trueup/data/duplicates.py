"""Equal records by hash, near-copies by the words they share, and the clusters that both make.

Two records are near-copies when the sets of word pairs in what they teach have a Jaccard similarity of at
least the threshold: shared pairs over all pairs. What a record teaches is its answers; where those have fewer
than ANSWER_WORDS words ("yes", a label, a number) they say too little alone, and the whole conversation is
compared. Letters of scripts written without spaces count as words; case and punctuation do not count.

Candidates are found by MinHash (A. Broder, On the resemblance and containment of documents, 1997; signatures
by datasketch) in bands of equal values (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, section 3.4)
and then compared exactly, so that no two records are called near-copies that are not. A pair right at the
threshold is missed with a probability below MISSED, a closer one less often. Where more than WINDOW records
share a band (boilerplate), each is compared with the WINDOW nearest in size.

datasketch's own index keeps every record as Python objects; here a band is one sorted array, so that the
memory is some 40 bytes a record. Shapes: N records, U of different content, P permutations, W word pairs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .records import Record

PERMUTATIONS = 128
ANSWER_WORDS = 8
MISSED = 1e-4
WINDOW = 48
ESTIMATE_SLACK = 0.15  # more than three standard deviations of a similarity estimated from the signatures

_UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_PAIRS_AT_ONCE = 4096

Signature = NDArray[np.uint32]
PairSets = Callable[[int], NDArray[np.uint32]]  # the word pairs of record n, sorted, each once


def word_pairs(record: Record) -> NDArray[np.uint32]:
    """Hashes of the pairs of neighbouring words in what a record teaches, sorted, each once, at least one."""
    answers = "\n".join(turn.content for turn in record.turns if turn.role == "assistant")
    words = _WORD.findall(answers.casefold())
    if len(words) < ANSWER_WORDS:
        words = _WORD.findall("\n".join(turn.content for turn in record.turns).casefold())
    if len(words) < 2:
        whole = "\n".join(turn.content for turn in record.turns)
        return np.asarray([zlib.crc32(whole.encode())], dtype=np.uint32)
    hashes = {zlib.crc32(f"{first} {second}".encode()) for first, second in pairwise(words)}
    return np.sort(np.fromiter(hashes, dtype=np.uint32, count=len(hashes)))


def signature(pairs_W: NDArray[np.uint32]) -> Signature:
    """The MinHash of a set of word pairs, shape (P,)."""
    found = _empty_minhash().copy()
    for start in range(0, len(pairs_W), _PAIRS_AT_ONCE):  # each takes P numbers while it is worked on
        found.update_batch(pairs_W[start : start + _PAIRS_AT_ONCE].tolist())
    return np.asarray(found.hashvalues, dtype=np.uint32)


@cache
def _empty_minhash() -> Any:
    from datasketch import MinHash  # a second to import: only where near-copies are looked for

    return MinHash(PERMUTATIONS, scheme="affine32", hashfunc=int)


def band_rows(threshold: float) -> int:
    """Most signature rows a band may have so that a pair at the threshold is missed less often than MISSED:
    with b bands of r rows, (1 - threshold^r)^b."""
    fitting = (rows for rows in range(16, 0, -1) if (1 - threshold**rows) ** (PERMUTATIONS // rows) <= MISSED)
    return next(fitting, 1)


def similarity(a_W: NDArray[np.uint32], b_W: NDArray[np.uint32]) -> float:
    """Jaccard similarity of two sorted sets."""
    shared = len(np.intersect1d(a_W, b_W, assume_unique=True))
    return shared / (len(a_W) + len(b_W) - shared)


def first_equal(hashes_N16: NDArray[np.uint8]) -> NDArray[np.int64]:
    """For each record the number of the first one with the same content hash: itself, if it is that one."""
    rows_N = np.ascontiguousarray(hashes_N16).view(np.dtype((np.void, 16))).ravel()
    _, first_U, inverse_N = np.unique(rows_N, return_index=True, return_inverse=True)
    return np.asarray(first_U[inverse_N], dtype=np.int64)


class Clusters:
    """Disjoint sets of records. The root of a set is its earliest record."""

    def __init__(self, count: int) -> None:
        self._parent_N = np.arange(count, dtype=np.int64)

    def root(self, n: int) -> int:
        parent_N = self._parent_N
        while parent_N[n] != n:
            parent_N[n] = parent_N[parent_N[n]]
            n = int(parent_N[n])
        return n

    def join(self, a: int, b: int) -> None:
        a, b = self.root(a), self.root(b)
        self._parent_N[max(a, b)] = min(a, b)

    def roots(self) -> NDArray[np.int64]:
        """The root of every record."""
        while True:
            up_N = self._parent_N[self._parent_N]
            if np.array_equal(up_N, self._parent_N):
                return up_N
            self._parent_N = up_N


def join_near(
    clusters: Clusters,
    records_U: NDArray[np.int64],
    signatures_NP: NDArray[np.uint32],
    sizes_N: NDArray[np.int64],
    pairs_of: PairSets,
    threshold: float,
) -> None:
    """Join every two near-copies among `records_U`. `sizes_N` are the sizes of the sets `pairs_of` gives."""
    rows = band_rows(threshold)
    sizes_U = sizes_N[records_U]
    for start in range(0, PERMUTATIONS - rows + 1, rows):
        keys_U = _band_keys(signatures_NP, records_U, start, rows)
        order_U = np.lexsort((sizes_U, keys_U))
        keys_U, in_order_U = keys_U[order_U], records_U[order_U]
        for lag in range(1, WINDOW + 1):
            at = np.flatnonzero(keys_U[lag:] == keys_U[:-lag])
            if not len(at):
                break
            small_C, large_C = in_order_U[at], in_order_U[at + lag]
            possible = sizes_N[small_C] >= threshold * sizes_N[large_C]
            roots_N = clusters.roots()
            possible &= roots_N[small_C] != roots_N[large_C]
            _join_pairs(clusters, small_C[possible], large_C[possible], signatures_NP, pairs_of, threshold)


def _band_keys(
    signatures_NP: NDArray[np.uint32], records_U: NDArray[np.int64], start: int, rows: int
) -> NDArray[np.uint64]:
    """One number for each record's values in a band. Two that fall together by chance are told apart when
    they are compared."""
    keys_U = np.zeros(len(records_U), dtype=np.uint64)
    for column in range(start, start + rows):
        keys_U *= np.uint64(0x9E3779B97F4A7C15)  # odd: any would do
        keys_U += signatures_NP[records_U, column].astype(np.uint64) + np.uint64(1)
        keys_U ^= keys_U >> np.uint64(29)
    return keys_U


def _join_pairs(
    clusters: Clusters,
    a_C: NDArray[np.int64],
    b_C: NDArray[np.int64],
    signatures_NP: NDArray[np.uint32],
    pairs_of: PairSets,
    threshold: float,
) -> None:
    for start in range(0, len(a_C), _PAIRS_AT_ONCE):
        a_D, b_D = a_C[start : start + _PAIRS_AT_ONCE], b_C[start : start + _PAIRS_AT_ONCE]
        estimate_D = np.mean(signatures_NP[a_D] == signatures_NP[b_D], axis=1)
        for n in np.flatnonzero(estimate_D >= threshold - ESTIMATE_SLACK):
            a, b = int(a_D[n]), int(b_D[n])
            if clusters.root(a) != clusters.root(b) and similarity(pairs_of(a), pairs_of(b)) >= threshold:
                clusters.join(a, b)
