"""Training steps of small random models, timed: from them the parts of a step that have no product of their
own get their seconds (analysis/predict_fit.py).

Everything but the data is what a run does: the model as it is loaded, adapters, layers, loss, clipping,
AdamW. Sizes differ from each other in what a term counts, so that each term shows in some of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from numpy.typing import NDArray

from trueup.analysis.predict_fit import Timed
from trueup.analysis.predict_terms import (
    MicroBatchWork,
    ProductTable,
    Tuning,
    step_terms,
)
from trueup.data import MicroBatch
from trueup.device import Device
from trueup.recipe import Recipe
from trueup.recipe.models import DataSection, ModelSection, TuneSection
from trueup.schema import AttentionMode

from .optimizer import make_optimizer
from .session import FUSED_ADAMW
from .step_work import counted

if TYPE_CHECKING:
    from trueup.model.batch import BatchTensors
    from trueup.model.load import LoadedModel
    from trueup.model.precision import Precision

UNTIMED, FEWEST, MOST = 1, 4, 12  # steps of each probe
READY_TOKENS = 256  # of a micro-batch that attention and head are made ready for, to see what it takes
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class ProbeModel:
    """Sizes of a random Llama."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    tied: bool = False


@dataclass(frozen=True)
class Asked:
    """One step to time: micro-batches of `rows` rows, each full of examples of these lengths, of which the
    last `supervised` part carries loss."""

    rows: int
    lengths: tuple[int, ...]
    supervised: float = 0.5
    micro_batches: int = 1

    @property
    def width(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Probe:
    model: ProbeModel
    tune: TuneSection
    steps: tuple[Asked, ...]


def _lora(rank: int, targets: tuple[str, ...] = ATTENTION) -> TuneSection:
    return TuneSection(method="lora", rank=rank, alpha=2 * rank, targets=targets)


FULL = TuneSection(method="full")
_SMALL, _TALL = ProbeModel(64, 2, 4, 2, 176, 512), ProbeModel(128, 10, 2, 1, 352, 512)
_MIDDLE, _WORDY = ProbeModel(256, 4, 8, 2, 704, 4096), ProbeModel(192, 2, 3, 1, 512, 32768, tied=True)
_WIDE, _LARGE = ProbeModel(512, 3, 4, 4, 1408, 2048), ProbeModel(768, 3, 12, 4, 2048, 16384, tied=True)

# The first are small: a short calibration ends with them.
PROBES = (
    Probe(
        _SMALL,
        _lora(4),
        (Asked(1, (32,) * 3), Asked(8, (64,) * 2, 1.0), Asked(1, (200, 40, 16), micro_batches=4)),
    ),
    Probe(
        _SMALL,
        FULL,
        (Asked(1, (60, 20, 16)), Asked(2, (256,), 1.0), Asked(1, (64,) * 2, micro_batches=4)),
    ),
    Probe(_TALL, _lora(8), (Asked(1, (64,)), Asked(1, (220, 150, 90, 52)), Asked(1, (256,) * 2, 0.2))),
    Probe(_TALL, FULL, (Asked(1, (100, 28)), Asked(1, (64,) * 4, micro_batches=2))),
    Probe(_MIDDLE, _lora(16), (Asked(1, (64,) * 4), Asked(1, (400, 300, 60), 0.2), Asked(1, (768,), 0.1))),
    Probe(
        _MIDDLE,
        FULL,
        (Asked(1, (130, 70, 56)), Asked(2, (256,)), Asked(1, (128,), micro_batches=3)),
    ),
    Probe(_WORDY, _lora(16), (Asked(1, (128,), 1.0), Asked(1, (200, 128, 100, 84), 0.3))),
    Probe(_WORDY, FULL, (Asked(1, (64,) * 4, 0.5), Asked(1, (90, 38), 0.5, micro_batches=2))),
    Probe(_LARGE, _lora(16), (Asked(1, (128,) * 2), Asked(1, (170, 130, 100, 64, 48), 0.3))),
    Probe(_LARGE, FULL, (Asked(1, (64,) * 2, 0.3), Asked(1, (96,) * 4, 0.3))),
    Probe(_WIDE, _lora(16), (Asked(1, (128,)), Asked(2, (64,) * 4, 0.2), Asked(1, (512,), 0.1))),
    Probe(_WIDE, FULL, (Asked(1, (128,) * 2), Asked(1, (120, 80, 56), micro_batches=2))),
    Probe(_MIDDLE, _lora(8, ALL_LINEAR), (Asked(2, (128,)), Asked(1, (300, 120, 60, 32), micro_batches=2))),
)
SMALL_PROBES = 4  # always timed


@dataclass(frozen=True)
class Probed:
    """`timed`: the terms and seconds of each step; `attention`: how these models attend on this device;
    `base_host_bytes`: resident memory of a process that has trained the smallest of them. `ready_bytes`: what
    it grew by when `ready_programs` products of attention and head were made ready, which is in that memory
    too; both 0 where nothing is made ready."""

    timed: tuple[Timed, ...]
    attention: AttentionMode
    base_host_bytes: int
    ready_bytes: int
    ready_programs: int


def probed_steps(
    device: Device,
    precision: Precision,
    table: ProductTable,
    *,
    budget_s: float,
    after_each: Callable[[], None],
) -> Probed:
    """Time the steps of PROBES until `budget_s` is spent, at least those of the first few models.

    `after_each` is called after every timed step: a power meter may be read there."""
    began, found = time.perf_counter(), list[Timed]()
    attention: AttentionMode = "row"
    base_host_bytes, ready = 0, (0, 0)
    for at, probe in enumerate(PROBES):
        left_s = budget_s - (time.perf_counter() - began)
        if at >= SMALL_PROBES and left_s <= 0:
            break
        model = _random_model(probe, device, precision)
        attention = "row" if model.decoder is None else "example"
        if not base_host_bytes and attention == "example":
            ready = _made_ready(model)
        share_s = max(0.0, left_s) / (len(PROBES) - at) / len(probe.steps)
        for asked in probe.steps:
            timer = _Timer(device, model, precision, probe, asked, attention)
            seconds = timer.seconds(share_s, after_each)
            terms = step_terms(model.dims, Tuning.of(probe.tune), timer.work, table)
            found.append((terms, seconds))
        base_host_bytes = base_host_bytes or psutil.Process().memory_info().rss
    return Probed(tuple(found), attention, base_host_bytes, *ready)


def _made_ready(model: LoadedModel) -> tuple[int, int]:
    """(growth of the process in bytes, products that were made ready for)"""
    from trueup.model import attention, loss

    before = psutil.Process().memory_info().rss
    model.get_ready(READY_TOKENS)
    grown = psutil.Process().memory_info().rss - before
    programs = attention.ready_products(READY_TOKENS) + loss.ready_products(READY_TOKENS, model.dims.vocab)
    return max(0, grown), programs


def _random_model(probe: Probe, device: Device, precision: Precision) -> LoadedModel:
    from trueup.model.builtin import ResolvedModel
    from trueup.model.load import load_model, with_own_decoder
    from trueup.model.quiet import silence_libraries
    from trueup.model.tiny import write_tiny

    silence_libraries()
    size = probe.model
    with TemporaryDirectory(prefix="trueup-probe-") as folder:
        write_tiny(
            Path(folder),
            tied_head=size.tied,
            hidden_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            intermediate_size=size.intermediate,
            vocab_size=size.vocab,
        )
        resolved = ResolvedModel(Path(folder), "probe", "random weights")
        loaded = load_model(resolved, probe.tune, torch_device=device.torch_device, precision=precision)
        return with_own_decoder(loaded, precision.compute_dtype)[0]


class _Timer:
    """Steps of one model over micro-batches of random tokens."""

    def __init__(
        self,
        device: Device,
        model: LoadedModel,
        precision: Precision,
        probe: Probe,
        asked: Asked,
        attention: AttentionMode,
    ) -> None:
        recipe = Recipe(model=ModelSection(path="probe"), data=DataSection(source="probe"), tune=probe.tune)
        self._device, self._model, self._precision = device, model, precision
        self._optimizer = make_optimizer(model.trainable, recipe, precision, fused=device.kind in FUSED_ADAMW)
        self._clip = recipe.optimizer.clip or math.inf
        made = [random_micro_batch(asked, model.dims.vocab, seed) for seed in range(asked.micro_batches)]
        self._batches = [_to_device(one, device) for one in made]
        self._supervised = sum(one.supervised_tokens for one in made)
        self.work: tuple[MicroBatchWork, ...] = tuple(_work(one, asked, attention) for one in made)

    def seconds(self, budget_s: float, after_each: Callable[[], None]) -> float:
        """A step in peace: three of four took longer. Neighbours only ever add to it."""
        for _ in range(UNTIMED):
            self._step()
        times = list[float]()
        stop = time.perf_counter() + budget_s
        while len(times) < FEWEST or (time.perf_counter() < stop and len(times) < MOST):
            start = time.perf_counter()
            self._step()
            times.append(time.perf_counter() - start)
            after_each()
        return sorted(times)[(len(times) - 1) // 4]

    def _step(self) -> None:
        import torch

        from trueup.model.batch import batch_loss

        losses = []
        for batch in self._batches:
            loss = batch_loss(self._model, batch, self._precision)
            (loss / self._supervised).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        math.fsum(float(loss) for loss in losses)
        parameters = [parameter for _, parameter in self._model.trainable]
        float(torch.nn.utils.clip_grad_norm_(parameters, self._clip))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._device.synchronize()


def random_micro_batch(asked: Asked, vocab: int, seed: int) -> MicroBatch:
    """Rows full of examples, on random tokens."""
    shape = (asked.rows, asked.width)
    within_T = np.concatenate([np.arange(length) for length in asked.lengths])
    segment_T = np.repeat(np.arange(1, len(asked.lengths) + 1), asked.lengths)
    length_T = np.repeat(asked.lengths, asked.lengths)
    first_T = np.maximum(1, np.round(length_T * (1 - asked.supervised)))
    return MicroBatch(
        tokens_BT=np.random.default_rng(seed).integers(0, vocab, shape, dtype=np.int64),
        positions_BT=np.tile(within_T, (asked.rows, 1)),
        segments_BT=np.tile(segment_T.astype(np.int32), (asked.rows, 1)),
        loss_BT=np.tile(within_T >= first_T, (asked.rows, 1)),
        example_ids=(),
        attention_sum_sq=asked.rows * sum(length * length for length in asked.lengths),
    )


def _work(batch: MicroBatch, asked: Asked, attention: AttentionMode) -> MicroBatchWork:
    rows, width = batch.shape
    head = batch.supervised_tokens
    lengths = list(asked.lengths) * rows
    return counted(lengths, rows=rows, width=width, supervised=head, head=head, attention=attention)


def _to_device(batch: MicroBatch, device: Device) -> BatchTensors:
    from trueup.model.batch import BatchTensors

    return BatchTensors.from_arrays(
        batch.tokens_BT, batch.positions_BT, batch.segments_BT, *batch.targets(), device=device.torch_device
    )


def assembly_seconds(repeats: int = 20) -> tuple[float, float]:
    """(seconds of an example, of a token) while a batch is put together on the host, from batches of many
    short and of few long examples."""
    from trueup.data import PlannedBatch, assemble

    seconds, shapes = list[float](), ((64, 16), (4, 2048))
    for count, length in shapes:
        table: Any = _SyntheticTable(count, length)
        planned = PlannedBatch(tuple((n,) for n in range(count)), length, count * length)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            assemble(table, planned, 0).targets()
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    (many, short), (few, long) = shapes
    matrix = np.array([[many, many * short], [few, few * long]], dtype=np.float64)
    example_s, token_s = np.linalg.solve(matrix, np.array(seconds))
    return max(0.0, float(example_s)), max(0.0, float(token_s))


class _SyntheticTable:
    """As much of a TokenTable as `assemble` reads."""

    def __init__(self, count: int, length: int) -> None:
        self.lengths = np.full(count, length, dtype=np.int32)
        self._tokens, self._loss = np.ones(length, dtype=np.int32), np.ones(length, dtype=np.bool_)

    def example(self, i: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        return self._tokens, self._loss
