"""What no claim can get round: FLOPs a token against peak rates, weights against bandwidth, bytes against
memory.

Every doubt is settled in the claim's favour, so that `impossible` is certain: datasheet peaks, dense; LoRA
where the tuning is not said, without its adapters; no attention where the length is not; the ends of the
figures' rounding that suit it. Formulas are those of flops.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from trueup.catalog import Accelerator, accelerators, instances
from trueup.catalog.models import PublishedModel, published_model, published_models
from trueup.schema import InputError, Measurement, ModelDims
from trueup.schema.claim import DecodingClaim, MemoryClaim, State, TrainingClaim, Verdict

from . import flops
from .audit_formula import Figures
from .audit_interval import Interval
from .audit_quantity import Quantity, four_digits, scaled
from .audit_units import dims_text, no_dimension, read_unit
from .audit_value import UndecidedError

# The best published training of dense models uses about 40 to 70% of the peak; large matrix products alone,
# 80 to 90%. Reading memory in one stream does better.
IMPLAUSIBLE_SHARE_OF_PEAK = 0.8
IMPLAUSIBLE_SHARE_OF_BANDWIDTH = 0.95
_STATE_WORDS: dict[State, str] = {
    "mixed": "in mixed precision",
    "fp32": "in fp32",
    "bf16": "all in bf16",
}


@dataclass(frozen=True)
class Limit:
    """What a claim needs beside what there is, and what follows from it."""

    verdict: Verdict
    reason: str
    needed: Measurement
    limit: Measurement | None
    sources: tuple[str, ...]

    @property
    def used_share(self) -> Measurement | None:
        if self.limit is None or not self.limit.value or self.needed.value is None:
            return None
        share = self.needed.value / self.limit.value
        return Measurement(value=share, unit="1", kind="derived", method="needed / limit", scope="node")


@dataclass(frozen=True)
class _Chips:
    """Some chips of one kind."""

    chip: Accelerator
    number: Interval
    words: str

    @property
    def most(self) -> float:
        return float(self.number.high)


def training_limit(claim: TrainingClaim, said: Quantity, figures: Figures) -> Limit:
    """Training rate against FLOPs a token and the chips' dense peak. UndecidedError where a figure is not
    published, InputError where the claim says no rate."""
    model, chips = _model(claim.model), _chips(claim.on, claim.count, figures)
    figure = chips.chip.fp8_dense if claim.precision == "fp8" else chips.chip.bf16_dense
    peak_each = figure.in_base_units
    if peak_each is None:
        raise UndecidedError(f"no {claim.precision} peak of {chips.chip.title} is known: {figure.reason}")
    rate = _training_rate(claim, said, figures)
    dims = _dims(model, trained=claim.tune == "full")
    length = 0.0 if claim.sequence is None else float(_of(claim.sequence, "token", figures).low)
    per_token = partial(flops.training_flops, dims, tokens=1, attention_sum_sq=length)
    needed, peak = float(rate.middle) * per_token(head_rows=1), peak_each * chips.most
    if float(rate.low) * per_token(head_rows=0) > peak:  # a token without loss need not go through the head
        verdict: Verdict = "impossible"
    else:
        verdict = "implausible" if needed > IMPLAUSIBLE_SHARE_OF_PEAK * peak else "possible"
    tuning = {"full": "all parameters", "lora": "LoRA", None: "LoRA, which needs the least"}[claim.tune]
    attention = f"causal attention over {length:,.0f}" if length else "attention left out"
    reason = (
        f"{four_digits(float(rate.middle))} tokens/s at {scaled(per_token(head_rows=1), 'FLOP')} a token "
        f"({tuning}, {attention}) are {scaled(needed, 'FLOP/s')}: {needed / peak:.1%} of the "
        f"{scaled(peak, 'FLOP/s')} that {chips.words} can do at most in dense {claim.precision}"
    )
    return Limit(
        verdict,
        reason,
        _needed(needed, "FLOP/s", "rate x training FLOPs a token"),
        _limit(peak, "FLOP/s", f"{figure.source}, {figure.as_of}"),
        (_source(model), f"{chips.chip.title}: {figure.source}, {figure.as_of}"),
    )


def decoding_limit(claim: DecodingClaim, said: Quantity, figures: Figures) -> Limit:
    """One sequence's decoding rate against reading every matmul weight once a token."""
    model, chips = _model(claim.model), _chips(claim.on, claim.count, figures)
    figure = chips.chip.bandwidth
    bandwidth_each = figure.in_base_units
    if bandwidth_each is None:
        raise UndecidedError(f"no memory bandwidth of {chips.chip.title} is known: {figure.reason}")
    _require(said, "token/s", "a decoding claim says a rate, such as 120 tokens/s")
    size = float(_of(claim.bytes_per_parameter, "", figures).low)
    weights, bandwidth = flops.matmul_parameters(_dims(model)) * size, bandwidth_each * chips.most
    rate = said.interval
    if float(rate.low) * weights > bandwidth:
        verdict: Verdict = "impossible"
    else:
        near = float(rate.middle) * weights > IMPLAUSIBLE_SHARE_OF_BANDWIDTH * bandwidth
        verdict = "implausible" if near else "possible"
    needed = float(rate.middle) * weights
    reason = (
        f"each token of one sequence reads {scaled(weights, 'B')} of weights, so {said.text} need "
        f"{scaled(needed, 'B/s')}: {needed / bandwidth:.1%} of the {scaled(bandwidth, 'B/s')} of "
        f"{chips.words}, which allow {four_digits(bandwidth / weights)} tokens/s"
    )
    return Limit(
        verdict,
        reason,
        _needed(needed, "bytes/s", "rate x bytes of matmul weights"),
        _limit(bandwidth, "bytes/s", f"{figure.source}, {figure.as_of}"),
        (_source(model), f"{chips.chip.title}: {figure.source}, {figure.as_of}"),
    )


