"""Lengths and tables to plan with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueup.data import JobData, Planner
from trueup.recipe.models import ShapesSection
from trueup.schema import CompileMode, DeviceRules, Measurement, PlatformProfile, unavailable
from trueup.schema.profile import CompileFigures

CHUNK = 16


@dataclass
class Table:
    """Examples whose tokens say where they are from: example n, position t is token 100 n + t."""

    lengths: NDArray[np.int32]
    loss: list[NDArray[np.bool_]]
    order: Sequence[int] = ()

    def content_order(self) -> NDArray[np.int64]:
        return np.asarray(self.order, dtype=np.int64)

    @property
    def supervised(self) -> NDArray[np.int32]:
        return np.asarray([loss.sum() for loss in self.loss], dtype=np.int32)

    def example(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        return (100 * n + np.arange(self.lengths[n])).astype(np.int32), self.loss[n]


def table_of(lengths: list[int], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    loss = [rng.random(length) < 0.5 for length in lengths]
    for mask in loss:
        mask[0] = False
    return Table(np.asarray(lengths, dtype=np.int32), loss)


def long_tail(count: int, seed: int = 0) -> NDArray[np.int32]:
    """Lengths like the demo's: median about 76, up to 512."""
    lengths = np.exp(np.random.default_rng(seed).normal(4.35, 0.6, count)) + 30
    return np.minimum(lengths, 512).astype(np.int32)


def seconds(value: float | None, unit: str = "s") -> Measurement:
    if value is None:
        return unavailable(unit, "test")
    return Measurement(value=value, unit=unit, kind="estimated", method="test")


def profile_of(
    *,
    token_s: float | None = 1e-3,
    micro_batch_s: float = 0.0,
    compile_s: float | None = 20.0,
    step_ratio: float = 0.8,
    rules: DeviceRules | None = None,
    edges: tuple[tuple[int, int], ...] = (),
    tokens: int | None = None,
) -> PlatformProfile:
    """A profile of round figures: compiling takes as long for every shape."""
    figures = CompileFigures(
        first_shape_s=seconds(compile_s),
        further_shape_s=seconds(compile_s),
        evaluation_shape_s=seconds(None if compile_s is None else compile_s / 4),
        step_ratio=seconds(step_ratio, "1"),
    )
    return PlatformProfile(
        device_kind="cpu",
        device_name="test",
        model="test",
        rules=rules or DeviceRules(),
        micro_batch_s=seconds(micro_batch_s),
        token_s=seconds(token_s),
        pair_s=seconds(0.0),
        head_row_s=seconds(0.0),
        compile={"layer": figures},
        memory_edges=edges,
        micro_batch_tokens=tokens,
    )


def planner_of(
    lengths: Any,
    strategy: str = "auto",
    *,
    budget: int = 64,
    evaluation: Any = (),
    per_step: int | None = None,
    job_tokens: float | None = None,
    buckets: tuple[int, ...] | None = None,
    profile: PlatformProfile | None = None,
    modes: tuple[CompileMode, ...] = ("none",),
    positions: int | None = None,
) -> Planner:
    lengths_N = np.asarray(lengths, dtype=np.int32)
    data = JobData(lengths_N, lengths_N // 2, np.asarray(evaluation, dtype=np.int32))
    section = {"strategy": strategy, "tokens_per_microbatch": budget, "buckets": buckets}
    return Planner(
        data=data,
        shapes=ShapesSection.model_validate(section),
        tokens_per_step=per_step or budget,
        job_tokens=data.useful_tokens if job_tokens is None else job_tokens,
        chunk_rows=CHUNK,
        profile=profile,
        modes=modes,
        positions=positions,
    )
