"""A quantised folder: what is stored and how large it is, that it loads again, and who else reads it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trueup.model.builtin import ResolvedModel
from trueup.model.inference import InferenceModel
from trueup.model.load import load_base, load_model, load_tokenizer
from trueup.model.quantize import Wanted
from trueup.model.quantize_folder import quantise_to
from trueup.model.quantized import dequantise, facts_of, read_kept, read_quantized
from trueup.model.tiny import write_tiny
from trueup.recipe.models import TuneSection
from trueup.schema import InputError, StorageError
from trueup.schema.quantization import FACTS_FILE, QuantizationFacts

WANTED = {
    "int8": Wanted("int8", head="int8"),
    "int8-groups": Wanted("int8", group=32, head="int8"),
    "int4": Wanted("int4", group=16, head="int8"),
    "fp8": Wanted("fp8", head="fp8"),
    "fp8-tensor": Wanted("fp8", head="fp8", per_tensor=True),
    "kept": Wanted("int8", head=None),
}


def quantise(resolved: ResolvedModel, out: Path, wanted: Wanted) -> QuantizationFacts:
    return quantise_to(out, resolved, wanted, None, lambda text: None)


def divisible(folder: Path, **sizes: Any) -> ResolvedModel:
    """A tiny model whose matrices groups of 32 divide."""
    write_tiny(folder, intermediate_size=192, **sizes)
    return ResolvedModel(folder, "divisible", "a test's")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    return divisible(tmp_path_factory.mktemp("tied"), tied_head=True)


@pytest.fixture(scope="module", params=list(WANTED))
def quantised(
    request: pytest.FixtureRequest, model: ResolvedModel, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, QuantizationFacts]:
    out = tmp_path_factory.mktemp("quantised") / request.param
    return request.param, out, quantise(model, out, WANTED[request.param])


def logits(base: Any) -> torch.Tensor:
    tokens_BT = torch.arange(64).view(2, 32)
    with torch.no_grad():
        found: torch.Tensor = base(input_ids=tokens_BT, use_cache=False).logits
    return found


def test_it_loads_as_the_numbers_that_its_values_stand_for(
    quantised: tuple[str, Path, QuantizationFacts],
) -> None:
    _, folder, _ = quantised
    base = load_base(ResolvedModel(folder, "q", "q"))
    for name, weight in read_quantized(folder).items():
        assert torch.equal(base.get_submodule(name).weight, dequantise(weight)), name
    for name, tensor in read_kept(folder).items():
        assert torch.equal(base.get_parameter(name), tensor), name


def test_every_parameter_is_in_it_once(
    quantised: tuple[str, Path, QuantizationFacts], model: ResolvedModel
) -> None:
    _, _, facts = quantised
    parameters = {name for name, _ in load_base(model).named_parameters()}
    assert {f"{name}.weight" for name in facts.weights} | set(facts.kept) == parameters
    assert not {f"{name}.weight" for name in facts.weights} & set(facts.kept)


def test_its_sizes_are_those_of_the_file(quantised: tuple[str, Path, QuantizationFacts]) -> None:
    _, folder, facts = quantised
    stored = load_file(folder / "model.safetensors")
    assert facts.bytes_after == sum(tensor.nbytes for tensor in stored.values())
    assert facts.bits_per_weight == pytest.approx(
        8 * facts.bytes_after / sum(one.parameters for one in facts.owners)
    )


def test_its_answers_are_near_the_originals(
    quantised: tuple[str, Path, QuantizationFacts], model: ResolvedModel
) -> None:
    scheme, folder, _ = quantised
    was, now = logits(load_base(model)), logits(load_base(ResolvedModel(folder, "q", "q")))
    limit = {"int4": 0.2, "fp8": 0.1, "fp8-tensor": 0.1}.get(scheme, 0.02)
    assert 0 < float((now - was).norm() / was.norm()) < limit


def test_its_tokenizer_is_the_originals(
    quantised: tuple[str, Path, QuantizationFacts], model: ResolvedModel
) -> None:
    _, folder, _ = quantised
    text = "def f(x): return x  # ä"
    was, now = load_tokenizer(model), load_tokenizer(ResolvedModel(folder, "q", "q"))
    assert now(text).input_ids == was(text).input_ids
    assert now.chat_template == was.chat_template


def test_other_readers_are_told_how_each_matrix_is_stored(
    quantised: tuple[str, Path, QuantizationFacts],
) -> None:
    name, folder, _ = quantised
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    assert len(config["config_groups"]) == (2 if name == "int4" else 1)
    bits = {one["weights"]["num_bits"] for one in config["config_groups"].values()}
    assert bits == ({4, 8} if name == "int4" else {8})


def read_by_transformers(folder: Path) -> Any:
    pytest.importorskip("compressed_tensors", reason="the package compressed-tensors is not installed")
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float32, local_files_only=True)


@pytest.mark.parametrize("kind", ["int8", "int8-groups", "int4", "fp8", "fp8-tensor"])
def test_transformers_reads_it_as_the_same_numbers(kind: str, model: ResolvedModel, tmp_path: Path) -> None:
    """With an embedding that is kept: readers of this layout look its rows up as they are."""
    quantise(model, tmp_path / "out", replace(WANTED[kind], head=None))
    ours = load_base(ResolvedModel(tmp_path / "out", "q", "q"))
    assert torch.allclose(logits(read_by_transformers(tmp_path / "out")), logits(ours), atol=1e-5)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_transformers_reads_a_head_of_its_own_as_the_same_numbers(kind: str, tmp_path: Path) -> None:
    """Of int4 the head has eight bits: two groups of the config."""
    quantise(divisible(tmp_path / "model"), tmp_path / "out", WANTED[kind])
    ours = load_base(ResolvedModel(tmp_path / "out", "q", "q"))
    assert torch.allclose(logits(read_by_transformers(tmp_path / "out")), logits(ours), atol=1e-5)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_transformers_ends_with_an_error_where_the_embedding_is_quantised(
    kind: str, model: ResolvedModel, tmp_path: Path
) -> None:
    """It would fill an embedding that nothing names with random numbers, and say so in a warning."""
    pytest.importorskip("compressed_tensors", reason="the package compressed-tensors is not installed")
    quantise(model, tmp_path / "out", WANTED[kind])
    with pytest.raises(AttributeError, match="Embedding"):
        read_by_transformers(tmp_path / "out")


def test_int8_takes_at_most_35_percent_of_fp32_with_the_embedding(
    model: ResolvedModel, tmp_path: Path
) -> None:
    facts = quantise(model, tmp_path / "out", WANTED["int8"])
    assert facts.bytes_after <= 0.35 * facts.bytes_before
    assert "model.embed_tokens" in facts.weights


def test_a_tied_head_is_stored_once(model: ResolvedModel, tmp_path: Path) -> None:
    quantise(model, tmp_path / "out", WANTED["int8"])
    assert not [name for name in load_file(tmp_path / "out" / "model.safetensors") if "lm_head" in name]
    base = load_base(ResolvedModel(tmp_path / "out", "q", "q"))
    assert base.lm_head.weight is base.model.embed_tokens.weight


def test_of_an_untied_model_the_head_is_quantised_and_the_embedding_kept(tmp_path: Path) -> None:
    facts = quantise(divisible(tmp_path / "model"), tmp_path / "out", WANTED["int8"])
    assert "lm_head" in facts.weights
    assert "model.embed_tokens.weight" in facts.kept
    sizes = {one.owner: one for one in facts.owners}
    assert sizes["embedding"].after == sizes["embedding"].before
    assert sizes["head"].after < sizes["head"].before


def test_what_is_kept_has_the_type_it_had(tmp_path: Path) -> None:
    resolved = divisible(tmp_path / "model")
    file = resolved.folder / "model.safetensors"
    save_file(
        {name: one.bfloat16() for name, one in load_file(file).items()}, file, metadata={"format": "pt"}
    )
    facts = quantise(resolved, tmp_path / "out", WANTED["int8"])
    kept = read_kept(tmp_path / "out")
    assert {one.dtype for one in kept.values()} == {torch.bfloat16}
    norms = next(one for one in facts.owners if one.owner == "norms")
    assert norms.before == norms.after == 2 * norms.parameters


def test_the_same_model_gives_the_same_bytes(model: ResolvedModel, tmp_path: Path) -> None:
    for name in ("a", "b"):
        quantise(model, tmp_path / name, WANTED["int4"])
    a, b = (tmp_path / name / "model.safetensors" for name in ("a", "b"))
    assert a.read_bytes() == b.read_bytes()


def test_fp8_says_what_its_range_does_to_every_matrix(model: ResolvedModel, tmp_path: Path) -> None:
    facts = quantise(model, tmp_path / "out", WANTED["fp8"])
    assert [one.name for one in facts.ranges] == list(facts.weights)
    assert all(one.saturated == 0 for one in facts.ranges)
    assert sum(one.plain_underflowed for one in facts.ranges) >= sum(one.underflowed for one in facts.ranges)


def test_it_can_be_trained_on_like_any_model(model: ResolvedModel, tmp_path: Path) -> None:
    quantise(model, tmp_path / "out", WANTED["int8"])
    loaded = load_model(ResolvedModel(tmp_path / "out", "q", "q"), TuneSection(rank=2))
    assert loaded.trainable


# --- refusals ---------------------------------------------------------------------------------------------


def test_a_model_that_is_quantised_already_is_refused(model: ResolvedModel, tmp_path: Path) -> None:
    quantise(model, tmp_path / "once", WANTED["int8"])
    with pytest.raises(InputError, match="quantised already \\(compressed-tensors\\)"):
        quantise(ResolvedModel(tmp_path / "once", "once", ""), tmp_path / "twice", WANTED["int8"])


def test_a_model_that_others_quantised_is_refused(tmp_path: Path) -> None:
    resolved = divisible(tmp_path / "model")
    file = resolved.folder / "config.json"
    config = json.loads(file.read_text()) | {"quantization_config": {"quant_method": "awq"}}
    file.write_text(json.dumps(config))
    with pytest.raises(InputError, match="quantised already \\(awq\\)"):
        quantise(resolved, tmp_path / "out", WANTED["int8"])


def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path) -> None:
    resolved = divisible(tmp_path / "model")
    file = resolved.folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    tensors["model.layers.1.mlp.up_proj.weight"][4, 5] = float("inf")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.up_proj\.weight \(2\)"):
        quantise(resolved, tmp_path / "out", WANTED["int8"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("group", [4, 24, 63, 128])
def test_a_group_that_does_not_divide_is_refused_with_those_that_do(
    group: int, model: ResolvedModel, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError, match=rf"a group of {group} does not divide the 64 inputs .*8, 16, 32, 64"
    ):
        quantise(model, tmp_path / "out", Wanted("int4", group=group, head="int8"))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted("fp8", group=32), "leave out --group"),
        (Wanted("int8", per_tensor=True), "--per-tensor is of fp8"),
    ],
)
def test_settings_of_another_scheme_are_refused(
    wanted: Wanted, message: str, model: ResolvedModel, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        quantise(model, tmp_path / "out", wanted)


def test_a_model_built_otherwise_is_refused_with_what_is_odd(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    write_tiny(tmp_path / "qwen")  # for its tokenizer
    sizes: Any = {"vocab_size": 260, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    heads: Any = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).save_pretrained(tmp_path / "qwen")
    with pytest.raises(InputError, match=r"a Qwen3ForCausalLM, .*k_norm, q_norm"):
        quantise(ResolvedModel(tmp_path / "qwen", "qwen", ""), tmp_path / "out", WANTED["int8"])


def test_a_folder_that_holds_something_is_refused(model: ResolvedModel, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="not an empty folder"):
        quantise(model, tmp_path / "out", WANTED["int8"])


# --- damage -----------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(model: ResolvedModel, tmp_path: Path) -> Path:
    """A whole folder, to be damaged."""
    quantise(model, tmp_path / "damaged", WANTED["int8"])
    return tmp_path / "damaged"


def rewrite(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_another_folder_is_no_quantised_one(model: ResolvedModel) -> None:
    with pytest.raises(InputError, match="trueup quantize"):
        read_quantized(model.folder)


def test_a_later_format_is_refused(damaged: Path) -> None:
    facts = json.loads((damaged / FACTS_FILE).read_text()) | {"format": 99}
    (damaged / FACTS_FILE).write_text(json.dumps(facts))
    with pytest.raises(InputError, match="format 99"):
        facts_of(damaged)


def test_facts_that_cannot_be_read_are_damage(damaged: Path) -> None:
    (damaged / FACTS_FILE).write_text('{"format": 1}')
    with pytest.raises(StorageError, match="damaged"):
        facts_of(damaged)


def test_a_missing_tensor_is_damage(damaged: Path) -> None:
    rewrite(damaged, lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight_scale"))
    with pytest.raises(StorageError, match="up_proj"):
        read_quantized(damaged)


def test_more_inputs_than_are_packed_are_damage(damaged: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight_shape"
    rewrite(damaged, lambda tensors: tensors[name].add_(torch.tensor([0, 64])))
    with pytest.raises(StorageError, match="not packed as it says"):
        read_quantized(damaged)


def test_nothing_that_is_read_keeps_the_file_mapped(
    quantised: tuple[str, Path, QuantizationFacts],
) -> None:
    """A single scale that is a part of the mapped file would keep all of it."""
    _, folder, _ = quantised
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        pytest.skip("no /proc here")
    held = [read_quantized(folder), read_kept(folder), InferenceModel.load(folder)]
    assert str(folder / "model.safetensors") not in maps.read_text()
    assert all(held)


def test_a_scale_that_is_no_number_is_damage(damaged: Path) -> None:
    rewrite(damaged, lambda tensors: tensors["model.layers.0.mlp.up_proj.weight_scale"].fill_(float("nan")))
    with pytest.raises(StorageError, match="scales that are not finite"):
        load_base(ResolvedModel(damaged, "damaged", ""))


def test_a_truncated_file_is_damage(damaged: Path) -> None:
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(StorageError):
        read_quantized(damaged)


def test_a_full_disk_leaves_nothing_behind(
    model: ResolvedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StorageError, match="No space left"):
        quantise(model, tmp_path / "out", WANTED["int8"])
    assert list(tmp_path.iterdir()) == []
