"""What kind a figure is that is made from several."""

from __future__ import annotations

from collections.abc import Collection

from trueup.schema import Kind

_WEAKEST: tuple[Kind, ...] = ("predicted", "estimated", "quoted")


def weakest(kinds: Collection[Kind]) -> Kind:
    """A figure is what the weakest of those it is made from is; from measured and derived ones, derived."""
    return next((kind for kind in _WEAKEST if kind in kinds), "derived")
