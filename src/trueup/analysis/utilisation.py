"""Model FLOPs of a run, and how much of the device's ceiling they use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.catalog import accelerator_for_device_name
from trueup.schema import Measurement, ModelDims, RunRecord

from . import flops
from .names import figure, missing
from .steady import steps_inside
from .totals import Totals, steps_of, totals, totals_of, world_size
from .work import NO_STEPS, no_steady

Found = dict[str, Measurement]

NO_DIMS = "the model's dimensions are not recorded, so its FLOPs are not known"
_NAMES = (
    "useful_model_flop",
    "processed_model_flop",
    "head_padding_share",
    "recompute_share",
    "mfu_useful",
    "mfu_processed",
    "mfu_useful_steady",
    "mfu_datasheet_useful",
)


def useful_flop(dims: ModelDims, sums: Totals) -> float:
    """Model FLOPs of the useful tokens; the head only on rows that carry loss."""
    return flops.training_flops(
        dims,
        tokens=sums.useful_tokens,
        head_rows=sums.supervised_tokens,
        attention_sum_sq=sums.attention_sum_sq,
    )


def of_flops(record: RunRecord, steady: Mapping[str, Any], ceiling: Measurement) -> Found:
    """Model FLOPs, the head's padding, and utilisation of the measured and of the published ceiling."""
    dims = record.header.model
    if dims is None or not record.steps:
        return {name: missing(name, NO_DIMS if dims is None else NO_STEPS) for name in _NAMES}
    sums = totals_of(record)
    found = _flop_counts(dims, sums, len(record.steps))
    found["recompute_share"] = _recompute_share(record, dims, sums, found)
    inside = totals(steps_inside(steps_of(record)[0], steady))
    useful, processed = found["useful_model_flop"].value, found["processed_model_flop"].value
    seconds = sums.training_s
    ranks = world_size(record)
    found["mfu_useful"] = _mfu("mfu_useful", useful, seconds, ceiling, ranks)
    found["mfu_processed"] = _mfu("mfu_processed", processed, seconds, ceiling, ranks)
    if inside.training_s > 0:
        steady_flop = useful_flop(dims, inside)
        found["mfu_useful_steady"] = _mfu("mfu_useful_steady", steady_flop, inside.training_s, ceiling, ranks)
    else:
        found["mfu_useful_steady"] = missing("mfu_useful_steady", no_steady(steady))
    found["mfu_datasheet_useful"] = _datasheet_mfu(record, useful, seconds, ranks)
    return found


def _flop_counts(dims: ModelDims, sums: Totals, n: int) -> Found:
    tuning = "LoRA, frozen weights at 4 FLOPs" if dims.lora_parameters else "full, weights at 6 FLOPs"
    useful = useful_flop(dims, sums)
    unused_rows = max(0, sums.head_rows - sums.supervised_tokens)
    head_padding = unused_rows * flops.head_row_flops(dims)
    processed = flops.training_flops(
        dims, tokens=sums.processed_tokens, head_rows=sums.head_rows, attention_sum_sq=sums.attention_sum_sq
    )
    method = f"PaLM formulas ({tuning}); causal attention by the sum of squared lengths"
    found = {
        "useful_model_flop": figure("useful_model_flop", useful, "derived", method, n=n),
        "processed_model_flop": figure(
            "processed_model_flop", processed, "derived", f"{method}; attention to padding left out", n=n
        ),
    }
    if useful + head_padding <= 0:
        return found | {"head_padding_share": missing("head_padding_share", "no token was trained on")}
    share = head_padding / (useful + head_padding)
    text = "FLOPs of head rows without loss, over those and the useful ones"
    return found | {"head_padding_share": figure("head_padding_share", share, "derived", text, n=n)}


def _recompute_share(record: RunRecord, dims: ModelDims, sums: Totals, counts: Found) -> Measurement:
    """Of the useful tokens' FLOPs; what padding is computed again is padding."""
    name, useful = "recompute_share", counts["useful_model_flop"].value or 0.0
    head = counts["head_padding_share"].value or 0.0
    train = record.header.recipe.get("train")
    if not (isinstance(train, Mapping) and train.get("activation_checkpointing")):
        return figure(name, 0.0, "derived", "nothing is recomputed: activation checkpointing is off")
    again = flops.recomputed_flops(dims, tokens=sums.useful_tokens, attention_sum_sq=sums.attention_sum_sq)
    done = useful / (1 - head) + again if head < 1 else 0.0
    if done <= 0:
        return missing(name, "no token was trained on")
    method = "FLOPs of the layers' second forward pass, over those, the useful ones and the head's padding"
    return figure(name, again / done, "derived", method, n=len(record.steps))


def _mfu(name: str, flop: float | None, seconds: float, ceiling: Measurement, ranks: int) -> Measurement:
    if ceiling.value is None:
        return missing(name, f"no ceiling to compare with: {ceiling.reason}")
    if flop is None or seconds <= 0 or ceiling.value <= 0:
        return missing(name, "no training seconds, FLOPs or ceiling to divide")
    method = "against this run's measured matmul ceiling" + (f" times {ranks} ranks" if ranks > 1 else "")
    return _no_more_than_one(name, flop / seconds / (ceiling.value * ranks), method)


def _no_more_than_one(name: str, value: float, method: str) -> Measurement:
    if value > 1:
        reason = (
            f"{method} it comes to {value:.3g}; no device does more than its ceiling, so the ceiling or the "
        )
        return missing(name, reason + "FLOP count does not describe this run")
    return figure(name, value, "derived", method)


def _datasheet_mfu(record: RunRecord, flop: float | None, seconds: float, ranks: int) -> Measurement:
    name = "mfu_datasheet_useful"
    device = record.header.environment.get("device")
    if not isinstance(device, Mapping) or not device.get("name"):
        return missing(name, "the device's name is not recorded")
    if device.get("kind") == "cpu":
        return missing(name, "there is no published matmul rate for this CPU in the catalog")
    chip = accelerator_for_device_name(str(device["name"]))
    if chip is None or chip.bf16_flops_per_s is None:
        return missing(name, f"the catalog does not hold the chip '{device['name']}'")
    if flop is None or seconds <= 0:
        return missing(name, NO_STEPS)
    peak = chip.bf16_dense
    method = f"against {peak.value:g} {peak.unit} dense BF16 of {chip.title} ({peak.source}, {peak.as_of})"
    return _no_more_than_one(name, flop / seconds / (chip.bf16_flops_per_s * ranks), method)
