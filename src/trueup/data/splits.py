"""Which split a record belongs to: a function of its content alone, so appending data moves nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trueup.recipe.models import SplitSection

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)


def uniform(content_hash: bytes) -> float:
    """A number in [0, 1) from the first 53 bits of a content hash."""
    return (int.from_bytes(content_hash[:8], "big") >> 11) / 2**53


def assign(hashes: Sequence[bytes], shares: SplitSection) -> tuple[NDArray[np.int8], list[str]]:
    """Split code of every record (an index into SPLITS), and notes on what the small-data rule changed.

    A record is test below the test share, validation in the next stretch, else train. Equal records fall
    together. On very small data a split can come out empty; then, and only then, one content is moved: to
    train the one furthest from being held out, to validation (when its share is above 0 and there are two
    different contents to train on) the one nearest to it."""
    points = np.fromiter((uniform(item) for item in hashes), dtype=np.float64, count=len(hashes))
    codes = np.full(len(points), TRAIN, dtype=np.int8)
    codes[points < shares.test + shares.validation] = VALIDATION
    codes[points < shares.test] = TEST
    notes: list[str] = []
    if len(points) and not np.any(codes == TRAIN):
        codes[points == points.max()] = TRAIN
        notes.append("no record fell to train; the one nearest to it was moved there")
    training = np.unique(points[codes == TRAIN])
    if shares.validation > 0 and len(training) > 1 and not np.any(codes == VALIDATION):
        codes[points == training[0]] = VALIDATION
        notes.append("no record fell to validation; the one nearest to it was moved there from train")
    return codes, notes
