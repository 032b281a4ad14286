"""What earlier runs of a model on a device teach: seconds of micro-batches and of compiling, memory edges.

Learnt from the records alone. A figure no run tells stays the estimate it was (profile.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from trueup.schema import (
    CompileFigures,
    CompileMode,
    Event,
    Measurement,
    ModelDims,
    PlatformProfile,
    RunRecord,
    Shape,
    Step,
)

from .flops import head_row_flops, training_flops
from .profile import estimated_profile, pair_flops, token_flops
from .steady import unlabelled
from .totals import world_size

FEWEST_STEPS = 3  # of a run, with nothing but a step in them
SPREAD = 1.5  # sizes of micro-batches must differ by so much to tell a fixed part from one that grows
_ALIKE = (("model", "path"), ("tune", "method"), ("precision", "policy"))
_OUT_OF_MEMORY = ("smaller_plan", "out_of_memory")  # events


@dataclass(frozen=True)
class _MicroBatches:
    """Of one step: model FLOPs and seconds of an average micro-batch, masked attention included."""

    flops: float
    seconds: float


def learnt_profile(
    records: Iterable[RunRecord],
    like: Mapping[str, Any],
    *,
    device_kind: str,
    device_name: str,
    static: bool,
) -> PlatformProfile | None:
    """From the runs among `records` on this device whose recipe has the model, method and precision of
    `like`, a recipe as runs store it. None where no run teaches anything."""
    found = [record for record in records if _is_alike(record, like, device_kind, device_name)]
    dims = next((record.header.model for record in found if record.header.model), None)
    if dims is None:
        return None
    known = estimated_profile(device_kind, device_name, dims, static=static)
    memory = _memory(
        [record for record in found if _checkpointing(record.header.recipe) == _checkpointing(like)]
    )
    runs: dict[CompileMode, list[list[_MicroBatches]]] = {}
    for record in found:
        points = _points(record, dims)
        if len(points) >= FEWEST_STEPS:
            runs.setdefault(_mode(record), []).append(points)
    known = known.model_copy(update=memory | _seconds(runs.get("none", []), known, dims))
    compiled = {
        mode: _compiled(figures, mode, [record for record in found if _mode(record) == mode], runs)
        for mode, figures in known.compile.items()
    }
    return known.model_copy(update={"compile": compiled})


def _is_alike(record: RunRecord, like: Mapping[str, Any], kind: str, name: str) -> bool:
    device = record.header.environment.get("device")
    if not isinstance(device, Mapping) or (device.get("kind"), device.get("name")) != (kind, name):
        return False
    return all(_at(record.header.recipe, path) == _at(like, path) for path in _ALIKE)


def _at(recipe: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = recipe
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _mode(record: RunRecord) -> CompileMode:
    value = record.header.choices.get("compile", {}).get("value")
    return value if value in ("layer", "model") else "none"  # type: ignore[return-value]


def _points(record: RunRecord, dims: ModelDims) -> list[_MicroBatches]:
    ranks = world_size(record)
    by_example = record.header.choices.get("layers", {}).get("value") == "own"
    return [
        _MicroBatches(
            _work(step, dims, by_example) / step.micro_batches, ranks * step.step_s / step.micro_batches
        )
        for step in unlabelled(record.steps)
        if step.micro_batches and step.step_s > 0
    ]


def _work(step: Step, dims: ModelDims, by_example: bool) -> float:
    """Model FLOPs that the device did, padding and masked pairs included."""
    pairs = step.attention_sum_sq if by_example else step.processed_tokens * step.shape[1]
    return training_flops(
        dims,
        tokens=step.processed_tokens,
        head_rows=step.head_rows,
        attention_sum_sq=pairs,
        causal=False,
    )


def _seconds(runs: list[list[_MicroBatches]], known: PlatformProfile, dims: ModelDims) -> dict[str, Any]:
    """The eager seconds, where runs tell them."""
    if not runs:
        return {}
    points = [point for run in runs for point in run]
    fixed_s = known.micro_batch_s
    flops = [point.flops for point in points]
    if max(flops) >= SPREAD * min(flops):
        slope, at_zero = np.polyfit(flops, [point.seconds for point in points], 1)
        if slope > 0:
            fixed_s = _measured(max(0.0, float(at_zero)), "s", "what grows not with the size", len(runs))
    fixed = fixed_s.value or 0.0
    per_flop = median(
        median(max(point.seconds - fixed, 0.1 * point.seconds) / point.flops for point in run) for run in runs
    )
    how = "seconds by model FLOPs, median"
    return {
        "micro_batch_s": fixed_s,
        "token_s": _measured(per_flop * token_flops(dims), "s/token", how, len(runs)),
        "pair_s": _measured(per_flop * pair_flops(dims), "s/pair", how, len(runs)),
        "head_row_s": _measured(per_flop * head_row_flops(dims), "s/row", how, len(runs)),
    }


def _compiled(
    known: CompileFigures,
    mode: CompileMode,
    records: Sequence[RunRecord],
    runs: Mapping[CompileMode, list[list[_MicroBatches]]],
) -> CompileFigures:
    """The figures of one compile mode, those that runs tell in place of the estimates. Compiles that came
    out of a cache say nothing of what others will take."""
    cold = [_cold_compiles(record.events) for record in records]
    training = [[s for (phase, _), s in compiles if phase == "training"] for compiles in cold]
    found = {
        "first_shape_s": [shapes[0] for shapes in training if shapes],
        "further_shape_s": [s for shapes in training for s in shapes[1:]],
        "evaluation_shape_s": [s for compiles in cold for (phase, _), s in compiles if phase == "evaluation"],
    }
    update = {name: _measured(median(s), "s", "median of compiles", len(s)) for name, s in found.items() if s}
    eager, compiled = runs.get("none"), runs.get(mode)
    if eager and compiled:
        ratio = _per_flop(compiled) / _per_flop(eager)
        update["step_ratio"] = _measured(ratio, "1", "compiled over eager runs, medians", len(compiled))
    return known.model_copy(update=update)


def _per_flop(runs: list[list[_MicroBatches]]) -> float:
    return median(median(point.seconds / point.flops for point in run) for run in runs)


def _cold_compiles(events: Sequence[Event]) -> list[tuple[tuple[str, Shape], float]]:
    """((phase, shape), seconds) in the order of first compiles; those with a cache hit left out."""
    seconds: dict[tuple[str, Shape], float] = {}
    warm: set[tuple[str, Shape]] = set()
    for event in events:
        phase, shape = event.data.get("phase"), event.data.get("shape")
        if event.kind != "compile" or not isinstance(phase, str) or not isinstance(shape, list | tuple):
            continue
        key = (phase, (int(shape[0]), int(shape[1])))
        seconds[key] = seconds.get(key, 0.0) + float(event.data.get("seconds", 0.0))
        if event.data.get("cache_hits"):
            warm.add(key)
    return [(key, value) for key, value in seconds.items() if key not in warm]


def _memory(records: Sequence[RunRecord]) -> dict[str, Any]:
    """The shapes that memory ran out for, while warming up or in a step, and the least tokens of a
    micro-batch that a run went on with, or would have."""
    found = [event.data for record in records for event in record.events if event.kind in _OUT_OF_MEMORY]
    shapes = [data.get("refused") for data in found]
    edges = [(int(shape[0]), int(shape[1])) for shape in shapes if isinstance(shape, list | tuple)]
    tokens = [data["at_most"] for data in found if isinstance(data.get("at_most"), int)]
    return {"memory_edges": tuple(dict.fromkeys(edges)), "micro_batch_tokens": min(tokens, default=None)}


def _checkpointing(recipe: Mapping[str, Any]) -> bool:
    """Whether layers keep only their inputs: the same shape then takes a fraction of the memory."""
    return bool(_at(recipe, ("train", "activation_checkpointing")))


def _measured(value: float, unit: str, method: str, n: int) -> Measurement:
    return Measurement(value=value, unit=unit, kind="measured", method=f"{method}, earlier runs", n=n)