def memory_limit(claim: MemoryClaim, said: Quantity | None, figures: Figures) -> Limit:
    """Bytes that must be there at once, activations left out, against what is said to be enough and against
    what the chips have."""
    model = _model(claim.model)
    lines = _memory_lines(claim, model, figures)
    least = min(lines.values())
    words = "; ".join(f"{scaled(size, 'B')} {how}" for how, size in lines.items())
    sources = [_source(model)]
    verdict: Verdict = "possible"
    reasons = [f"at least {words}, activations not counted"]
    limit = None
    if said is not None:
        _require(said, "byte", "a memory claim says bytes, such as 40 GB")
        if float(said.interval.high) < least:
            verdict = "impossible"
            reasons.append(f"{said.text} cannot hold it")
    if claim.on is not None:
        chips = _chips(claim.on, claim.count, figures)
        figure = chips.chip.memory
        each = figure.in_base_units
        if each is None:
            raise UndecidedError(f"no memory of {chips.chip.title} is known: {figure.reason}")
        sources.append(f"{chips.chip.title}: {figure.source}, {figure.as_of}")
        limit = _limit(each * chips.most, "bytes", sources[-1])
        fits = least <= each * chips.most
        verdict = verdict if fits else "impossible"
        how = "fits" if fits else "does not fit, without more chips or offload to the host,"
        there = each * chips.most
        reasons.append(
            f"that {how} into the {four_digits(there / 2**30)} GiB ({scaled(there, 'B')}) of {chips.words}"
        )
    return Limit(
        verdict,
        "; ".join(reasons),
        _needed(least, "bytes", min(lines, key=lines.__getitem__)),
        limit,
        (*sources,),
    )


def published_dims(model: PublishedModel) -> ModelDims:
    """Dimensions of a catalog model, all of whose parameters are trained: a decoder without biases."""
    return _dims(model, trained=True)


