"""The platform profile of a device and a model: estimated from published figures, or learnt from runs.

Estimates follow from model FLOPs (flops.py) and the rate at which a device was seen to train. They rank shape
plans; they are not predictions of a run's time to the second, and every figure says where it is from.
"""

from __future__ import annotations

from trueup.catalog import accelerator_for_device_name
from trueup.schema import (
    CompileFigures,
    CompileMode,
    DeviceRules,
    Measurement,
    ModelDims,
    PlatformProfile,
    unavailable,
)

from .flops import head_row_flops, training_flops

MULTIPLES = {"cpu": 8, "cuda": 64, "neuron": 128}  # widths that fill the device's tiles
_LAB = "SmolLM2-135M, LoRA, fp32, two AVX2 cores"
# 4 x 128 tokens at 185 tokens/s, all pairs counted and the fixed part set aside
CPU_FLOPS_PER_S = 110e9
# Share of the published bf16 peak that published LoRA and pre-training runs reach.
PEAK_SHARES = {
    "cuda": (0.66, "NeMo 24.12: Llama-2-7B LoRA, 24,824 tokens/s on an H100"),
    "neuron": (0.21, "AWS: Llama-3.1-8B pre-training, 12,275 tokens/s on a trn1.32xlarge"),
}
CPU_LAYER_S = 0.003  # what a decoder layer takes, forward and backward, however few the tokens
# Compile seconds of the first shape and of each further one: of one decoder layer, and of the whole decoder.
_ONE_LAYER_S, _WHOLE_S, _LAB_LAYERS = (24.0, 13.0), (152.0, 94.0), 30
_MODES: tuple[CompileMode, ...] = ("layer", "model")
_EVALUATION_PART = 1 / 3  # forward alone, of forward and backward
# A compiled step over an eager one. On a CPU the eager one goes through layers of our own.
STEP_RATIOS = {"cpu": (1.05, "SmolLM2-135M, LoRA, two AMX cores: fp32 0.92 to 1.03, bf16 1.11 to 1.28")}
OTHER_STEP_RATIO = (0.82, f"steps were 10 to 35% faster; {_LAB}")


def estimated_profile(
    device_kind: str, device_name: str, dims: ModelDims, *, static: bool
) -> PlatformProfile:
    """What published figures say of training this model on that device. Unavailable where there are none."""
    rate = _rate(device_kind, device_name)
    return PlatformProfile(
        device_kind=device_kind,
        device_name=device_name,
        model=_named(dims),
        rules=DeviceRules(static=static, multiple=MULTIPLES.get(device_kind, 8)),
        micro_batch_s=_fixed(device_kind, dims),
        token_s=_of_flops(rate, "s/token", token_flops(dims)),
        pair_s=_of_flops(rate, "s/pair", pair_flops(dims)),
        head_row_s=_of_flops(rate, "s/row", head_row_flops(dims)),
        compile={} if static else {mode: _compile_figures(mode, dims, device_kind) for mode in _MODES},
    )


def token_flops(dims: ModelDims) -> float:
    """Training FLOPs of one processed token, attention scores and head left out."""
    return training_flops(dims, tokens=1, head_rows=0, attention_sum_sq=0)


def pair_flops(dims: ModelDims) -> float:
    """Training FLOPs of one query with one key over all layers. All pairs of a row, or of an example, are
    computed, the masked ones too."""
    return training_flops(dims, tokens=0, head_rows=0, attention_sum_sq=1, causal=False)


def _rate(device_kind: str, device_name: str) -> Measurement:
    """Model FLOP/s of eager training."""
    if device_kind == "cpu":
        return _estimate(CPU_FLOPS_PER_S, "FLOP/s", _LAB)
    chip = accelerator_for_device_name(device_name)
    if chip is None or chip.bf16_flops_per_s is None or device_kind not in PEAK_SHARES:
        return unavailable("FLOP/s", f"the catalog has no peak rate for {device_name}")
    share, source = PEAK_SHARES[device_kind]
    return _estimate(
        share * chip.bf16_flops_per_s, "FLOP/s", f"{share:.0%} of {chip.title}'s bf16 peak; {source}"
    )


def _fixed(device_kind: str, dims: ModelDims) -> Measurement:
    if device_kind == "cpu":
        return _estimate(dims.layers * CPU_LAYER_S, "s", f"by layers, {_LAB}")
    return unavailable("s", f"no published figure for {device_kind}; learnt from runs")


def _of_flops(rate: Measurement, unit: str, flops: float) -> Measurement:
    if rate.value is None:
        return rate.model_copy(update={"unit": unit})
    return _estimate(flops / rate.value, unit, f"{flops:.3g} FLOP at {rate.value:.3g} FLOP/s ({rate.method})")


def _compile_figures(mode: CompileMode, dims: ModelDims, device_kind: str) -> CompileFigures:
    """In mode `layer` one layer is compiled for all; in mode `model` each further one adds its share."""
    more = dims.layers - 1 if mode == "model" else 0
    first, further = (
        one + more * (whole - one) / (_LAB_LAYERS - 1)
        for one, whole in zip(_ONE_LAYER_S, _WHOLE_S, strict=True)
    )
    ratio, whence = STEP_RATIOS.get(device_kind, OTHER_STEP_RATIO)
    how = f"by layers, {_LAB}" if mode == "model" else _LAB
    return CompileFigures(
        first_shape_s=_estimate(first, "s", how),
        further_shape_s=_estimate(further, "s", how),
        evaluation_shape_s=_estimate(further * _EVALUATION_PART, "s", f"forward alone is a third; {how}"),
        step_ratio=_estimate(ratio, "1", whence),
    )


def _estimate(value: float, unit: str, method: str) -> Measurement:
    return Measurement(value=value, unit=unit, kind="estimated", method=method)


def _named(dims: ModelDims) -> str:
    tuned = "LoRA" if dims.lora_parameters else "full fine-tuning"
    return f"{dims.parameters / 1e6:.3g}M parameters, {tuned}"
