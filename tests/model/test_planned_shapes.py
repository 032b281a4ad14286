"""Rule 1 from the planner to the gradient: micro-batches as a plan makes them give the loss and the gradients
of one example at a time, for every strategy, method and attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
import torch
from model_batches import Gradients, assert_close, examples_of, loaded_model, loss_and_gradients
from numpy.typing import NDArray

from trueup.data import JobData, PlannedBatch, Planner, assemble
from trueup.model.batch import BatchTensors
from trueup.model.builtin import ResolvedModel
from trueup.model.load import Attention, LoadedModel, with_own_decoder
from trueup.recipe.models import ShapesSection, TuneSection
from trueup.schema import DeviceRules, PlatformProfile, Strategy, unavailable

PAD = 256
CHUNK = 8
LENGTHS = [5, 17, 2, 9, 30, 12, 3, 21, 9, 26, 11]
Method = Literal["lora", "full"]
Layers = Attention | Literal["own"]


@dataclass
class Table:
    """What `assemble` reads of prepared examples."""

    examples: list[tuple[NDArray[np.int64], NDArray[np.bool_]]]

    @property
    def lengths(self) -> NDArray[np.int32]:
        return np.asarray([len(tokens) for tokens, _ in self.examples], dtype=np.int32)

    @property
    def supervised(self) -> NDArray[np.int32]:
        return np.asarray([loss.sum() for _, loss in self.examples], dtype=np.int32)

    def example(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        return self.examples[n]


TABLE: Any = Table(examples_of(0, LENGTHS))


@cache
def model_of(tiny: ResolvedModel, method: Method, layers: Layers, wide: bool) -> LoadedModel:
    section = TuneSection(method=method, rank=4, targets=("q_proj", "k_proj", "o_proj", "down_proj"))
    if layers != "own":
        return loaded_model(tiny, section, attention=layers, wide=wide)
    own, why = with_own_decoder(loaded_model(tiny, section, wide=wide), "float64" if wide else "float32")
    assert own.decoder is not None, why
    return own


def tensors(planned: PlannedBatch, chunk_rows: int | None = None) -> BatchTensors:
    batch = assemble(TABLE, planned, PAD)
    arrays = (batch.tokens_BT, batch.positions_BT, batch.segments_BT)
    return BatchTensors.from_arrays(*arrays, *batch.targets(chunk_rows))


@cache
def one_by_one(tiny: ResolvedModel, method: Method, layers: Layers, wide: bool) -> tuple[float, Gradients]:
    alone = [tensors(PlannedBatch(((n,),), length, length)) for n, length in enumerate(LENGTHS)]
    return loss_and_gradients(model_of(tiny, method, layers, wide), alone)


def planned(strategy: Strategy, *, static: bool) -> list[BatchTensors]:
    """One epoch: on a static device with rows and chunks of the head filled up."""
    unknown = unavailable("s", "a test")
    profile = PlatformProfile(
        device_kind="cpu",
        device_name="a test",
        model="a test",
        rules=DeviceRules(static=static, multiple=8),
        micro_batch_s=unknown,
        token_s=unknown,
        pair_s=unknown,
        head_row_s=unknown,
    )
    data = JobData(TABLE.lengths, TABLE.supervised, TABLE.lengths[:0])
    shapes = ShapesSection(strategy=strategy, tokens_per_microbatch=96)
    plan = Planner(data, shapes, 192, data.useful_tokens, CHUNK, profile).plan()
    batches = data.arranged(plan).epoch(3, 1, plan.micro_batches_per_step).batches
    assert len(batches) > 1
    assert plan.static == static
    assert {len(batch.rows) for batch in batches} != {1} or strategy == "pack"
    return [tensors(batch, plan.chunk_rows) for batch in batches]


@pytest.mark.parametrize(("wide", "within"), [(True, 1e-9), (False, 1e-5)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("layers", ["sdpa", "eager", "own"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_no_plan_changes_the_loss_or_a_gradient(
    tiny: ResolvedModel, method: Method, layers: Layers, wide: bool, within: float
) -> None:
    model = model_of(tiny, method, layers, wide)
    expected = one_by_one(tiny, method, layers, wide)
    for strategy, static in (
        *(("pack", False), ("bucket", False), ("max", False), ("longest", False)),
        *(("pack", True), ("bucket", True), ("max", True)),
    ):
        found = loss_and_gradients(model, planned(strategy, static=static))  # type: ignore[arg-type]
        assert_close(found, expected, within)


@pytest.mark.parametrize("layers", ["sdpa", "eager", "own"])
def test_the_positions_of_the_batch_are_those_the_model_turns_by(tiny: ResolvedModel, layers: Layers) -> None:
    """trl#3067: positions that ran on through a packed row. Rotary attention within an example depends on
    their differences alone, so that ones which do not start again change no loss here, and would where a
    model scales them by the longest: what is asked is whether they arrive."""
    model = model_of(tiny, "lora", layers, True)
    batch = tensors(PlannedBatch(((4, 7),), 56, 51))
    apart = 3 * batch.positions_BT
    with torch.no_grad():
        near, far = (
            model.forward_hidden(batch.tokens_BT, positions, batch.segments_BT)[:, :51]
            for positions in (batch.positions_BT, apart)
        )
    assert not torch.allclose(near, far, rtol=1e-3)


@pytest.mark.parametrize("layers", ["sdpa", "eager"])
def test_later_tokens_of_an_example_have_exactly_no_influence(tiny: ResolvedModel, layers: Layers) -> None:
    """transformers#48296: a mask was given, and attention silently not causal."""
    model = model_of(tiny, "lora", layers, False)
    batch = tensors(PlannedBatch(((4, 7),), 56, 51))
    changed = batch.tokens_BT.clone()
    changed[:, 40:51] = (changed[:, 40:51] + 1) % 256  # within the second example
    with torch.no_grad():
        before, after = (
            model.forward_hidden(tokens, batch.positions_BT, batch.segments_BT)[0]
            for tokens in (batch.tokens_BT, changed)
        )
    assert torch.equal(before[:40], after[:40])
    assert not torch.equal(before[40:51], after[40:51])
