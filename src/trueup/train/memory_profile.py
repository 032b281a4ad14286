"""Training steps, recorded: what holds memory in the forward pass, in the backward pass and in the update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trueup.data import MicroBatch
from trueup.recipe import Recipe
from trueup.recipe.models import DataSection, ModelSection
from trueup.schema.memory_trace import MemoryTrace

from .optimizer import make_optimizer
from .session import FUSED_ADAMW

if TYPE_CHECKING:
    import torch

    from trueup.model.batch import BatchTensors
    from trueup.model.load import LoadedModel
    from trueup.model.memory_profile import MemoryRecorder
    from trueup.model.memory_profile_where import Whereabouts
    from trueup.model.precision import Precision

STEPS = (
    2  # the optimizer's moments are there from the first update on: the second step is what all others are
)


@dataclass(frozen=True)
class TrainingAsk:
    """A step of `micro_batches`, each of `rows` rows, one example of `length` tokens in each, all of it
    supervised."""

    rows: int
    length: int
    micro_batches: int = 1


def record_training(loaded: LoadedModel, precision: Precision, ask: TrainingAsk) -> MemoryTrace:
    """On random tokens. Nothing of the model's weights is promised to be as it was."""
    from trueup.model.memory_profile import MemoryRecorder, weights_of
    from trueup.model.memory_profile_where import Whereabouts

    where = Whereabouts(loaded.base)
    device = loaded.head_weight.device
    recorder = MemoryRecorder(device.type, where)
    recorder.claim(weights_of(loaded.module), "weights")
    if loaded.decoder is not None:  # in the products' precision, where that is another
        recorder.claim([("lm_head", loaded.decoder.head_weight_VH)], "weights")
    batches = [_batch(ask, loaded.dims.vocab, seed, device) for seed in range(ask.micro_batches)]
    recorder.claim([("batch", one) for batch in batches for one in vars(batch).values()], "activations")
    recipe = Recipe(model=ModelSection(path="."), data=DataSection(source="."), tune=loaded.section)
    optimizer = make_optimizer(loaded.trainable, recipe, precision, fused=device.type in FUSED_ADAMW)
    clip = recipe.optimizer.clip or math.inf
    step = _Step(where.shown(loaded), precision, optimizer, clip, where, recorder)
    with where.watching(), recorder:
        for number in range(STEPS):
            step.run(batches, f"step {number + 1}")
    return recorder.trace()


@dataclass(frozen=True)
class _Step:
    model: LoadedModel
    precision: Precision
    optimizer: torch.optim.Optimizer
    clip: float
    where: Whereabouts
    recorder: MemoryRecorder

    def run(self, batches: list[BatchTensors], name: str) -> None:
        """As train_step does it, on one rank."""
        import torch

        for batch in batches:
            self.recorder.mark(f"{name}, forward")
            loss = self._loss(batch)
            self.recorder.mark(f"{name}, backward")
            (loss / len(batch.rows_N)).backward()  # type: ignore[no-untyped-call]
            del loss
            self.recorder.claim(self._gradients(), "gradients")
        self.recorder.mark(f"{name}, update")
        with self.where.inside("optimizer"):
            torch.nn.utils.clip_grad_norm_([one for _, one in self.model.trainable], self.clip)
            self.optimizer.step()
            self.recorder.claim(self._moments(), "optimizer")
            self.optimizer.zero_grad(set_to_none=True)

    def _loss(self, batch: BatchTensors) -> torch.Tensor:
        """As batch_loss has it, with the head's part told apart."""
        from trueup.model.loss import chunked_loss

        model = self.model
        with self.precision.autocast(batch.tokens_BT.device.type):
            hidden_BTH = model.forward_hidden(batch.tokens_BT, batch.positions_BT, batch.segments_BT)
            head_VH = model.head_weight if model.decoder is None else model.decoder.head_weight_VH
            with self.where.inside("head and loss"):
                return chunked_loss(hidden_BTH, head_VH, batch.rows_N, batch.targets_N)

    def _gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.model.trainable:
            if parameter.grad is not None:
                yield name.rpartition(".")[0], parameter.grad

    def _moments(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.model.trainable:
            for moment in self.optimizer.state[parameter].values():
                yield name.rpartition(".")[0], moment


def _batch(ask: TrainingAsk, vocab: int, seed: int, device: torch.device) -> BatchTensors:
    """Rows of one example each; all but its first token carry loss."""
    from trueup.model.batch import BatchTensors

    shape = (ask.rows, ask.length)
    places_BT = np.tile(np.arange(ask.length), (ask.rows, 1))
    made = MicroBatch(
        tokens_BT=np.random.default_rng(seed).integers(0, vocab, shape, dtype=np.int64),
        positions_BT=places_BT,
        segments_BT=np.ones(shape, dtype=np.int32),
        loss_BT=places_BT > 0,
        example_ids=(),
        attention_sum_sq=ask.rows * ask.length**2,
    )
    return BatchTensors.from_arrays(
        made.tokens_BT, made.positions_BT, made.segments_BT, *made.targets(), device=device
    )


def checkpointed(loaded: LoadedModel) -> LoadedModel:
    """The same model, whose layers keep their inputs alone and are computed again in the backward pass."""
    if loaded.decoder is not None:
        return replace(loaded, decoder=replace(loaded.decoder, checkpointing=True))
    loaded.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return loaded
