"""The name, unit, scope and meaning of every measurement of a run. Documentation is made from this table.

A name ends in its unit (`_s`, `_j`, `_bytes`, `_tokens_per_s`, `_share` for a part of one). `_steady` after
the unit says that only the steady part counts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from trueup.schema import Kind, Measurement, Scope, unavailable

P99_NEEDS = 299  # smallest n whose maximum bounds the 99th percentile with 95% confidence: 0.99^n <= 0.05


class NameFacts(NamedTuple):
    unit: str
    scope: Scope
    meaning: str


NAMES: dict[str, NameFacts] = {
    # tokens
    "useful_tokens": NameFacts(
        "tokens", "process", "tokens of the data trained on, padding and repeats left out"
    ),
    "supervised_tokens": NameFacts("tokens", "process", "useful tokens that carry loss"),
    "processed_tokens": NameFacts(
        "tokens", "process", "tokens the device computed in steps, padding included"
    ),
    "useful_tokens_per_s": NameFacts("tokens/s", "process", "useful tokens over all training seconds"),
    "supervised_tokens_per_s": NameFacts(
        "tokens/s", "process", "supervised tokens over all training seconds"
    ),
    "processed_tokens_per_s": NameFacts("tokens/s", "process", "processed tokens over all training seconds"),
    "useful_tokens_per_s_steady": NameFacts("tokens/s", "process", "useful tokens over seconds, steady part"),
    "padding_share": NameFacts("1", "process", "part of the processed tokens that is padding"),
    "recompute_share": NameFacts(
        "1", "process", "FLOPs done a second time by activation checkpointing, over all FLOPs but padding's"
    ),
    "head_padding_share": NameFacts(
        "1", "process", "part of the model FLOPs spent on head rows without loss"
    ),
    # time
    "wall_s": NameFacts("s", "process", "wall clock of the run, from the start of its process"),
    "steps_count": NameFacts("count", "process", "optimizer steps, repeats after a crash counted once"),
    "skipped_steps_count": NameFacts("count", "process", "steps whose update was not applied"),
    "step_p50_s": NameFacts("s", "process", "median step time, all steps"),
    "step_p90_s": NameFacts("s", "process", "90th percentile of step time, all steps"),
    "step_p99_s": NameFacts("s", "process", f"99th percentile of step time, given from {P99_NEEDS} steps on"),
    "step_max_s": NameFacts("s", "process", "longest step"),
    "step_jitter_share": NameFacts(
        "1", "process", "standard deviation over mean of step time, event steps left out"
    ),
    "time_to_steady_s": NameFacts("s", "process", "from the start of the process to the first steady step"),
    "steady_steps_count": NameFacts("count", "process", "steps of the steady part, event steps left out"),
    "data_wait_share": NameFacts("1", "process", "part of the training seconds spent waiting for data"),
    "communication_share": NameFacts(
        "1", "process", "part of the training seconds in communication not hidden"
    ),
    "algorithm_bandwidth_bytes_per_s": NameFacts(
        "bytes/s", "process", "bytes reduced over the seconds it took"
    ),
    "lost_work_s": NameFacts("s", "process", "seconds of steps done again, given up or left out"),
    "other_share": NameFacts("1", "process", "part of the wall clock that no span claims"),
    # compiling
    "compile_s": NameFacts("s", "process", "seconds spent compiling"),
    "compile_count": NameFacts("count", "process", "graphs compiled"),
    "compile_after_warm_up_count": NameFacts("count", "process", "graphs compiled after the warm-up"),
    "compile_cache_hits_count": NameFacts("count", "process", "compiles answered by a cache"),
    # work
    "parameters": NameFacts("parameters", "process", "parameters of the model, adapters included"),
    "trainable_parameters": NameFacts("parameters", "process", "parameters that are trained"),
    "useful_model_flop": NameFacts(
        "FLOP", "process", "model FLOPs of useful tokens, head only where loss is"
    ),
    "processed_model_flop": NameFacts("FLOP", "process", "model FLOPs of processed tokens and all head rows"),
    "matmul_ceiling_flops_per_s": NameFacts(
        "FLOP/s", "device", "best matmul over sizes, measured in this run"
    ),
    "mfu_useful": NameFacts("1", "process", "useful model FLOP/s over the measured ceiling"),
    "mfu_processed": NameFacts("1", "process", "processed model FLOP/s over the measured ceiling"),
    "mfu_useful_steady": NameFacts(
        "1", "process", "useful model FLOP/s over the measured ceiling, steady part"
    ),
    "mfu_datasheet_useful": NameFacts(
        "1", "process", "useful model FLOP/s over the published dense BF16 peak"
    ),
    "memory_bandwidth_ceiling_bytes_per_s": NameFacts(
        "bytes/s", "device", "best read rate measured in this run"
    ),
    "memory_bandwidth_share": NameFacts("1", "device", "part of the memory bandwidth that is used"),
    # memory
    "peak_host_bytes": NameFacts("bytes", "process", "largest resident memory of the process"),
    "peak_device_bytes": NameFacts("bytes", "device", "largest device memory held by tensors"),
    "peak_device_requested_bytes": NameFacts("bytes", "device", "largest device memory tensors asked for"),
    "peak_device_allocated_bytes": NameFacts("bytes", "device", "largest device memory allocated to tensors"),
    "peak_device_reserved_bytes": NameFacts("bytes", "device", "largest device memory held by the allocator"),
    # power, heat, load
    "power_mean_w": NameFacts("W", "device", "mean power over the sampled time"),
    "power_peak_w": NameFacts("W", "device", "highest power reading"),
    "idle_power_w": NameFacts("W", "device", "power before any work"),
    "energy_j": NameFacts("J", "device", "energy over the sampled time, idle power included"),
    "energy_per_useful_token_j": NameFacts("J/token", "device", "energy over useful tokens"),
    "temperature_min_c": NameFacts("°C", "device", "lowest temperature reading"),
    "temperature_max_c": NameFacts("°C", "device", "highest temperature reading"),
    "clock_min_mhz": NameFacts("MHz", "device", "lowest clock reading"),
    "clock_max_mhz": NameFacts("MHz", "device", "highest clock reading"),
    "throttle_s": NameFacts("s", "device", "time in which power or heat capped the clock"),
    "utilisation_share": NameFacts("1", "device", "mean utilisation as the device reports it"),
    "own_cpu_share": NameFacts("1", "node", "mean part of the CPU that the run used, while training"),
    "others_cpu_share_steady": NameFacts("1", "node", "mean part of the CPU that others used, steady part"),
    "others_cpu_share": NameFacts("1", "node", "mean part of the CPU that others used, while training"),
    # learning
    "loss_first": NameFacts("nats/token", "process", "training loss of the first step"),
    "loss_last": NameFacts("nats/token", "process", "training loss of the last step"),
    "grad_norm_max": NameFacts("1", "process", "largest gradient norm before clipping"),
    "loss_scale": NameFacts("1", "process", "factor of the loss in the last backward pass"),
    "eval_perplexity_first": NameFacts(
        "1", "process", "held-out perplexity, token-weighted, first evaluation"
    ),
    "eval_perplexity_best": NameFacts("1", "process", "lowest held-out perplexity of the run"),
    "eval_perplexity_last": NameFacts("1", "process", "held-out perplexity of the last evaluation"),
    "eval_tokens": NameFacts("tokens", "process", "supervised tokens of one evaluation"),
    # money and the cost of measuring
    "usd_per_million_useful_tokens": NameFacts(
        "USD/million useful tokens", "process", "the whole bill over the useful tokens"
    ),
    "usd_per_million_useful_tokens_steady": NameFacts(
        "USD/million useful tokens", "process", "price over the useful tokens per second of the steady part"
    ),
    "telemetry_cpu_s": NameFacts("s", "process", "CPU seconds that measuring itself took"),
    # prediction
    "predicted_step_s": NameFacts("s", "process", "step time foretold from ceilings"),
    "predicted_step_residual_share": NameFacts("1", "process", "measured over foretold step time, less one"),
}


def figure(
    name: str,
    value: float,
    kind: Kind,
    method: str,
    *,
    n: int | None = None,
    scope: Scope | None = None,
    ci: tuple[float, float] | None = None,
    ci_method: str | None = None,
) -> Measurement:
    """The named measurement with its unit. A value that is not finite becomes unavailable, and says so."""
    facts = NAMES[name]
    scope = scope or facts.scope
    if not math.isfinite(value):
        return unavailable(
            facts.unit, f"the value is {value}, not a finite number", method=method, scope=scope, n=n
        )
    return Measurement(
        value=value, unit=facts.unit, kind=kind, method=method, scope=scope, n=n, ci=ci, ci_method=ci_method
    )


def missing(name: str, reason: str, *, n: int | None = None, scope: Scope | None = None) -> Measurement:
    """The named measurement that could not be made, and why."""
    facts = NAMES[name]
    return unavailable(facts.unit, reason, scope=scope or facts.scope, n=n)
