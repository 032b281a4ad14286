"""Loading: what is trained, from which first values, and which models are refused."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trueup.model.builtin import ResolvedModel, resolve_model
from trueup.model.load import linear_names, load_model, load_tokenizer
from trueup.recipe.models import TuneSection
from trueup.schema import InputError

LORA = TuneSection(rank=4)
FULL = TuneSection(method="full")


@pytest.fixture
def folder(tmp_path: Path, tiny: ResolvedModel) -> Path:
    return Path(shutil.copytree(tiny.folder, tmp_path / "mine"))


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_lora_trains_the_adapters_only(tiny: ResolvedModel) -> None:
    loaded = load_model(tiny, LORA)
    names = [name for name, _ in loaded.trainable]
    assert len(names) == 2 * 4 * 2  # layers, targets, A and B
    assert all("lora_" in name for name in names)
    assert not loaded.head_weight.requires_grad
    assert not loaded.base.get_input_embeddings().weight.requires_grad
    h, d, rank = 64, 16, 4
    per_layer = rank * ((h + 4 * d) + (h + 2 * d) + (h + 2 * d) + (4 * d + h))
    assert loaded.dims.lora_parameters == loaded.dims.trainable_parameters == 2 * per_layer
    stored = sum(t.numel() for t in load_file(tiny.folder / "model.safetensors").values())
    assert loaded.dims.parameters == stored + loaded.dims.lora_parameters  # the formulas take them off again
    assert loaded.module.training
    assert loaded.max_positions == 4096


@pytest.mark.parametrize("fixture", ["tiny", "tied"])
def test_full_trains_everything_once(fixture: str, request: pytest.FixtureRequest) -> None:
    resolved: ResolvedModel = request.getfixturevalue(fixture)
    loaded = load_model(resolved, FULL)
    stored = sum(tensor.numel() for tensor in load_file(resolved.folder / "model.safetensors").values())
    assert loaded.dims.parameters == loaded.dims.trainable_parameters == stored
    assert loaded.dims.lora_parameters == 0
    assert loaded.dims.tied_head == (fixture == "tied")
    assert sum(p.numel() for _, p in loaded.trainable) == stored
    assert all(p.dtype == torch.float32 for _, p in loaded.trainable)


def test_half_precision_files_are_trained_in_fp32(folder: Path, tmp_path: Path) -> None:
    path = folder / "model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(path).items()}, path, metadata={"format": "pt"})
    edit_json(folder / "config.json", dtype="bfloat16")
    loaded = load_model(resolve_model(str(folder), tmp_path), FULL)
    assert {p.dtype for _, p in loaded.trainable} == {torch.float32}


def test_adapters_follow_the_seed_and_nothing_else(tiny: ResolvedModel) -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    first = dict(load_model(tiny, LORA, seed=1).trainable)
    assert torch.equal(torch.rand(4), expected)  # the caller's random state is as it was
    again, other = (
        dict(load_model(tiny, LORA, seed=1).trainable),
        dict(load_model(tiny, LORA, seed=2).trainable),
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if "lora_A" in name)
    assert all(parameter.abs().max() == 0 for name, parameter in first.items() if "lora_B" in name)


@pytest.mark.parametrize("targets", [("q_proj", "query"), ("lm_head",), ("embed_tokens",), ("proj",), ()])
def test_an_unknown_target_lists_the_linear_layers(tiny: ResolvedModel, targets: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        load_model(tiny, TuneSection(targets=targets))
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in str(caught.value)
    assert all(target in str(caught.value) for target in targets if target != "q_proj")


def test_linear_names_leave_the_head_out(tiny: ResolvedModel) -> None:
    names = linear_names(load_model(tiny, FULL).base)
    assert names == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def test_missing_tensors_are_not_filled_with_random_numbers(folder: Path, tmp_path: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 of the model's tensors .*layers\.1\.mlp\.up_proj"):
        load_model(resolve_model(str(folder), tmp_path), LORA)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tiny: ResolvedModel) -> None:
    tokenizer = load_tokenizer(tiny)
    load_model(tiny, LORA, tokenizer=tokenizer)
    tokenizer.add_tokens(["<|one-too-many|>"])
    with pytest.raises(InputError, match="token id 260, but the model's embedding has only 260 rows"):
        load_model(tiny, LORA, tokenizer=tokenizer)


def test_code_in_the_folder_is_never_run(folder: Path, tmp_path: Path) -> None:
    (folder / "modeling_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit_json(
        folder / "config.json",
        model_type="own",
        auto_map={"AutoConfig": "modeling_own.Config", "AutoModelForCausalLM": "modeling_own.Model"},
    )
    resolved = resolve_model(str(folder), tmp_path)
    with pytest.raises(InputError, match="never"):
        load_model(resolved, LORA)
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_that_cannot_be_read_says_so(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="the tokenizer cannot be loaded"):
        load_tokenizer(resolve_model(str(folder), tmp_path))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"intermediate_size": None}, "no 'intermediate_size'"),
    ],
)
def test_a_model_whose_work_cannot_be_counted_is_refused(
    folder: Path, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    with pytest.raises(InputError, match=expected):
        load_model(resolve_model(str(folder), tmp_path), LORA)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_logits_that_are_not_hidden_times_head_are_found_out(
    tmp_path: Path, tiny: ResolvedModel, scale: float
) -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    config = GraniteConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        logits_scaling=scale,
    )
    GraniteForCausalLM(config).save_pretrained(tmp_path / "granite")
    shutil.copy(tiny.folder / "tokenizer.json", tmp_path / "granite")
    resolved = resolve_model(str(tmp_path / "granite"), tmp_path)
    if scale == 1.0:
        load_model(resolved, LORA)
    else:
        with pytest.raises(InputError, match="scaled or capped logits"):
            load_model(resolved, LORA)


def test_a_model_whose_packed_examples_touch_is_found_out(
    tiny: ResolvedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain_causal(segments_BT: torch.Tensor) -> torch.Tensor:
        length = segments_BT.shape[1]
        return torch.ones(1, 1, length, length, dtype=torch.bool).tril()

    monkeypatch.setattr("trueup.model.load.block_causal_mask", plain_causal)
    with pytest.raises(InputError, match="influence each other"):
        load_model(tiny, LORA)


def test_a_sliding_window_limits_the_longest_example(tmp_path: Path, tiny: ResolvedModel) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=64,
        max_position_embeddings=512,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path / "mistral")
    shutil.copy(tiny.folder / "tokenizer.json", tmp_path / "mistral")
    assert load_model(resolve_model(str(tmp_path / "mistral"), tmp_path), LORA).max_positions == 64


def test_loading_says_nothing_and_asks_nobody(
    tiny: ResolvedModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load_model(tiny, LORA, tokenizer=load_tokenizer(tiny))
    load_model(tiny, FULL)
    assert capfd.readouterr() == ("", "")


def test_the_first_adapters_change_nothing(tiny: ResolvedModel) -> None:
    tokens = torch.arange(10)[None]
    plain, adapted = load_model(tiny, FULL), load_model(tiny, LORA)
    places = (tokens, torch.arange(10)[None], torch.zeros_like(tokens))
    with torch.no_grad():
        assert torch.equal(plain.forward_hidden(*places), adapted.forward_hidden(*places))
