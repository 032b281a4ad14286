"""Training steps of small random models, timed: from them the parts of a step that have no product of their
own get their seconds (analysis/predict_fit.py).

Everything but the data is what a run does: the model as it is loaded, adapters, layers, loss, clipping,
AdamW. Sizes differ from each other in what a term counts, so that each term shows in some of them.
"""

from __future__ import annotations

import gc
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
from trueup.analysis.predict_products import Product, ProductTable
from trueup.analysis.predict_terms import MicroBatchWork, Tuning, sizes_of, step_terms
from trueup.data import MicroBatch
from trueup.device import Device, settled, settled_resident_bytes
from trueup.recipe import Recipe
from trueup.recipe.models import DataSection, ModelSection, TuneSection
from trueup.schema import AttentionMode

from .optimizer import make_optimizer
from .session import FUSED_ADAMW
from .step_work import counted

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from trueup.model.batch import BatchTensors
    from trueup.model.load import LoadedModel
    from trueup.model.precision import Precision

READY_TOKENS = 256  # of a micro-batch that attention is made ready for, to see what it takes
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
WIDENED = (2, 3, 4, 5)  # of PROBES: small and middling, LoRA and all weights
NEW_WIDTHS = (456, 408, 488, 424, 472, 440)  # that no probe has


@dataclass(frozen=True)
class NewWidth:
    """The first step of a width: the sizes of products that come with it, seconds beyond a second step."""

    sizes: frozenset[Product]
    seconds: float


class ProbedSteps:
    """The steps of PROBES, timed in rounds, so that each meets every state that a shared machine is in
    meanwhile. `base_host_bytes`: resident memory of a process that has trained the smallest of them, without
    the programs of attention. `attention_program_bytes`: what the process grew by with each product of
    attention that was made ready for that one, before there are places to fill; 0 where none is. `attention`:
    how these models attend. `new_widths`: on a host, some widths that the models of WIDENED had not met."""

    def __init__(self, device: Device, precision: Precision, *, budget_s: float) -> None:
        """Make the models and do each step once, until `budget_s` is spent; at least those of the first."""
        self.attention: AttentionMode = "row"
        self.attention_program_bytes = 0.0
        self.base_host_bytes = 0
        self.new_widths = list[NewWidth]()
        self._timers = list[_Timer]()
        self._seconds = list[list[float]]()
        stop = time.perf_counter() + budget_s
        for at, probe in enumerate(PROBES):
            if at >= SMALL_PROBES and time.perf_counter() > stop:
                break
            widths = NEW_WIDTHS if time.perf_counter() < stop else NEW_WIDTHS[:1]
            widened = at in WIDENED and device.kind == "cpu"
            self._add(probe, device, precision, widths if widened else ())

    def round(self, after_each: Callable[[], None]) -> None:
        """Time each step once. `after_each`: called after every one; a power meter may be read there."""
        for timer, seconds in zip(self._timers, self._seconds, strict=True):
            seconds.append(timer.seconds())
            after_each()

    def timed(self, table: ProductTable) -> tuple[Timed, ...]:
        """The terms and seconds of each step, after at least one round."""
        return tuple(
            (timer.terms(table), settled(seconds))
            for timer, seconds in zip(self._timers, self._seconds, strict=True)
        )

    def _add(self, probe: Probe, device: Device, precision: Precision, widths: tuple[int, ...]) -> None:
        model = _random_model(probe, device, precision)
        self.attention = "row" if model.decoder is None else "example"
        grown = 0.0
        if self.attention == "example" and not self.base_host_bytes:
            self.attention_program_bytes, grown = _made_ready(model, precision)
        optimizer = _optimizer(model, probe, device, precision)
        for asked in probe.steps:
            timer = _Timer(device, model, precision, probe, asked, self.attention, optimizer)
            timer.seconds()
            self._timers.append(timer)
            self._seconds.append([])
        self.base_host_bytes = self.base_host_bytes or int(psutil.Process().memory_info().rss - grown)
        for width in widths:
            # Attention and head meet nothing new: their groups were made ready, their rows are as many.
            asked = Asked(1, (256, 128, width - 384), 0.1)
            timer = _Timer(device, model, precision, probe, asked, self.attention, optimizer)
            self.new_widths.append(_new_width(timer, model, probe, width))


def _new_width(timer: _Timer, model: LoadedModel, probe: Probe, width: int) -> NewWidth:
    first_s = timer.one_step()
    sizes = sizes_of(model.dims, Tuning.of(probe.tune), width)
    return NewWidth(frozenset(sizes), first_s - timer.seconds())


def _made_ready(model: LoadedModel, precision: Precision) -> tuple[float, float]:
    """Bytes that the process grows by with each product of attention that is made ready, and with all."""
    import torch

    from trueup.model import attention

    dims, dtype = model.dims, getattr(torch, precision.compute_dtype)
    gc.collect()  # what loading left behind
    before = settled_resident_bytes()
    heads = (dims.heads, dims.kv_heads)
    attention.get_ready(READY_TOKENS, heads=heads, head_dim=dims.head_dim, dtype=dtype)
    grown = max(0.0, float(settled_resident_bytes() - before))
    return grown / attention.ready_products(READY_TOKENS), grown


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


def _recipe(probe: Probe) -> Recipe:
    return Recipe(model=ModelSection(path="probe"), data=DataSection(source="probe"), tune=probe.tune)


def _optimizer(model: LoadedModel, probe: Probe, device: Device, precision: Precision) -> Optimizer:
    fused = device.kind in FUSED_ADAMW
    return make_optimizer(model.trainable, _recipe(probe), precision, fused=fused)


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
        optimizer: Optimizer,
    ) -> None:
        self._device, self._model, self._precision, self._probe = device, model, precision, probe
        self._optimizer, self._clip = optimizer, _recipe(probe).optimizer.clip or math.inf
        made = [random_micro_batch(asked, model.dims.vocab, seed) for seed in range(asked.micro_batches)]
        self._batches = [_to_device(one, device) for one in made]
        self._supervised = sum(one.supervised_tokens for one in made)
        self.work: tuple[MicroBatchWork, ...] = tuple(_work(one, asked, attention) for one in made)

    def seconds(self) -> float:
        """Of a step after another of the same model, as in a run: what it needs is near."""
        self._step()
        return self.one_step()

    def one_step(self) -> float:
        start = time.perf_counter()
        self._step()
        return time.perf_counter() - start

    def terms(self, table: ProductTable) -> dict[str, float]:
        """What a step is made of."""
        return step_terms(self._model.dims, Tuning.of(self._probe.tune), self.work, table)

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
