"""What serving keeps of a model's weights: how many bytes, how faithful, and what it refuses to serve."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paged_steps import Paged, expected, sequences
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from trueup.model.builtin import ResolvedModel
from trueup.model.inference import InferenceModel, ServedAs
from trueup.model.inference_bytes import ByteLinear, multiplies_bytes, two_bytes
from trueup.model.inference_linear import OneDnnLinear, SideBySide, linear_of
from trueup.model.inference_stored import StoredMatrix, WidenedLinear
from trueup.model.load import load_model
from trueup.model.quantize import Wanted
from trueup.model.quantize_folder import quantise_to
from trueup.model.quantize_round import round_to_nearest
from trueup.model.quantized import QuantizedWeight, dequantise
from trueup.model.quantized_load import load_dequantised
from trueup.model.tiny import write_tiny
from trueup.recipe.models import TuneSection
from trueup.schema import InputError, TrueupError
from trueup.schema.quantization import Scheme

CPU = torch.device("cpu")
WANTED = {
    "int8": Wanted("int8", head="int8"),
    "int8-groups": Wanted("int8", group=32, head="int8"),
    "int4": Wanted("int4", group=32, head="int8"),
    "fp8": Wanted("fp8", head="fp8"),
    "kept-head": Wanted("int8", head=None),
}
needs_bytes = pytest.mark.skipif(
    not multiplies_bytes(CPU), reason="this processor or torch has no exact product of bytes"
)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "apart"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    folder = tmp_path_factory.mktemp("plain")
    write_tiny(folder, tied_head=request.param, intermediate_size=192)
    return ResolvedModel(folder, "plain", "a test's")


def first_logits(model: InferenceModel, prompt: list[int]) -> torch.Tensor:
    return Paged(model, rows=1, block_size=8, context=48).step([prompt])[0]


@pytest.mark.parametrize("wanted", list(WANTED))
def test_a_quantised_folder_computes_what_its_values_and_scales_stand_for(
    plain: ResolvedModel, wanted: str, tmp_path: Path
) -> None:
    """Rounding of activations included, where there is any: to 15 bits."""
    out = tmp_path / "quantised"
    quantise_to(out, plain, WANTED[wanted], None, lambda text: None)
    base, _ = load_dequantised(out)
    (prompt,) = sequences(1, (25,))
    wanted_V = expected(base, prompt)[-1]
    found_V = first_logits(InferenceModel.load(out), prompt)
    assert float((found_V - wanted_V).abs().max()) <= 3e-4 * float(wanted_V.abs().max())


@pytest.mark.parametrize(("served_as", "within"), [("bf16", 0.02), ("int8", 0.03)])
def test_fewer_bits_move_the_logits_by_little(
    plain: ResolvedModel, served_as: ServedAs, within: float
) -> None:
    (prompt,) = sequences(1, (25,))
    exact = first_logits(InferenceModel.load(plain.folder), prompt)
    found = first_logits(InferenceModel.load(plain.folder, served_as), prompt)
    moved = float((found - exact).abs().max() / exact.abs().max())
    assert 0 < moved <= within


def test_bytes_by_owner_are_those_of_every_storage_that_the_model_holds(plain: ResolvedModel) -> None:
    for served_as in ("fp32", "bf16", "int8"):
        model = InferenceModel.load(plain.folder, served_as)
        assert sum(model.weight_bytes().values()) == held(model)


def held(model: InferenceModel) -> int:
    """Bytes of all tensors that can be reached from the model, each storage once."""
    sizes: dict[object, int] = {}
    waiting: list[Any] = [model]
    while waiting:
        one = waiting.pop()
        if isinstance(one, torch.Tensor):
            if one.layout == torch.strided:
                sizes[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
            else:
                sizes[id(one)] = int(torch.ops.mkldnn._nbytes(one))
        elif isinstance(one, tuple | list):
            waiting += one
        elif type(one).__module__.startswith("trueup"):
            waiting += vars(one).values()
    return sum(sizes.values())


@needs_bytes
def test_int8_takes_at_most_35_percent_of_the_bytes_of_fp32(tmp_path: Path) -> None:
    write_tiny(tmp_path, tied_head=True, hidden_size=128, intermediate_size=384)
    exact, few = (
        sum(size for owner, size in model.weight_bytes().items() if owner != "rotary")
        for model in (InferenceModel.load(tmp_path), InferenceModel.load(tmp_path, "int8"))
    )
    assert few <= 0.35 * exact


def test_a_tied_head_and_its_embedding_are_one_tensor(tmp_path: Path) -> None:
    write_tiny(tmp_path, tied_head=True)
    model = InferenceModel.load(tmp_path)
    assert isinstance(model.head, OneDnnLinear)
    assert isinstance(model.embedding.weight, torch.Tensor)
    assert model.head.weight_OI.data_ptr() == model.embedding.weight.data_ptr()


@pytest.mark.parametrize("served_as", ["fp32", "int8"])
def test_a_model_in_memory_is_served_with_its_adapters(tiny: ResolvedModel, served_as: ServedAs) -> None:
    loaded = load_model(tiny, TuneSection(method="lora", rank=4, targets=("q_proj", "v_proj", "down_proj")))
    with torch.no_grad():
        for name, parameter in loaded.trainable:
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    loaded.module.eval()
    (prompt,) = sequences(1, (25,))
    with torch.no_grad():
        wanted = loaded.module(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1]
    within = 1e-4 if served_as == "fp32" else 0.03 * float(wanted.abs().max())
    found = first_logits(InferenceModel.load(loaded, served_as), prompt)
    torch.testing.assert_close(found, wanted, atol=within, rtol=0)


@needs_bytes
@given(
    rows=st.integers(1, 5),
    inputs=st.integers(2, 90) | st.sampled_from([64, 128, 576]),
    outputs=st.integers(1, 40) | st.sampled_from([16, 48, 96]),
    seed=st.integers(0, 99),
)
def test_a_product_of_bytes_is_that_of_the_stored_values(
    rows: int, inputs: int, outputs: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    values_OI = torch.randint(-128, 128, (outputs, inputs), generator=draw, dtype=torch.int8)
    scales_O = torch.rand(outputs, generator=draw) + 0.1
    x_NI = torch.randn(rows, inputs, generator=draw) * 10
    exact = x_NI.double() @ (values_OI.double() * scales_O.double()[:, None]).t()
    # each activation is within 1/32,000 of the row's largest, each value at most 128
    bound = x_NI.abs().amax(-1, keepdim=True) * scales_O * 128 * inputs / 32_000
    found = ByteLinear(values_OI, scales_O, None)(x_NI)
    assert bool(((found - exact).abs() <= bound + 1e-4 * exact.abs()).all())


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
)
def test_two_bytes_hold_an_activation_to_15_bits(numbers: list[float]) -> None:
    x_NI = torch.tensor([numbers])
    bytes_PNI, unit_N1 = two_bytes(x_NI)
    back = (bytes_PNI[0].double() + bytes_PNI[1].double() / 254) * unit_N1
    assert float((back - x_NI).abs().max()) <= float(x_NI.abs().max()) / 32_000 + 1e-30


@needs_bytes
def test_a_row_with_a_number_that_is_none_gives_numbers_that_are_none() -> None:
    linear = ByteLinear(torch.ones(16, 64, dtype=torch.int8), torch.ones(16), None)
    x_NI = torch.ones(3, 64)
    x_NI[1, 2] = torch.nan
    for x in (x_NI, x_NI[:2]):
        found = linear(x)
        assert torch.isnan(found[1]).all()
        assert torch.isfinite(found[::2]).all()


@pytest.mark.parametrize(("scheme", "group"), [("int8", None), ("int8", 8), ("int4", 8), ("fp8", None)])
def test_a_widened_matrix_is_the_dequantised_one(scheme: Scheme, group: int | None) -> None:
    weight = round_to_nearest(torch.randn(12, 24, generator=torch.Generator().manual_seed(1)), scheme, group)
    stored = StoredMatrix.of(weight, CPU)
    assert torch.equal(stored.widened(torch.float32), dequantise(weight))
    assert torch.equal(stored.rows(torch.tensor([5, 0, 5])), dequantise(weight)[[5, 0, 5]])


def test_int4_lies_in_memory_as_two_values_to_the_byte() -> None:
    weight = round_to_nearest(torch.randn(16, 64), "int4", 32)
    assert StoredMatrix.of(weight, CPU).bytes == 16 * 32 + 4 * 16 * 2


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_without_products_of_bytes_weights_are_widened_and_compute_the_same(scheme: Scheme) -> None:
    """What other devices do, and compiled layers."""
    draw = torch.Generator().manual_seed(2)
    weights = [round_to_nearest(torch.randn(size, 32, generator=draw), scheme, None) for size in (8, 24)]
    linear = linear_of(tuple(weights), (None, torch.ones(24)), torch.float32, CPU, fused=False)
    assert isinstance(linear, WidenedLinear)
    x_NI = torch.randn(3, 32, generator=draw)
    wanted = x_NI @ torch.cat([dequantise(weight) for weight in weights]).t()
    wanted[:, 8:] += 1
    torch.testing.assert_close(linear(x_NI), wanted)


def test_matrices_of_one_input_that_are_stored_differently_stand_side_by_side() -> None:
    draw = torch.Generator().manual_seed(2)
    exact = torch.randn(8, 32, generator=draw)
    few: QuantizedWeight = round_to_nearest(torch.randn(24, 32, generator=draw), "int8", None)
    linear = linear_of((exact, few), (None, None), torch.float32, CPU)
    assert isinstance(linear, SideBySide)
    x_NI = torch.randn(3, 32, generator=draw)
    wanted = x_NI @ torch.cat([exact, dequantise(few)]).t()
    torch.testing.assert_close(linear(x_NI), wanted, atol=1e-2, rtol=1e-3)


def test_a_compiled_layer_computes_the_same_and_compiles_nothing_after_warm_up(tiny: ResolvedModel) -> None:
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(1)
        return graph.forward

    model = InferenceModel.load(tiny.folder, compile_mode="layer", backend=backend)
    (prompt,) = sequences(1, (8,))
    exact = InferenceModel.load(tiny.folder)
    paged = Paged(model, rows=1, block_size=8, context=16)
    model.warm_up([(2, 8, 2), (2, 1, 2)])
    compiled = len(graphs)
    assert compiled == 2
    found = paged.step([prompt], shape=(2, 8, 2)), paged.step([[7]], shape=(2, 1, 2))
    assert len(graphs) == compiled
    paged = Paged(exact, rows=1, block_size=8, context=16)
    for one, wanted in zip(found, (paged.step([prompt]), paged.step([[7]])), strict=True):
        torch.testing.assert_close(one, wanted, atol=1e-4, rtol=0)


def test_warm_up_runs_every_shape_and_leaves_the_pool_alone(tiny: ResolvedModel) -> None:
    model = InferenceModel.load(tiny.folder)
    pool = model.new_pool(6, 4)
    shapes = [(2, 4, 3), (1, 1, 2), (4, 1, 5)]
    seen: list[tuple[int, int, int]] = []
    model.warm_up(shapes, seen.append)
    assert seen == shapes
    assert all(not layer[4:].any() for layer in pool.layers)


# --- what is refused --------------------------------------------------------------------------------------


def test_a_step_without_a_pool_says_what_to_call(tiny: ResolvedModel) -> None:
    model = InferenceModel.load(tiny.folder)
    with pytest.raises(TrueupError, match="call new_pool"):
        model.warm_up([(1, 1, 1)])


@pytest.mark.parametrize("sizes", [(1, 16), (8, 0)])
def test_a_pool_without_room_is_refused(tiny: ResolvedModel, sizes: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="at least 2 blocks"):
        InferenceModel.load(tiny.folder).new_pool(*sizes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_act": "gelu"}, "its activation is gelu"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "is not built as Llama's is"),
        (
            {"model_type": "granite", "architectures": ["GraniteForCausalLM"], "residual_multiplier": 0.5},
            "do not compute",
        ),
        ({"model_type": "no-such-family"}, "does not describe a model that transformers knows"),
    ],
    ids=["activation", "structure", "numbers", "unknown"],
)
def test_a_model_that_is_no_llama_is_refused(
    tiny: ResolvedModel, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    folder = copied(tiny, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(InputError, match=says):
        InferenceModel.load(folder)


def test_a_rotary_embedding_that_grows_with_the_context_is_refused_beyond_what_it_was_made_for(
    tiny: ResolvedModel, tmp_path: Path
) -> None:
    folder = copied(tiny, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    pairs = config["hidden_size"] // config["num_attention_heads"] // 2
    config["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * pairs,
        "long_factor": [4.0] * pairs,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    config["original_max_position_embeddings"] = 1024
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="serve contexts up to 1024"):
        InferenceModel.load(folder)
    assert InferenceModel.load(folder, max_positions=1024).frame.max_positions == 1024


@pytest.mark.parametrize("missing", ["model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
def test_a_tensor_that_is_not_there_is_named(tiny: ResolvedModel, tmp_path: Path, missing: str) -> None:
    folder = copied(tiny, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors[missing]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=f"have no {missing}"):
        InferenceModel.load(folder)


def copied(model: ResolvedModel, into: Path) -> Path:
    folder = into / "copy"
    shutil.copytree(model.folder, folder)
    return folder


def test_loading_for_serving_needs_no_second_model_in_transformers(
    tiny: ResolvedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the whole model was loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    assert InferenceModel.load(tiny.folder).dims.layers == 2


# --- config.json and the weights are of one model -----------------------------------------------------------


def change(folder: Path, **keys: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    """With a head of its own."""
    folder = tmp_path_factory.mktemp("apart")
    write_tiny(folder)
    return ResolvedModel(folder, "apart", "a test's")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_hidden_layers": 1}, "says 1 layer .* have 2"),
        ({"num_hidden_layers": 3}, "says 3 layers .* have 2"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings.* of their own"),
        ({"vocab_size": 300}, r"\[260, 64\].*\[300, 64\]"),
        ({"hidden_size": 128}, r"embed_tokens.weight has the shape"),
        ({"num_key_value_heads": 4}, "k_proj.weight has the shape"),
        ({"attention_bias": True}, r"no model\.layers\.0\.self_attn\.k_proj\.bias"),
        ({"model_type": "gpt2"}, "not built as Llama's"),
        ({"model_type": 5}, "does not describe a model"),
        ({"rope_parameters": {"rope_theta": 0, "rope_type": "default"}}, "rope_theta 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"num_key_value_heads": 0}, "num_key_value_heads 0"),
        ({"hidden_size": 0}, "hidden_size 0"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_a_config_that_is_not_of_the_weights_is_refused(
    apart: ResolvedModel, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = copied(apart, tmp_path)
    change(folder, **keys)
    with pytest.raises(InputError, match=words) as refused:
        InferenceModel.load(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_hidden_layers": 1}, "says 1 layer"),
        ({"tie_word_embeddings": True}, r"no use for .* lm_head"),
        ({"intermediate_size": 100}, r"has the shape"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_a_quantised_folder_is_held_to_its_config_too(
    apart: ResolvedModel, scheme: Scheme, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    out = tmp_path / "quantised"
    quantise_to(out, apart, WANTED[scheme], None, lambda text: None)
    change(out, **keys)
    with pytest.raises(InputError, match=words):
        InferenceModel.load(out)


def test_a_tied_head_may_be_stored_a_second_time_and_no_tensor_else(
    plain: ResolvedModel, tmp_path: Path
) -> None:
    folder = copied(plain, tmp_path)
    change(folder, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, folder / "model.safetensors")
    InferenceModel.load(folder)
    tensors["lm_head.weight"][-1, -1] += 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match="of their own"):
        InferenceModel.load(folder)
    del tensors["lm_head.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(16)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"no use for 1 tensor .*q_norm"):
        InferenceModel.load(folder)
