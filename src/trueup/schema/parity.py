"""What a comparison of two sides finds: one record for each output that both have."""

from __future__ import annotations

from typing import Literal

from .measurement import Frozen

PointKind = Literal["module", "input", "softmax", "logits", "loss", "gradient"]


class Place(Frozen):
    """Where an output differs most, and the two numbers there. `index` is of the output as it was compared:
    tokens first, padding left out. Row, column and so on are the token's, None where there is none."""

    index: tuple[int, ...]
    a: float
    b: float
    row: int | None = None
    column: int | None = None
    position: int | None = None
    segment: int | None = None
    token: int | None = None
    text: str | None = None


class Compared(Frozen):
    """One output of both sides. `order` counts in the order of execution; `relative` is the norm of the
    difference over that of side B; `nonfinite` names the side with NaN or infinity, both errors are then
    infinite."""

    name: str
    kind: PointKind
    order: int
    how: str
    elements: int
    max_abs: float
    relative: float
    nonfinite: Literal["a", "b", "both"] | None = None
    worst: Place | None = None

    @property
    def label(self) -> str:
        return self.name if self.kind == "module" else f"{self.name} ({self.kind})"


class NotCompared(Frozen):
    """An output that could not be compared, and why."""

    name: str
    kind: PointKind
    reason: str


class SideFacts(Frozen):
    """How one side was run. `softmax` says whether the attention's probabilities were observed, derived or
    are unavailable."""

    subject: str
    model: str
    weights: str
    weights_digest: str
    device: str
    device_name: str
    precision: str
    compute_dtype: str
    attention: str
    compile: str
    threads: int
    softmax: str
    torch_version: str
    trueup_version: str


class BatchFacts(Frozen):
    """What both sides were shown. `arrays` are the digests of its parts, `digest` that of all."""

    source: str
    digest: str
    arrays: dict[str, str]
    rows: int
    width: int
    tokens: int
    segments: int
    supervised: int
