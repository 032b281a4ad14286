"""What a step of a recipe will take, before it is run: time, memory, communication, dollars.

Twice: at the datasheet's ceilings, which is the least it can take, and from what `trueup calibrate` measured
of this machine, which is what it is expected to take. Every line is predicted, with its arithmetic, or
unavailable with the reason: no constant is borrowed from another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from trueup.catalog import Accelerator
from trueup.schema import Calibration, Measurement, Prediction, unavailable

from . import flops, statistics
from .memory_plan import memory_lines
from .names import P99_NEEDS
from .predict_fit import seconds_of
from .predict_job import Job, Lines, StepWork, predicted
from .predict_lines import LINES
from .predict_memory import host_or_device
from .predict_products import Product, ProductTable
from .predict_terms import head_weight_sizes, sizes_of, step_terms

TIMES = ("step_s", "compute_s", "padding_s", "step_p99_s")
# The terms of predict_terms.TERMS, gathered into what a reader knows.
_GATHERED = {
    "linear layers": ("products",),
    "adapters": ("adapters",),
    "head": ("head", "head_words"),
    "attention": ("scores", "scores_again", "score_numbers", "groups"),
    "norms, activations, copies": ("hidden", "queries", "keys", "feed"),
    "optimizer": ("trained", "trained_again", "head_trained", "tensors"),
    "calls": ("layers_lora", "layers_full", "micro_batches", "steps"),
}
_NEW_SIZES = "products of sizes not met before"
_OPTIMIZER_NUMBERS = 7  # read weight, gradient and two moments; write weight and moments


@dataclass(frozen=True)
class _Timed:
    """Seconds of each step without communication and data; what the seconds are made of, in words."""

    seconds: list[float]
    how: str


def by_datasheet(job: Job, chip: Accelerator | None, platform: str) -> Prediction:
    """At the chip's published peak rate and bandwidth: no step takes less. A chip that the catalog does not
    hold, as a CPU, has no such ceilings."""
    lines = dict(host_or_device(job, None, host=chip is None))
    timed = _datasheet_times(job, chip, platform)
    communication = _ring(job, chip)
    no_data = unavailable("s", "no datasheet says how fast a host puts batches together")
    watts = unavailable("W", "the catalog does not hold this device")
    if chip is not None and chip.power_w is None:
        watts = unavailable("W", f"{chip.power.reason or 'not published'} ({chip.power.source})")
    elif chip is not None:
        watts = unavailable(
            "W", f"{chip.power_w:g} W is the chip's limit ({chip.power.source}), not what a step draws"
        )
    lines |= _times(job, timed, communication, no_data) | {"power_w": watts}
    return Prediction(basis="datasheet", platform=platform, lines=_complete(lines | _money(job, lines)))


def by_calibration(job: Job, calibration: Calibration | None, *, host: bool, platform: str) -> Prediction:
    """From the parts that were timed on this machine. `host`: tensors are in the process's own memory."""
    timed = _calibrated_times(job, calibration)
    communication = unavailable("s", "no collective has been calibrated")
    if job.ranks == 1:
        communication = predicted(0.0, "s", "one device: nothing to reduce")
    lines = dict(host_or_device(job, calibration, host=host))
    lines |= _times(job, timed, communication, _assembly(job, calibration))
    watts = calibration.measurements.get("power_w") if calibration else None
    if watts is not None and watts.value is not None:
        lines["power_w"] = predicted(watts.value, "W", f"as calibrated: {watts.method}")
    else:
        reason = watts.reason if watts is not None and watts.reason else "power was not calibrated"
        lines["power_w"] = unavailable("W", reason)
    return Prediction(basis="calibrated", platform=platform, lines=_complete(lines | _money(job, lines)))


# --- seconds ------------------------------------------------------------------------------------------------


def _datasheet_times(job: Job, chip: Accelerator | None, platform: str) -> _Timed | str:
    if chip is None:
        return f"the catalog does not hold the chip of {platform}, so it has no published peak"
    peak, bandwidth = chip.bf16_flops_per_s, chip.bandwidth_bytes_per_s
    if job.policy == "fp32":
        return "the catalog has peak rates of bf16 products alone, and this precision policy is fp32"
    if peak is None or bandwidth is None:
        missing = chip.bf16_dense if peak is None else chip.bandwidth
        return f"{missing.reason} ({missing.source})"
    seconds = [
        max(max(_flop(job, own) / peak, _traffic(job, own) / bandwidth) for own in _shared(job, step))
        for step in job.steps
    ]
    how = (
        f"model FLOPs at {chip.bf16_dense.value:g} {chip.bf16_dense.unit}, or weights and optimizer state at "
        f"{chip.bandwidth.value:g} {chip.bandwidth.unit} where that takes longer ({chip.title}, "
        f"{chip.bf16_dense.source}, {chip.bf16_dense.as_of})"
    )
    return _Timed(seconds, how)


