"""Matrix products of any size, from some that were measured: straight lines between the logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from trueup.schema import Layout, ProductTime

_LEAST_S = 1e-7  # of compiling: below it nothing was
_LEAST_BYTES = 1.0

_Node = tuple[int, int, int]


class Product(NamedTuple):
    """(m, k) by (k, n)."""

    m: int
    k: int
    n: int
    layout: Layout = "linear"


@dataclass(frozen=True)
class ProductTable:
    """What was measured of products, by layout. A layout that was not measured is taken for a linear layer's
    own."""

    times: tuple[ProductTime, ...]

    def seconds(self, one: Product) -> float:
        """By FLOPs beyond the largest that was measured."""
        found = self._cache.get(one)
        if found is None:
            found = self._cache[one] = self._grid("seconds", one.layout).beyond(one[:3])
        return found

    def first_seconds(self, one: Product) -> float:
        """What the first product of this size takes beyond every later one: on a CPU its program is compiled.
        0 where it was not measured."""
        grid = self._grid("first", one.layout)
        return grid.within(one[:3]) if grid.nodes else 0.0

    def program_bytes(self, one: Product) -> float:
        """What the process grows by with that program. 0 where it was not measured."""
        grid = self._grid("bytes", one.layout)
        return grid.within(one[:3]) if grid.nodes else 0.0

    def _grid(self, what: str, layout: Layout) -> _Grid:
        grids = self._grids[what]
        return grids.get(layout) or grids.get("linear") or _Grid({})

    @cached_property
    def _cache(self) -> dict[Product, float]:
        return {}

    @cached_property
    def _grids(self) -> dict[str, dict[Layout, _Grid]]:
        of: dict[str, Callable[[ProductTime], float | None]] = {
            "seconds": lambda one: one.seconds,
            "first": lambda one: None if one.first_s is None else max(one.first_s - one.seconds, _LEAST_S),
            "bytes": lambda one: None if one.program_bytes is None else max(one.program_bytes, _LEAST_BYTES),
        }
        return {what: self._by_layout(value) for what, value in of.items()}

    def _by_layout(self, of: Callable[[ProductTime], float | None]) -> dict[Layout, _Grid]:
        found: dict[Layout, dict[_Node, float]] = {}
        for one in self.times:
            value = of(one)
            if value is not None:
                found.setdefault(one.layout, {})[one.m, one.k, one.n] = value
        return {layout: _Grid(nodes) for layout, nodes in found.items()}


@dataclass(frozen=True)
class _Grid:
    """One measured quantity at sides (m, k, n)."""

    nodes: Mapping[_Node, float]

    def within(self, size: Sequence[int]) -> float:
        """That of the next smaller one where it was too large to be measured."""
        return math.exp(_mean_of_corners(self._places(size), lambda node: math.log(self._nearest(node))))

    def beyond(self, size: Sequence[int]) -> float:
        """By FLOPs where it was too large to be measured."""
        inside = _mean_of_corners(self._places(size), lambda node: math.log(self._by_flop(node)))
        return math.exp(inside) * math.prod(max(1.0, side / self._axis[-1]) for side in size)

    @cached_property
    def _axis(self) -> list[int]:
        return sorted({side for size in self.nodes for side in size})

    def _places(self, size: Sequence[int]) -> list[tuple[int, int, float]]:
        return [self._place(side) for side in size]

    def _place(self, side: int) -> tuple[int, int, float]:
        """(the side below, the side above, how far between them)."""
        axis = self._axis
        inside = min(max(side, axis[0]), axis[-1])
        above = next(at for at, one in enumerate(axis) if one >= inside)
        below = max(0, above - 1)
        if below == above or inside == axis[above]:
            return axis[above], axis[above], 0.0
        part = math.log(inside / axis[below]) / math.log(axis[above] / axis[below])
        return axis[below], axis[above], part

    def _by_flop(self, node: _Node) -> float:
        found = self.nodes.get(node)
        if found is not None:
            return found
        smaller, ratio = self._smaller(node)
        return self._by_flop(smaller) * ratio

    def _nearest(self, node: _Node) -> float:
        found = self.nodes.get(node)
        return self._nearest(self._smaller(node)[0]) if found is None else found

    def _smaller(self, node: _Node) -> tuple[_Node, float]:
        """The node with the largest side one step smaller, and by how much."""
        largest = max(range(3), key=lambda at: node[at])
        side = self._axis[self._axis.index(node[largest]) - 1]
        m, k, n = (side if at == largest else one for at, one in enumerate(node))
        return (m, k, n), node[largest] / side


def _mean_of_corners(places: Sequence[tuple[int, int, float]], of_node: Callable[[_Node], float]) -> float:
    """Between the corners of a cell, each weighted by how near it is."""
    total = 0.0
    for corner in product((0, 1), repeat=3):
        weight, sides = 1.0, list[int]()
        for upper, (below, above, part) in zip(corner, places, strict=True):
            weight *= part if upper else 1 - part
            sides.append(above if upper else below)
        if weight:
            m, k, n = sides
            total += weight * of_node((m, k, n))
    return total
