"""A plan of serving's memory against what serving really takes, to the byte where that can be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trueup.analysis.memory_trace import holders, kind_of, layers_together, module_of, peak_of
from trueup.analysis.serving_memory import ServingAsk, serving_lines, value_of
from trueup.analysis.serving_memory_step import SAMPLER_BYTES_PER_CANDIDATE, SAMPLER_BYTES_PER_LOGIT
from trueup.model.dims import expected_dims
from trueup.model.inference import InferenceModel, ServedAs
from trueup.model.memory_profile import MemoryRecorder
from trueup.model.memory_profile_served import shown
from trueup.model.memory_profile_serving import ServingRun, batch_of, record_serving
from trueup.model.memory_profile_where import Whereabouts
from trueup.model.tiny import write_tiny
from trueup.recipe.models import TuneSection
from trueup.schema import ModelDims
from trueup.serve.request import Sampling
from trueup.serve.sampling import Draw, choose

LENGTH = 128
EVEN = {  # sizes that fill any layout's blocks
    "hidden_size": 128,
    "intermediate_size": 320,
    "vocab_size": 640,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}
WEIGHTS = ("layers", "embedding", "head", "norms", "packing", "rotary")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two small models: an odd one with a head of its own, and an even one whose head is the embedding."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("odd", "even")}
    write_tiny(made["odd"])
    write_tiny(made["even"], tied_head=True, **EVEN)
    return made


def dims_of(folder: Path) -> ModelDims:
    config = json.loads((folder / "config.json").read_text())
    return expected_dims(config, TuneSection(method="full"))


def served(folder: Path, quant: ServedAs) -> InferenceModel:
    return InferenceModel.load(folder, quant, max_positions=LENGTH + 1)


def asked(folder: Path, quant: ServedAs, rows: int = 1) -> ServingAsk:
    return ServingAsk(dims_of(folder), LENGTH + 1, rows, quant=quant, kv="fp32", device="cpu")


def need_known_layout() -> None:
    """The layouts are those of oneDNN on processors with AVX-512."""
    packed = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(176, 64), 8)
    if int(torch.ops.mkldnn._nbytes(packed)) != 192 * 64 * 4:
        pytest.skip("oneDNN lays out weights in other blocks on this processor")


def planned(lines: object, names: tuple[str, ...]) -> float:
    return sum(value_of(lines, f"{name}_bytes") for name in names)  # type: ignore[arg-type]


@pytest.mark.parametrize("quant", ["fp32", "bf16", "int8"])
def test_weights_that_fill_their_blocks_are_planned_to_the_byte(
    folders: dict[str, Path], quant: ServedAs
) -> None:
    need_known_layout()
    real = served(folders["even"], quant).weight_bytes()
    lines = serving_lines(asked(folders["even"], quant))
    assert planned(lines, WEIGHTS) == sum(real.values())
    assert value_of(lines, "norms_bytes") == real["norms"]
    assert value_of(lines, "rotary_bytes") == real["rotary"]
    of_products = real["attention"] + real["mlp"] + real["embedding and head"]
    assert planned(lines, ("layers", "embedding", "packing")) == of_products


@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_weights_of_the_tiny_model_are_planned_to_the_byte(folders: dict[str, Path], quant: ServedAs) -> None:
    need_known_layout()
    real = served(folders["odd"], quant).weight_bytes()
    assert planned(serving_lines(asked(folders["odd"], quant)), WEIGHTS) == sum(real.values())


def test_weights_in_an_unknown_layout_are_never_planned_too_small(folders: dict[str, Path]) -> None:
    real = served(folders["odd"], "bf16").weight_bytes()
    assert planned(serving_lines(asked(folders["odd"], "bf16")), WEIGHTS) >= sum(real.values())


@pytest.mark.parametrize(("rows", "block_size"), [(1, 16), (3, 4), (2, 64)])
def test_the_pool_is_planned_to_the_byte(folders: dict[str, Path], rows: int, block_size: int) -> None:
    ask = replace(asked(folders["odd"], "fp32", rows), block_size=block_size)
    for kv, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        pool = served(folders["odd"], "fp32").new_pool(ask.pool_blocks, block_size, dtype)
        assert value_of(serving_lines(replace(ask, kv=kv)), "kv_pool_bytes") == pool.bytes  # type: ignore[arg-type]


@pytest.mark.parametrize("quant", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("model", ["odd", "even"])
def test_activations_are_planned_and_a_little_more(
    folders: dict[str, Path], model: str, quant: ServedAs
) -> None:
    """Whole prompts, chunks and single tokens, few rows and many, both types of keys and values."""
    loaded, dims = served(folders[model], quant), dims_of(folders[model])
    for rows, chunk, kv_bytes, block_size in (
        (2, None, 4, 16),
        (8, 64, 2, 4),
        (16, 32, 4, 16),
    ):
        run = ServingRun(rows, LENGTH, block_size, kv_bytes, chunk=chunk)
        trace = record_serving(loaded, run)
        real = next(one.at_peak_bytes for one in holders(trace, kind_of) if one.name == "activations")
        steps = ((rows, chunk or LENGTH, run.blocks_of_row), (rows, 1, run.blocks_of_row))
        ask = ServingAsk(
            *(dims, LENGTH + 1, rows, quant, "fp32" if kv_bytes == 4 else "bf16", "cpu"),
            block_size=block_size,
            steps=steps,
        )
        assert real <= value_of(serving_lines(ask), "activations_bytes") <= 1.1 * real, (
            rows,
            chunk,
            kv_bytes,
        )


def test_weights_and_pool_are_profiled_to_the_byte(folders: dict[str, Path]) -> None:
    loaded = served(folders["odd"], "int8")
    trace = record_serving(loaded, ServingRun(2, 32, 16, 4))
    kinds = {one.name: one.at_peak_bytes for one in holders(trace, kind_of)}
    assert kinds["weights"] == sum(loaded.weight_bytes().values())
    assert loaded.pool is not None
    assert kinds["kv_pool"] == loaded.pool.bytes


def test_a_profile_of_serving_names_the_modules_that_held_the_peak(folders: dict[str, Path]) -> None:
    trace = record_serving(served(folders["odd"], "fp32"), ServingRun(2, 64, 16, 4))
    assert sum(one.at_peak_bytes for one in holders(trace, module_of)) == peak_of(trace).size_bytes
    names = {one.name for one in holders(trace, layers_together)}
    assert {
        "model.embed_tokens",
        "model.layers.*.self_attn",
        "model.layers.*.mlp.gate_proj+up_proj",
        "model.norm",
        "lm_head",
        "kv_pool.*",
    } <= names


def test_watching_a_model_computes_the_same_logits(folders: dict[str, Path]) -> None:
    loaded, run = served(folders["odd"], "fp32"), ServingRun(2, 16, 4, 4)
    tokens_BT = torch.arange(34).view(2, 17)
    loaded.new_pool(run.rows * run.blocks_of_row + 1, run.block_size)
    plain = replace(loaded, decoder=None).run(batch_of(run, tokens_BT, 0, 16))
    assert torch.equal(shown(loaded, Whereabouts()).run(batch_of(run, tokens_BT, 0, 16)), plain)


@pytest.mark.parametrize("top_p", [1.0, 0.9999])
def test_drawing_takes_what_the_sampler_is_planned_with(top_p: float) -> None:
    """With a cut that needs all of the vocabulary it takes nearly all of it, without one less."""
    rows, vocabulary = 4, 8192
    logits_BV = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    recorder = MemoryRecorder()
    with recorder:
        choose(logits_BV, [Draw(Sampling(max_tokens=1, top_p=top_p), 1, row) for row in range(rows)])
    real = peak_of(recorder.trace()).size_bytes
    most = rows * (SAMPLER_BYTES_PER_LOGIT * vocabulary + 1024 * SAMPLER_BYTES_PER_CANDIDATE + 1024)
    assert real <= most
    assert real >= (0.95 if top_p < 1 else 0.4) * most
