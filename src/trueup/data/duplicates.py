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

datasketch's own index keeps every record as Python objects; here a band is one array of keys, read from the
disk and sorted, so that the memory is some 40 bytes a record. Numbers of records are int32.

Shapes: N records, U of different content, S that share a band's key with another, D of a block or of pairs, K
of those at once, B bands, P permutations, W word pairs.
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


def first_equal(hashes_N16: NDArray[np.uint8]) -> NDArray[np.int32]:
    """For each record the number of the first one with the same content hash: itself, if it is that one."""
    halves_N2 = np.ascontiguousarray(hashes_N16).view(np.uint64)
    order_N = np.lexsort((halves_N2[:, 1], halves_N2[:, 0]))  # equal ones stay in their order
    is_new_N = np.ones(len(order_N), dtype=np.bool_)
    is_new_N[1:] = False
    for half in (0, 1):
        in_order_N = halves_N2[order_N, half]
        is_new_N[1:] |= in_order_N[1:] != in_order_N[:-1]
    starts_U = np.flatnonzero(is_new_N)
    first_N = np.empty(len(order_N), dtype=np.int32)
    first_N[order_N] = np.repeat(order_N[starts_U], np.diff(starts_U, append=len(order_N)))
    return first_N


class Clusters:
    """Disjoint sets of records. The root of a set is its earliest record."""

    def __init__(self, count: int) -> None:
        self._parent_N = np.arange(count, dtype=np.int32)

    def root(self, n: int) -> int:
        parent_N = self._parent_N
        while parent_N[n] != n:
            parent_N[n] = parent_N[parent_N[n]]
            n = int(parent_N[n])
        return n

    def join(self, a: int, b: int) -> None:
        a, b = self.root(a), self.root(b)
        self._parent_N[max(a, b)] = min(a, b)

    def roots(self) -> NDArray[np.int32]:
        """The root of every record."""
        while True:
            up_N = self._parent_N[self._parent_N]
            if np.array_equal(up_N, self._parent_N):
                return up_N
            self._parent_N = up_N


def band_keys(signatures_DP: NDArray[np.uint32], rows: int) -> NDArray[np.uint64]:
    """(B, D) One number for each record's values in each band of `rows` rows. Two that fall together by
    chance are told apart when they are compared."""
    keys_BD = np.zeros((PERMUTATIONS // rows, len(signatures_DP)), dtype=np.uint64)
    for band, keys_D in enumerate(keys_BD):
        for column in range(band * rows, (band + 1) * rows):
            keys_D *= np.uint64(0x9E3779B97F4A7C15)  # odd: any would do
            keys_D += signatures_DP[:, column].astype(np.uint64) + np.uint64(1)
            keys_D ^= keys_D >> np.uint64(29)
    return keys_BD


def join_near(
    clusters: Clusters,
    records_U: NDArray[np.integer[Any]],
    bands_BN: NDArray[np.uint64],
    signatures_NP: NDArray[np.uint32],
    sizes_N: NDArray[np.int32],
    pairs_of: PairSets,
    threshold: float,
) -> None:
    """Join every two near-copies among `records_U`. `bands_BN` are the `band_keys` for
    `band_rows(threshold)`, `sizes_N` the sizes of the sets `pairs_of` gives."""
    for keys_N in bands_BN:
        keys_S, in_order_S = _sharing(keys_N[records_U], records_U, sizes_N)
        for lag in range(1, WINDOW + 1):
            at = np.flatnonzero(keys_S[lag:] == keys_S[:-lag])
            if not len(at):
                break
            small_D, large_D = in_order_S[at], in_order_S[at + lag]
            possible = sizes_N[small_D] >= threshold * sizes_N[large_D]
            roots_N = clusters.roots()
            possible &= roots_N[small_D] != roots_N[large_D]
            _join_pairs(clusters, small_D[possible], large_D[possible], signatures_NP, pairs_of, threshold)


def _sharing(
    keys_U: NDArray[np.uint64], records_U: NDArray[np.integer[Any]], sizes_N: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.integer[Any]]]:
    """Of the records whose key others have too: the keys and the records, by key and then by size."""
    order_U = np.argsort(keys_U, kind="stable")
    is_next_the_same = np.diff(keys_U[order_U]) == 0
    is_shared_U = np.zeros(len(order_U), dtype=np.bool_)
    is_shared_U[1:] |= is_next_the_same
    is_shared_U[:-1] |= is_next_the_same
    order_S = order_U[is_shared_U]
    keys_S, records_S = keys_U[order_S], records_U[order_S]
    by_size_S = np.lexsort((sizes_N[records_S], keys_S))
    return keys_S[by_size_S], records_S[by_size_S]


def _join_pairs(
    clusters: Clusters,
    a_D: NDArray[np.integer[Any]],
    b_D: NDArray[np.integer[Any]],
    signatures_NP: NDArray[np.uint32],
    pairs_of: PairSets,
    threshold: float,
) -> None:
    for start in range(0, len(a_D), _PAIRS_AT_ONCE):
        a_K, b_K = a_D[start : start + _PAIRS_AT_ONCE], b_D[start : start + _PAIRS_AT_ONCE]
        estimate_K = np.mean(signatures_NP[a_K] == signatures_NP[b_K], axis=1)
        for n in np.flatnonzero(estimate_K >= threshold - ESTIMATE_SLACK):
            a, b = int(a_K[n]), int(b_K[n])
            if clusters.root(a) != clusters.root(b) and similarity(pairs_of(a), pairs_of(b)) >= threshold:
                clusters.join(a, b)
