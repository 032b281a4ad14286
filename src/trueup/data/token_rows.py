"""Examples one after the other, cut into rows of one length: for what looks at text and trains on none.

R rows of T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .table import TokenTable


def token_rows(tables: Iterable[TokenTable], *, length: int, tokens: int) -> NDArray[np.int64]:
    """(R, length) whole rows, as many as `tokens` allows, of the tables' examples in the order of their
    content; no row where there are too few. The same every time."""
    wanted = max(1, tokens // length) * length
    parts: list[NDArray[np.int32]] = []
    have = 0
    for table in tables:
        for example in table.content_order():
            if have >= wanted:
                break
            tokens_T, _ = table.example(int(example))
            parts.append(tokens_T)
            have += len(tokens_T)
    joined = np.concatenate(parts)[:wanted] if parts else np.zeros(0, dtype=np.int32)
    rows = len(joined) // length
    return joined[: rows * length].reshape(rows, length).astype(np.int64)


def tokens_in(tables: Iterable[TokenTable]) -> int:
    return sum(int(table.lengths.sum()) for table in tables)
