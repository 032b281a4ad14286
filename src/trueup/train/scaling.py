"""Loss scaling: the loss is multiplied before the backward pass and the gradients divided after it.

It lifts gradients that are too small for the numbers they are kept in. bf16 has fp32's exponents, so nothing
here turns it on: it is the recipe's choice under every policy.
"""

from __future__ import annotations

import math
from typing import Any

from trueup.recipe.models import PrecisionSection
from trueup.schema import InputError

LEAST = 1.0  # a dynamic scale is never below: gradients too large for fp32 are not the scale's doing
MOST = 2.0**64  # nor above: far more than any gradient needs, and the scaled loss stays a finite fp32


class LossScaler:
    """The scale of the next step and, where it is dynamic, its history. One that is a power of two changes no
    bit of an fp32 result, as long as nothing overflows."""

    def __init__(self, section: PrecisionSection) -> None:
        self._mode = section.loss_scale
        self._window = section.scale_window
        self._good = 0  # steps in a row since the scale last changed
        self.scale: float = 1.0 if self._mode == "off" else section.scale

    def good_step(self) -> None:
        """The update was applied."""
        if self._mode != "dynamic":
            return
        self._good += 1
        if self._good >= self._window:
            self.scale = min(2 * self.scale, max(self.scale, MOST))
            self._good = 0

    def bad_step(self) -> bool:
        """A gradient was not finite. True: the scale may have done it and is halved, the step is to be left
        out. False: it did not, because it is off, fixed, or at its least."""
        if self._mode != "dynamic" or self.scale <= LEAST:
            return False
        self.scale = max(self.scale / 2, LEAST)
        self._good = 0
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {"mode": self._mode, "scale": self.scale, "good_steps": self._good}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`. A recipe that asks for another kind of scaling than the checkpoint's, or a
        static one of another size, has its own way. Raises InputError where it is no such state."""
        try:
            mode, scale, good = str(state["mode"]), float(state["scale"]), int(state["good_steps"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the checkpoint's loss scale cannot be read ({error!r}); mode, scale and good_steps are "
                "expected; take another checkpoint"
            ) from None
        if not (math.isfinite(scale) and scale >= LEAST and good >= 0):
            raise InputError(
                f"the checkpoint's loss scale is {scale:g} after {good} good steps; a finite one of at least "
                f"{LEAST:g} is expected; take another checkpoint"
            )
        if mode == self._mode == "dynamic":
            self.scale, self._good = scale, good


NOT_SCALED = LossScaler(PrecisionSection(loss_scale="off"))
