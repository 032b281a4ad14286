"""Seconds of micro-batches, from what a platform profile knows. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trueup.schema import CompileMode, Measurement, PlatformProfile, Shape

from .batches import head_rows


@dataclass(frozen=True)
class Costs:
    """Seconds of forward and backward of one micro-batch under one compile mode; see PlatformProfile.

    Where the profile does not know the seconds of a token, `known` is False and the unit is one processed
    token: plans can still be ranked by the work they do, but have no seconds. The seconds of a micro-batch
    and of attention are left out where they alone are unknown."""

    token_s: float = 1.0
    micro_batch_s: float = 0.0
    pair_s: float = 0.0  # where attention is over whole rows
    example_pair_s: float = 0.0  # where it is over each example: then it is the same in every arrangement
    head_row_s: float = 0.0
    first_shape_s: float | None = 0.0
    further_shape_s: float | None = 0.0
    evaluation_shape_s: float | None = 0.0
    known: bool = False

    @classmethod
    def of(cls, profile: PlatformProfile, mode: CompileMode) -> Costs:
        figures = profile.compile.get(mode)
        compiles: dict[str, Any] = {}
        if figures is not None:
            compiles = {
                "first_shape_s": figures.first_shape_s.value,
                "further_shape_s": figures.further_shape_s.value,
                "evaluation_shape_s": figures.evaluation_shape_s.value,
            }
        elif mode != "none" or profile.rules.static:
            compiles = dict.fromkeys(("first_shape_s", "further_shape_s", "evaluation_shape_s"))
        if profile.token_s.value is None:
            return cls(**compiles)
        ratio = 1.0 if figures is None else _or(figures.step_ratio, 1.0)
        by_example = mode == "none" and profile.attention == "example"
        pair_s = ratio * _or(profile.pair_s, 0.0)
        return cls(
            token_s=ratio * profile.token_s.value,
            micro_batch_s=ratio * _or(profile.micro_batch_s, 0.0),
            pair_s=0.0 if by_example else pair_s,
            example_pair_s=pair_s if by_example else 0.0,
            head_row_s=_or(profile.head_row_s, 0.0),
            known=True,
            **compiles,
        )

    def head_s(
        self, batches: ArrayLike, supervised: ArrayLike, chunk_rows: int | None
    ) -> NDArray[np.float64]:
        """Of the head over so many micro-batches with so many supervised tokens in all, as many in each.
        Without whole chunks it is the same in every arrangement, and left out."""
        batches_, supervised_ = np.asarray(batches, dtype=np.int64), np.asarray(supervised, dtype=np.int64)
        if chunk_rows is None:
            return np.zeros(batches_.shape)
        each = -(-supervised_ // np.maximum(1, batches_))
        rows: NDArray[np.int64] = batches_ * head_rows(each, chunk_rows)
        return rows * np.float64(self.head_row_s)

    def seconds(self, rows: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        """Of micro-batches of these shapes, the head and attention by example left out; none for no rows."""
        rows_, width_ = np.asarray(rows, dtype=np.float64), np.asarray(width, dtype=np.float64)
        tokens = rows_ * width_
        return self.micro_batch_s * (rows_ > 0) + tokens * (self.token_s + self.pair_s * width_)

    def of_batches(
        self,
        rows: ArrayLike,
        height: ArrayLike,
        width: ArrayLike,
        *,
        static: bool,
        supervised: ArrayLike = 0,
        chunk_rows: int | None = None,
    ) -> NDArray[np.float64]:
        """Of `rows` rows in micro-batches of `height`; where `static`, the last one is filled up. The head is
        counted where it takes whole chunks; see `head_s`."""
        rows_, height_ = np.asarray(rows, dtype=np.int64), np.asarray(height, dtype=np.int64)
        whole, rest = np.divmod(rows_, height_)
        last = np.where(rest > 0, height_, 0) if static else rest
        body_s = whole * self.seconds(height_, width) + self.seconds(last, width)
        return body_s + self.head_s(whole + (rest > 0), supervised, chunk_rows)

    def compile_s(self, training: int, evaluation: int) -> float | None:
        """Of so many training and evaluation shapes; None where the profile does not know."""
        if self.first_shape_s is None or self.further_shape_s is None or self.evaluation_shape_s is None:
            return None
        if not training:
            return 0.0
        return (
            self.first_shape_s + (training - 1) * self.further_shape_s + evaluation * self.evaluation_shape_s
        )

    def shape_s(self, shape: Shape) -> float:
        """What one more shape costs: compiling it for training and evaluation, and a warm-up pass."""
        compiling = (self.further_shape_s or 0.0) + (self.evaluation_shape_s or 0.0)
        return compiling + float(self.seconds(*shape))


def _or(figure: Measurement, otherwise: float) -> float:
    return otherwise if figure.value is None else figure.value
