"""A row of a comparison: which measurement, what it is called, and which way is better."""

from __future__ import annotations

from typing import Literal, NamedTuple

Better = Literal["lower", "higher"]


class Metric(NamedTuple):
    """A row of the table. `lower` and `higher`: what a group is whose figure is lower, or higher.

    `every_run`: where one run lacks the figure the group has none, because those that lack it are the worst.
    `given`: it was given to the runs, not measured by them, so that repeats say nothing of its spread.
    `share`: it is a part of a whole, so that no more than 1 of it can be.
    """

    name: str
    label: str
    better: Better
    lower: str
    higher: str
    learnt: bool = False  # follows from what was learnt, so from the seed
    every_run: bool = False
    given: bool = False
    share: bool = False


COST: tuple[Better, str, str] = ("lower", "cheaper", "dearer")
TIME: tuple[Better, str, str] = ("lower", "faster", "slower")
RATE: tuple[Better, str, str] = ("higher", "slower", "faster")
ENERGY: tuple[Better, str, str] = ("lower", "less energy", "more energy")