def _memory_lines(claim: MemoryClaim, model: PublishedModel, figures: Figures) -> dict[str, float]:
    dims = _dims(model, trained=claim.tune == "full")
    if claim.tune == "inference":
        size = float(_of(claim.bytes_per_parameter, "", figures).low)
        return {f"at {four_digits(size)} B a parameter": dims.parameters * size}
    states: tuple[State, ...] = (claim.state,) if claim.state else ("mixed", "bf16")
    found = {}
    for state in states:
        size = flops.training_memory_bytes(dims, state=state)
        each = f"{size / dims.parameters:g} B a parameter"
        what = "AdamW" if claim.tune == "full" else "frozen weights"
        found[f"at {each} ({what} {_STATE_WORDS[state]})"] = size
    return found


def _training_rate(claim: TrainingClaim, said: Quantity, figures: Figures) -> Interval:
    """Tokens/s: said as such, or the time that so many tokens are said to take."""
    if claim.tokens is None:
        _require(said, "token/s", "a training claim says a rate such as 15,200 tokens/s, or has `tokens`")
        return said.interval
    _require(said, "s", "a training claim with `tokens` says a time, such as 47.2 min")
    if said.interval.low <= 0:
        raise InputError(f"'{said.text}' may be no time at all: nothing can be trained in that")
    return _of(claim.tokens, "token", figures) / said.interval


def _model(name: str) -> PublishedModel:
    found = published_model(name)
    if found is None:
        known = ", ".join(sorted(published_models()))
        raise UndecidedError(f"the dimensions of '{name}' are not in the catalog, which has {known}")
    return found


def _dims(model: PublishedModel, *, trained: bool = False) -> ModelDims:
    bare = ModelDims.from_config(model.config, parameters=0, trainable=0)
    embeddings = bare.hidden * bare.vocab * (1 if bare.tied_head else 2)
    norms = (2 * bare.layers + 1) * bare.hidden
    count = flops.block_matmul_parameters(bare) + embeddings + norms
    return bare.model_copy(update={"parameters": count, "trainable_parameters": count if trained else 0})


def _chips(on: str, count: str, figures: Figures) -> _Chips:
    number, name = _of(count, "", figures), on.strip().lower()
    words = four_digits(float(number.middle))
    if name in accelerators():
        return _Chips(accelerators()[name], number, f"{words} {accelerators()[name].title}")
    if name not in instances():
        raise UndecidedError(f"the catalog holds no chip and no instance named '{on}'")
    instance = instances()[name]
    if instance.chip is None:
        raise UndecidedError(f"{instance.name} has no accelerator, and no peak of its processor is published")
    if instance.chip not in accelerators():
        raise UndecidedError(f"the catalog has no figures of {instance.chip}, the chip of {instance.name}")
    chip = accelerators()[instance.chip]
    number = number * Interval.exactly(instance.chip_count)
    return _Chips(chip, number, f"{words} {instance.name} ({four_digits(float(number.middle))} {chip.title})")


def _of(formula: str, unit: str, figures: Figures) -> Interval:
    """A formula's range, which must be positive and in this unit, or in none: `4096` for `4096 token`."""
    found = figures.value(formula)
    wanted = read_unit(unit).dims
    if found.dims not in (wanted, no_dimension()):
        raise InputError(f"'{formula}' is in {dims_text(found.dims)}, not in {dims_text(wanted)}")
    if found.interval.low <= 0:
        raise InputError(f"'{formula}' must be more than zero")
    return found.interval


def _require(said: Quantity, unit: str, expected: str) -> None:
    if said.dims != read_unit(unit).dims:
        raise InputError(f"'{said.text}' is in {dims_text(said.dims)}: {expected}")
    if said.interval.middle <= 0:
        raise InputError(f"'{said.text}' is not above zero: {expected}")


def _needed(value: float, unit: str, method: str) -> Measurement:
    return Measurement(value=value, unit=unit, kind="derived", method=method, scope="node")


def _limit(value: float, unit: str, source: str) -> Measurement:
    return Measurement(value=value, unit=unit, kind="quoted", method=source, scope="node")


def _source(model: PublishedModel) -> str:
    return f"{model.title}: {model.source}, {model.as_of}"