def _flop(job: Job, own: StepWork) -> float:
    """Of one rank's micro-batches, padding included, a second forward pass where layers are checkpointed."""
    total = 0.0
    for one in own:
        total += flops.training_flops(
            job.dims, tokens=one.tokens, head_rows=one.head_rows, attention_sum_sq=one.attention_sum_sq
        )
        if job.checkpointing:
            total += flops.recomputed_flops(
                job.dims, tokens=one.tokens, attention_sum_sq=one.attention_sum_sq
            )
    return total


def _traffic(job: Job, own: StepWork) -> float:
    """Bytes that cannot be avoided: every weight once forward and once backward in each micro-batch, and the
    optimizer's numbers once a step."""
    weights = memory_lines(job.memory)["weights_bytes"].value or 0.0
    state = _OPTIMIZER_NUMBERS * job.memory.trained_bytes * job.dims.trainable_parameters
    return 2 * weights * len(own) + state


def _calibrated_times(job: Job, calibration: Calibration | None) -> _Timed | str:
    if calibration is None:
        return "this platform has not been calibrated: run `trueup calibrate` on it"
    rates = calibration.rates.get(job.policy)
    if rates is None:
        known = ", ".join(calibration.rates) or "no policy"
        return (
            f"calibrated for {known}, and the steps are in {job.policy}: run "
            f"`trueup calibrate --precision {job.policy}`"
        )
    ratio = 1.0
    if job.compiled_ratio is not None:
        if job.compiled_ratio.kind != "measured" or job.compiled_ratio.value is None:
            return "the plan compiles, and no earlier run of this model here tells what compiling gains"
        ratio = job.compiled_ratio.value
    elif rates.attention != job.memory.attention:
        return (
            f"attention of this model goes by {job.memory.attention}, and what was calibrated by "
            f"{rates.attention}"
        )
    table = ProductTable(rates.products)
    seconds, parts = list[float](), dict.fromkeys((*_GATHERED, _NEW_SIZES), 0.0)
    for step, compiling_s in zip(job.steps, _new_sizes(job, table), strict=True):
        new_s = rates.new_width_s * compiling_s
        shares = [
            step_terms(job.dims, job.tuning, own, table, checkpointing=job.checkpointing)
            for own in _shared(job, step)
        ]
        slowest = max(shares, key=lambda terms: seconds_of(terms, rates.term_s))
        seconds.append(ratio * seconds_of(slowest, rates.term_s) + new_s)
        parts[_NEW_SIZES] += new_s
        for words, names in _GATHERED.items():
            parts[words] += ratio * fsum(
                slowest.get(name, 0.0) * rates.term_s.get(name, 0.0) for name in names
            )
    return _Timed(seconds, _in_words(parts, len(seconds), rates.probes))


def _new_sizes(job: Job, table: ProductTable) -> list[float]:
    """Seconds of each step in which a CPU's library compiles for sizes of products it has not met. In a long
    plan, of which some steps are counted, each size is met once all the same."""
    if job.compiled_ratio is not None:
        return [0.0] * len(job.steps)
    met = {size for tokens in job.warmed_tokens for size in sizes_of(job.dims, job.tuning, tokens)}
    share = len(job.steps) / max(job.planned or 0, len(job.steps), 1)
    found = []
    for step in job.steps:
        asked = set[Product]()
        for one in step:
            asked |= sizes_of(job.dims, job.tuning, one.tokens)
            asked |= head_weight_sizes(job.dims, job.tuning, one)
        new = asked - met
        met |= new
        found.append(share * fsum(map(table.first_seconds, new)) / min(job.ranks, len(step)))
    return found


def _in_words(parts: Mapping[str, float], steps: int, probes: int) -> str:
    shown = [f"{words} {total / steps:.3g} s" for words, total in parts.items() if total > 0]
    return f"{' + '.join(shown)}; parts timed by `trueup calibrate` ({probes} steps)"


def _shared(job: Job, step: StepWork) -> list[StepWork]:
    """The micro-batches of each rank that has some."""
    return [own for rank in range(job.ranks) if (own := step[rank :: job.ranks])]


