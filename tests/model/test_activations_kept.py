"""What a layer keeps for the backward pass is what the memory plan counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from trueup.analysis.memory_plan import MemoryAsk, memory_lines
from trueup.analysis.predict_terms import Tuning
from trueup.model.builtin import ResolvedModel
from trueup.model.load import load_model, with_own_decoder
from trueup.model.precision import Precision
from trueup.model.tiny import write_tiny
from trueup.recipe.models import TuneSection

FP32 = Precision(policy="fp32", compute_dtype="float32", reason="a test")
MASTER = Precision(policy="bf16-master", compute_dtype="bfloat16", reason="a test")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TUNES = {
    "lora": TuneSection(rank=8, targets=ATTENTION),
    "lora on all": TuneSection(rank=8, targets=(*ATTENTION, "gate_proj", "up_proj", "down_proj")),
    "full": TuneSection(method="full"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide")
    write_tiny(path, hidden_size=128, intermediate_size=352, num_hidden_layers=6, num_attention_heads=4)
    return path


@pytest.mark.parametrize("precision", [FP32, MASTER], ids=lambda one: one.policy)
@pytest.mark.parametrize("tune", TUNES.values(), ids=TUNES)
@pytest.mark.parametrize(("rows", "width"), [(4, 64), (1, 320)])
def test_kept_bytes_are_those_of_the_plan(
    folder: Path, tune: TuneSection, precision: Precision, rows: int, width: int
) -> None:
    loaded = load_model(ResolvedModel(folder, "wide", "random"), tune, precision=precision)
    model, _ = with_own_decoder(loaded, precision.compute_dtype)
    ask = MemoryAsk(
        dims=model.dims,
        tuning=Tuning.of(tune),
        policy=precision.policy,
        rows=rows,
        width=width,
        head_rows=1,
        attention="example",
    )
    lines = memory_lines(ask)
    planned = (lines["activations_bytes"].value or 0.0) + (lines["working_copies_bytes"].value or 0.0)
    assert _kept(model, precision, rows, width) == pytest.approx(planned, rel=0.10)


def _kept(model: object, precision: Precision, rows: int, width: int) -> float:
    """Bytes of everything that autograd saves in one forward pass, weights left out."""
    from trueup.model.load import LoadedModel

    assert isinstance(model, LoadedModel)
    assert model.decoder is not None
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.module.parameters()}
    for layer in model.decoder.layers:
        for part in (layer.qkv, layer.out, layer.gate_up, layer.down):
            if part.weight_OI is not None:
                weights.add(part.weight_OI.untyped_storage().data_ptr())
    found: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens_BT = torch.arange(rows * width).view(rows, width) % 256
    positions_BT = torch.arange(width).expand(rows, width)
    with saved_tensors_hooks(pack, lambda tensor: tensor), precision.autocast():
        hidden = model.forward_hidden(tokens_BT, positions_BT, torch.ones_like(tokens_BT))
    assert hidden.requires_grad
    return float(sum(found.values()))
