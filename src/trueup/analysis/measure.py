"""From a run's records to its measurements: all of them, each with a value or a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.schema import Measurement, RunRecord

from .names import NAMES, figure, missing
from .outcomes import of_compiling, of_learning, of_wall_clock
from .residual import of_prediction
from .sensors import energy_per_token, of_samples
from .steady import steady_part, steps_inside
from .totals import steps_of, world_size
from .utilisation import of_flops
from .work import of_step_times, of_tokens

# Why a measurement is absent that only the run itself could have supplied.
_NOT_SUPPLIED = {
    "matmul_ceiling_flops_per_s": "the run measured no matmul ceiling",
    "memory_bandwidth_ceiling_bytes_per_s": "the run measured no memory bandwidth",
    "memory_bandwidth_share": "the bytes a step moves are not counted",
    "algorithm_bandwidth_bytes_per_s": "no collective was timed",
    "idle_power_w": "power before the work was not measured",
    "usd_per_million_useful_tokens": "the run has no price",
    "usd_per_million_useful_tokens_steady": "the run has no price",
    "telemetry_cpu_s": "the run did not measure what measuring cost",
}


def summarized(record: RunRecord) -> RunRecord:
    """The record of a run that was killed before it could sum itself up, with what follows from its steps;
    any other record as it is."""
    if record.measurements or record.header.state == "running":
        return record
    if record.kind == "load":
        from .load_figures import summarize_load

        return record.model_copy(update={"measurements": summarize_load(record)})
    measurements, steady = summarize(record)
    header = record.header.model_copy(update={"steady": steady})
    return record.model_copy(update={"measurements": measurements, "header": header})


def summarize(
    record: RunRecord, *, extra: Mapping[str, Measurement] | None = None
) -> tuple[dict[str, Measurement], dict[str, Any]]:
    """(every measurement of `names.NAMES` and of `extra`, the verdict on the steady part).

    `extra` holds what only the run could measure (the matmul ceiling, memory counters, ...); it wins over
    what follows from the records. The record may be of a run that was cut off: what cannot be told says why.
    Of `header.environment` it reads `device` (kind and name), `world.size`, and `missing_sensors`, a mapping
    of sensor to the reason why it is absent.
    """
    given = dict(extra or {})
    steps, _ = steps_of(record)
    steady = steady_part(steps)
    ceiling = given.get("matmul_ceiling_flops_per_s") or _absent("matmul_ceiling_flops_per_s")
    found = of_tokens(record, steady)
    found |= of_step_times(record, steady)
    found |= of_flops(record, steady, ceiling)
    found |= of_samples(record, steps_inside(steps, steady), found["useful_tokens"].value or 0.0)
    found |= of_learning(record)
    found |= of_compiling(record)
    found |= of_wall_clock(record)
    found |= of_prediction(record)
    found |= _of_model(record)
    if "energy_j" in given and "energy_per_useful_token_j" not in given:
        useful = found["useful_tokens"].value or 0.0
        given["energy_per_useful_token_j"] = energy_per_token(given["energy_j"], useful, world_size(record))
    found |= given
    ordered = {name: found.get(name) or _absent(name) for name in NAMES}
    return ordered | {name: one for name, one in found.items() if name not in NAMES}, steady


def _absent(name: str) -> Measurement:
    return missing(name, _NOT_SUPPLIED[name])


def _of_model(record: RunRecord) -> dict[str, Measurement]:
    dims = record.header.model
    if dims is None:
        reason = "the model's dimensions are not recorded"
        return {name: missing(name, reason) for name in ("parameters", "trainable_parameters")}
    return {
        "parameters": figure("parameters", dims.parameters, "measured", "counted"),
        "trainable_parameters": figure(
            "trainable_parameters", dims.trainable_parameters, "measured", "counted"
        ),
    }