def _times(job: Job, timed: _Timed | str, communication: Measurement, data: Measurement) -> Lines:
    """The seconds of a mean step and their parts. Padding takes its share of the processed tokens, as on the
    bill."""
    beside = {"communication_s": communication, "data_wait_s": data, "compile_s": job.compiles}
    if isinstance(timed, str) or not timed.seconds:
        why = timed if isinstance(timed, str) else "the plan has no step"
        none = {name: unavailable(LINES[name], why) for name in (*TIMES, "useful_tokens_per_s")}
        return beside | none
    mean_s = fsum(timed.seconds) / len(timed.seconds)
    useful, processed = (
        fsum(fsum(getattr(one, name) for one in step) for step in job.steps) for name in ("useful", "tokens")
    )
    padding = 1 - useful / processed if processed else 0.0
    over = f"mean of {job.counted} planned steps"
    found = {
        "compute_s": predicted((1 - padding) * mean_s, "s", f"{over}: {timed.how}; padding left out"),
        "padding_s": predicted(padding * mean_s, "s", f"{padding:.1%} of the processed tokens are padding"),
        "step_p99_s": _p99(job, timed.seconds, communication),
    }
    if communication.value is None:
        no_total = {
            name: unavailable(LINES[name], f"communication is not known: {communication.reason}")
            for name in ("step_s", "useful_tokens_per_s")
        }
        return beside | found | no_total
    step_s = mean_s + communication.value
    whole_s = step_s + (data.value or 0.0)
    wait = "" if data.value is not None else ", the wait for data left out"
    rate = useful / len(job.steps) / whole_s
    found["step_s"] = predicted(step_s, "s", "compute, padding and communication")
    found["useful_tokens_per_s"] = predicted(
        rate, "tokens/s", f"{useful / len(job.steps):,.1f} useful tokens in {whole_s:.4g} s{wait}"
    )
    return beside | found


def _p99(job: Job, seconds: Sequence[float], communication: Measurement) -> Measurement:
    needed = P99_NEEDS
    if len(seconds) < needed <= (job.planned or 0):
        why = f"{job.counted} planned steps were counted, since each has many micro-batches"
        return unavailable("s", f"{why}; a 99th percentile needs {needed}")
    if len(seconds) < needed:
        return unavailable("s", f"the plan has {len(seconds)} steps; a 99th percentile needs {needed}")
    how = f"over {job.counted} planned steps: their shapes differ; what disturbs a machine is not in it"
    more = communication.value or 0.0
    return predicted(statistics.percentile(seconds, 99) + more, "s", how)


def _ring(job: Job, chip: Accelerator | None) -> Measurement:
    """Ring all-reduce of the gradients: 2(p-1)α + 2(p-1)/p·n/β."""
    if job.ranks == 1:
        return predicted(0.0, "s", "one device: nothing to reduce")
    if chip is None or chip.link.in_base_units is None:
        reason = "the catalog does not hold this device" if chip is None else str(chip.link.reason)
        return unavailable("s", f"no rate of the links between devices: {reason}")
    size = job.memory.trained_bytes * job.dims.trainable_parameters
    value = ring_seconds(job.ranks, size, chip.link.in_base_units)
    how = (
        f"ring all-reduce, 2(p-1)/p x n/β with p = {job.ranks}, n = {size / 1e6:,.4g} MB, β = "
        f"{chip.link.value:g} {chip.link.unit} ({chip.link.source}); latency is not published and left out"
    )
    return predicted(value, "s", how)


def ring_seconds(ranks: int, size_bytes: float, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Of a ring all-reduce: 2(p-1)α + 2(p-1)/p·n/β."""
    return 2 * (ranks - 1) * latency_s + 2 * (ranks - 1) / ranks * size_bytes / bytes_per_s


def _assembly(job: Job, calibration: Calibration | None) -> Measurement:
    found = {} if calibration is None else calibration.measurements
    example, token = (found.get(f"assemble_{of}_s") for of in ("example", "token"))
    if example is None or token is None or example.value is None or token.value is None or not job.steps:
        return unavailable("s", "putting batches together was not calibrated")
    count = len(job.steps)
    examples, tokens = (
        fsum(fsum(getattr(one, name) for one in step[:: job.ranks]) for step in job.steps) / count
        for name in ("examples", "tokens")
    )
    how = f"{examples:,.1f} examples x {example.value:.3g} s + {tokens:,.0f} tokens x {token.value:.3g} s"
    return predicted(examples * example.value + tokens * token.value, "s", how)


# --- money -------------------------------------------------------------------------------------------------


def _money(job: Job, lines: Mapping[str, Measurement]) -> Lines:
    name = "usd_per_million_useful_tokens_steady"
    rate = lines["useful_tokens_per_s"]
    if job.price is None:
        return {name: unavailable(LINES[name], job.no_price)}
    if rate.value is None or rate.value <= 0:
        return {name: unavailable(LINES[name], rate.reason or "no useful token is trained")}
    price = job.price
    whence = f"{price.kind}: {price.source}" + (f", as of {price.as_of}" if price.as_of else "")
    how = f"${price.usd_per_hour:g} an hour ({whence}) / ({rate.value:.4g} tokens/s x 3600)"
    value = usd_per_million(price.usd_per_hour, rate.value)
    return {name: predicted(value, LINES[name], f"{how} x 1e6; the steps alone")}


def usd_per_million(usd_per_hour: float, tokens_per_s: float) -> float:
    """Dollars per hour over (tokens per second x 3600), times a million."""
    return usd_per_hour / (tokens_per_s * 3600) * 1e6


def _complete(lines: Lines) -> Lines:
    return {name: lines[name] for name in LINES}
