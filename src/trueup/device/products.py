"""Matrix products of every mix of a few sides, timed in rounds.

A machine that is shared is slow for seconds or minutes and then fast again, twice as fast for some products.
A size that is timed in one go meets one of these states; one that is timed a little in every round meets them
all, as a run does.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trueup.schema import InputError, Layout, ProductTime

from .ceiling import DTYPES
from .host import settled_resident_bytes
from .protocol import Device

if TYPE_CHECKING:
    import torch

# Sides of the products, and the most FLOPs of one: a tenth of a second at the least.
SIDES = {"cpu": (16, 64, 256, 1024, 4096)}
ACCELERATOR_SIDES = (64, 256, 1024, 4096, 16384)
LARGEST_PRODUCT_FLOP = {"cpu": 1e10}
ACCELERATOR_PRODUCT_FLOP = 1e13
LAYOUTS: tuple[Layout, ...] = ("linear", "inputs", "weight")
REPEATS = 2  # of a size in each round, after one that brings its operands near
RAGGED = 8
LEFT_OUT = 8  # the slowest of so many rounds is left out: something else happened in it

_Key = tuple[int, int, int, Layout]


class TimedProducts:
    """Products by size and layout. The first of each is done when this is made: on a CPU its library compiles
    a program for it, which takes time and memory of its own."""

    def __init__(self, device: Device, dtype_name: str) -> None:
        import torch

        if dtype_name not in DTYPES:
            raise InputError(f"no product times for '{dtype_name}'; known are {', '.join(DTYPES)}")
        self._device = device
        self._dtype: torch.dtype = getattr(torch, DTYPES[dtype_name])
        sides = SIDES.get(device.kind, ACCELERATOR_SIDES)
        most = LARGEST_PRODUCT_FLOP.get(device.kind, ACCELERATOR_PRODUCT_FLOP)
        sizes = [size for size in itertools.product(sides, repeat=3) if 2.0 * math.prod(size) <= most]
        self._seconds: dict[_Key, list[float]] = {(m, k, n, how): [] for m, k, n in sizes for how in LAYOUTS}
        self._firsts = dict(self._first_times()) if device.kind == "cpu" else {}

    @property
    def program_bytes(self) -> float:
        """What the process grew by, over all of them."""
        return math.fsum(grown for _, grown in self._firsts.values())

    def round(self) -> None:
        """Time each of them once."""
        import torch

        with torch.inference_mode():
            operands = self._operands()
            for key, seconds in self._seconds.items():
                run = self._product(operands, key)
                run()
                self._device.synchronize()
                seconds.append(min(self._timed(run) for _ in range(REPEATS)))

    def times(self) -> tuple[ProductTime, ...]:
        """After at least one round."""
        return tuple(self._time(key, seconds) for key, seconds in self._seconds.items())

    def _time(self, key: _Key, rounds: Sequence[float]) -> ProductTime:
        m, k, n, layout = key
        seconds = settled(rounds)
        compiling_s, grown = self._firsts.get(key, (None, None))
        first_s = None if compiling_s is None else seconds + compiling_s
        return ProductTime(
            m=m, k=k, n=n, layout=layout, seconds=seconds, first_s=first_s, program_bytes=grown
        )

    def _first_times(self) -> list[tuple[_Key, tuple[float, float]]]:
        """(CPU seconds of this thread, which compiles, beyond those of a second product; bytes that the
        process grew by) of the first product of each, with RAGGED more tokens: widths are multiples of so
        many, and what is no multiple of more takes further programs for its last rows."""
        import torch

        found = []
        with torch.inference_mode():
            operands = self._operands()
            self._product(operands, (3, 3, 3, "linear"))()  # what the library sets up for itself once
            before = settled_resident_bytes()
            for key in self._seconds:
                run = self._product(operands, _ragged(key))
                first_s, again_s = (self._thread_seconds(run) for _ in range(2))
                after = settled_resident_bytes()
                found.append((key, (max(first_s - again_s, 1e-9), max(0.0, float(after - before)))))
                before = after
        return found

    def _timed(self, run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        self._device.synchronize()
        return time.perf_counter() - start

    @staticmethod
    def _thread_seconds(run: Callable[[], object]) -> float:
        start = time.thread_time()
        run()
        return time.thread_time() - start

    def _operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers for the largest of either side; every product takes as many of them as it needs."""
        import torch

        ragged = [_ragged(key) for key in self._seconds]
        lefts = max(m * k for m, k, _, _ in ragged)
        rights = max(k * n for _, k, n, _ in ragged)
        made: Any = (
            torch.ones(count, dtype=self._dtype, device=self._device.torch_device)
            for count in (lefts, rights)
        )
        left, right = made
        return left, right

    @staticmethod
    def _product(operands: tuple[torch.Tensor, torch.Tensor], key: _Key) -> Callable[[], object]:
        """Into memory that is asked for anew, as a step does it."""
        import torch

        m, k, n, layout = key
        left, right = operands[0][: m * k], operands[1][: k * n]
        if layout == "linear":
            rows, weight = left.view(m, k), right.view(n, k)
            return lambda: torch.nn.functional.linear(rows, weight)
        first = left.view(k, m).t() if layout == "weight" else left.view(m, k)
        second = right.view(k, n)
        return lambda: torch.mm(first, second)


def _ragged(key: _Key) -> _Key:
    m, k, n, layout = key
    return (m, k + RAGGED, n, layout) if layout == "weight" else (m + RAGGED, k, n, layout)


def settled(seconds: Sequence[float]) -> float:
    """The mean without the slowest of every LEFT_OUT: what a step takes among the same neighbours, but for
    what happens to one alone."""
    return fmean(sorted(seconds)[: len(seconds) - len(seconds) // LEFT_OUT])
