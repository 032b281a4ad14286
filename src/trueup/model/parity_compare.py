"""Two sides' outputs into figures, one output at a time. U tokens that are not padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch

from trueup.schema import InputError
from trueup.schema.parity import Compared, NotCompared, Place

from .batch import BatchTensors
from .parity_file import OutputFile, Point, array_digests

NUMBERS_AT_ONCE = 1 << 22
Text = Callable[[int], str]
OF_TOKENS = ("module", "input", "softmax", "logits")


class Comparison:
    """Holds side A's file; `take` side B's outputs as they come, then `finish`."""

    def __init__(self, a: OutputFile, text: Text | None = None) -> None:
        self._a = a
        self._text = text
        self._batch = a.batch()
        self._order = {point.key: (at, point) for at, point in enumerate(a.points)}
        self._met: set[str] = set()
        self._compared: list[Compared] = []
        self._not_compared: list[NotCompared] = []

    def take(self, point: Point, b: torch.Tensor) -> None:
        order, of_a = self._order.get(point.key, (0, None))
        if of_a is None:
            self._leave(point, "only B has it")
            return
        self._met.add(point.key)
        a = self._a.tensor(of_a)
        if a.shape != b.shape:
            self._leave(point, f"its shape is {tuple(a.shape)} in A and {tuple(b.shape)} in B")
            return
        self._compared.append(self._one(point, order, of_a.how, a, b))

    def finish(self) -> tuple[list[Compared], list[NotCompared]]:
        """In A's order of execution."""
        for point in self._a.points:
            if point.key not in self._met:
                self._leave(point, "only A has it")
        return sorted(self._compared, key=lambda one: one.order), self._not_compared

    def _leave(self, point: Point, reason: str) -> None:
        self._not_compared.append(NotCompared(name=point.name, kind=point.kind, reason=reason))

    def _one(self, point: Point, order: int, how_a: str, a: torch.Tensor, b: torch.Tensor) -> Compared:
        max_abs, relative, at = difference(a, b)
        nonfinite = None if math.isfinite(max_abs) else _nonfinite(a, b)
        same = how_a == point.how
        return Compared(
            name=point.name,
            kind=point.kind,
            order=order,
            how=point.how if same else f"A: {how_a}; B: {point.how}",
            elements=a.numel(),
            max_abs=math.inf if nonfinite else max_abs,
            relative=math.inf if nonfinite else relative,
            nonfinite=nonfinite,
            worst=self._place(point, at, a, b) if a.numel() else None,
        )

    def _place(self, point: Point, at: int, a: torch.Tensor, b: torch.Tensor) -> Place:
        index = tuple(int(n) for n in torch.unravel_index(torch.tensor(at), a.shape)) if a.dim() else ()
        place = Place(index=index, a=float(a.flatten()[at]), b=float(b.flatten()[at]))
        if point.kind not in OF_TOKENS:
            return place
        useful_U = self._batch.segments_BT.flatten().nonzero().flatten()
        if len(a) != len(useful_U):
            return place
        flat, width = int(useful_U[index[0]]), self._batch.segments_BT.shape[1]
        row, column = divmod(flat, width)
        token = int(self._batch.tokens_BT[row, column])
        found = {
            "row": row,
            "column": column,
            "position": int(self._batch.positions_BT[row, column]),
            "segment": int(self._batch.segments_BT[row, column]),
            "token": token,
            "text": self._text(token) if self._text else None,
        }
        return place.model_copy(update=found)


def difference(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float, int]:
    """(largest absolute difference, norm of the difference over that of `b`, where the largest is in the
    flattened output). Where a side has NaN or infinity, the same one or not, the largest is infinite. Norms
    are summed in fp64; over a `b` of zeros the relative error is 0 for no difference and infinite for any."""
    a, b = a.flatten(), b.flatten()
    if torch.equal(a, b) and bool(torch.isfinite(b).all()):
        return 0.0, 0.0, 0
    largest, at, gap_sq, b_sq = -1.0, 0, 0.0, 0.0
    for first in range(0, a.numel(), NUMBERS_AT_ONCE):
        part = slice(first, first + NUMBERS_AT_ONCE)
        wide_b = b[part].double()
        gap = (a[part].double() - wide_b).abs()
        gap_sq += float(gap.square().sum())
        b_sq += float(wide_b.square().sum())
        ranked = gap.nan_to_num(nan=math.inf, posinf=math.inf)
        place = int(ranked.argmax())
        if float(ranked[place]) > largest:
            largest, at = float(ranked[place]), first + place
    return largest, math.sqrt(gap_sq / b_sq) if b_sq else math.inf, at


def _nonfinite(a: torch.Tensor, b: torch.Tensor) -> Literal["a", "b", "both"] | None:
    in_a, in_b = (not bool(torch.isfinite(side).all()) for side in (a, b))
    if in_a and in_b:
        return "both"
    return "a" if in_a else "b" if in_b else None


def require_same_batch(a: BatchTensors, b: BatchTensors, names: tuple[str, str]) -> None:
    """Raises InputError that names the arrays which differ."""
    found = [array_digests(batch) for batch in (a, b)]
    differ = [name.rpartition("_")[0] for name in found[0] if found[0][name] != found[1][name]]
    if differ:
        shapes = " and ".join(
            f"{name}: {' x '.join(map(str, batch.tokens_BT.shape))}, tokens {digests['tokens_BT'][:12]}"
            for name, batch, digests in zip(names, (a, b), found, strict=True)
        )
        raise InputError(
            f"the two sides were shown different batches: {', '.join(differ)} differ ({shapes}); "
            "run one side again on the other's batch: `trueup parity FILE B` takes it from the file"
        )
