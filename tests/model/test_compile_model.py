"""Compiled or not, the same numbers; one graph for each shape, and another where no gradient is wanted.

`aot_eager` traces and guards as the real compiler does, and then runs torch's own kernels: what is counted
here is what Inductor would have to compile. The real one is in the slow tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
import torch
import torch._dynamo
from model_batches import FP32, LENGTHS, bucketed, examples_of, loaded_model, loss_and_gradients, packed
from torch._dynamo import config
from torch._dynamo.utils import counters

import trueup.model.compile as compile_module
from trueup.model.batch import BatchTensors, batch_loss
from trueup.model.builtin import ResolvedModel
from trueup.model.compile import compile_model
from trueup.model.load import LoadedModel
from trueup.model.precision import Precision
from trueup.recipe.models import TuneSection
from trueup.schema import InputError

MASTER = Precision(policy="bf16-master", compute_dtype="bfloat16", reason="test")
Method = Literal["lora", "full"]
Mode = Literal["layer", "model"]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def model_of(resolved: ResolvedModel, method: Method, precision: Precision = FP32) -> LoadedModel:
    return loaded_model(resolved, TuneSection(method=method, rank=4), precision=precision)


def evaluated(loaded: LoadedModel, batches: list[BatchTensors], precision: Precision = FP32) -> float:
    loaded.module.eval()
    with torch.no_grad():
        total = sum(batch_loss(loaded, batch, precision).item() for batch in batches)
    loaded.module.train()
    return total


def assert_same_when_compiled(
    loaded: LoadedModel,
    mode: Mode,
    backend: str,
    batches: list[BatchTensors],
    within: float,
    precision: Precision = FP32,
) -> None:
    expected_loss, expected = loss_and_gradients(loaded, batches, precision)
    expected_evaluation = evaluated(loaded, batches, precision)
    compiled = compile_model(loaded, mode, backend=backend, graphs=2 * len(batches))
    loss, gradients = loss_and_gradients(loaded, batches, precision)
    evaluation = evaluated(loaded, batches, precision)
    compiled.undo()
    assert counters["stats"]["unique_graphs"] == 2 * len(batches)  # else something else was compared
    assert loss == pytest.approx(expected_loss, rel=within)
    assert evaluation == pytest.approx(expected_evaluation, rel=within)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).norm() <= within * expected[name].norm(), name


@pytest.mark.parametrize(
    ("mode", "method"),
    [
        ("layer", "lora"),
        ("model", "full"),
        pytest.param("layer", "full", marks=pytest.mark.slow),
        pytest.param("model", "lora", marks=pytest.mark.slow),
    ],
)
def test_the_same_loss_and_gradients(tiny: ResolvedModel, mode: Mode, method: Method) -> None:
    examples = examples_of(7, LENGTHS)
    batches = [*packed(examples), bucketed(examples)[0]]
    assert_same_when_compiled(model_of(tiny, method), mode, "aot_eager", batches, within=1e-5)


@pytest.mark.parametrize(("mode", "method"), [("layer", "lora"), ("model", "full")])
def test_the_same_in_bf16_with_masters(tiny: ResolvedModel, mode: Mode, method: Method) -> None:
    """As many graphs as in fp32: the embedding's output is cast within them, or before them."""
    loaded = model_of(tiny, method, MASTER)
    assert_same_when_compiled(loaded, mode, "aot_eager", packed(examples_of(7, LENGTHS)), 1e-2, MASTER)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("mode", ["layer", "model"])
def test_the_same_loss_and_gradients_from_the_real_compiler(
    tiny: ResolvedModel, mode: Mode, method: Method
) -> None:
    batches = packed(examples_of(7, LENGTHS))
    assert_same_when_compiled(model_of(tiny, method), mode, "inductor", batches, within=1e-5)


def test_more_shapes_than_torchs_limit_are_all_compiled(
    tiny: ResolvedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two graphs a shape and a limit of eight ended compiling after four shapes, with a warning in a log."""
    monkeypatch.setattr(compile_module, "TORCHS_LIMIT", 2)
    loaded = model_of(tiny, "lora")
    batches = [packed(examples_of(width, [width, 3]), rows=1)[0] for width in (4, 5, 6)]
    with config.patch(recompile_limit=2):
        compiled = compile_model(loaded, "layer", backend="eager", graphs=len(batches))
        for _ in range(2):
            loss_and_gradients(loaded, batches)
        compiled.undo()
    assert counters["stats"]["unique_graphs"] == len(batches)
    assert counters["frames"]["total"] == counters["frames"]["ok"]


def test_a_plan_beyond_torchs_total_raises_it_until_undone(tiny: ResolvedModel) -> None:
    before = config.accumulated_recompile_limit, config.recompile_limit
    compiled = compile_model(model_of(tiny, "lora"), "layer", backend="aot_eager", graphs=before[0] + 5)
    assert config.accumulated_recompile_limit > before[0] + 5
    compiled.undo()
    compiled.undo()
    assert (config.accumulated_recompile_limit, config.recompile_limit) == before


@pytest.mark.parametrize("mode", ["layer", "model"])
def test_undone_it_is_the_model_that_was_loaded(tiny: ResolvedModel, mode: Mode) -> None:
    loaded = model_of(tiny, "lora")
    names = list(loaded.module.state_dict())
    compiled = compile_model(loaded, mode, backend="aot_eager", graphs=1)
    assert list(loaded.module.state_dict()) == names  # nor is anything renamed while it is compiled
    compiled.undo()
    loss_and_gradients(loaded, packed(examples_of(1, [4, 5])))
    assert counters["stats"]["unique_graphs"] == 0
    hidden_BTH = loaded.base.get_input_embeddings()(torch.zeros(1, 2, dtype=torch.int64))
    assert not hidden_BTH.requires_grad


def test_a_decoder_without_a_list_of_layers_says_so(
    tiny: ResolvedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = model_of(tiny, "lora")
    monkeypatch.setattr(loaded.base.model, "layers", torch.nn.Identity())
    with pytest.raises(InputError, match="no list of this model's 2 layers"):
        compile_model(loaded, "layer", backend="aot_eager", graphs=1)
