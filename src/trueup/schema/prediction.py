"""What a run was foretold to take, before its first step."""

from __future__ import annotations

from typing import Literal

from .measurement import Frozen, Measurement

Basis = Literal["datasheet", "calibrated"]


class Prediction(Frozen):
    """A step of a recipe on a platform, by one kind of ceilings. `lines` by name (analysis/predict.py), each
    is predicted, with its arithmetic as the method, or unavailable with the reason."""

    basis: Basis
    platform: str  # what the ceilings are of, in words
    lines: dict[str, Measurement]
