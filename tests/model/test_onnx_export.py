"""ONNX graphs, run by ONNX Runtime with the run's own logits."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kept_checkpoints import keep
from trueup.model import onnx_export
from trueup.model.builtin import ResolvedModel
from trueup.model.load import LoadedModel, load_model, load_tokenizer
from trueup.model.onnx_export import MODEL_FILE, PACKAGES, OnnxModel, require_onnx
from trueup.model.run_export import RunWeights, export_onnx_from_run
from trueup.recipe.models import TuneSection
from trueup.schema import InputError, MissingExtraError, TrueupError

LORA = TuneSection(rank=4, alpha=12, targets=("q_proj", "down_proj"))
ABSENT = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(ABSENT), reason=f"the extra onnx is not installed: {', '.join(ABSENT)}")


def trained(resolved: ResolvedModel) -> LoadedModel:
    loaded = load_model(resolved, LORA)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in loaded.trainable:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    loaded.module.eval()
    return loaded


@pytest.fixture(scope="module")
def run(tied: ResolvedModel, tmp_path_factory: pytest.TempPathFactory) -> RunWeights:
    return RunWeights(keep(trained(tied), tmp_path_factory.mktemp("run") / "kept"), tied, LORA)


@pytest.fixture(scope="module")
def exported(run: RunWeights, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("onnx") / "out"
    done = export_onnx_from_run(run, out, lambda check: f"a card: {check}")
    return out, done.check


@needs_onnx
def test_its_logits_are_the_runs_own(exported: tuple[Path, Any]) -> None:
    folder, check = exported
    assert check.reader == "ONNX Runtime"
    assert check.max_abs_difference < 1e-4
    assert (folder / "README.md").read_text().startswith("a card: read back by ONNX Runtime")


@needs_onnx
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (3, 70)])
def test_it_takes_any_rows_and_lengths(
    rows: int, length: int, exported: tuple[Path, Any], tied: ResolvedModel
) -> None:
    """It was traced with two rows of eight."""
    loaded, tokens_BT = trained(tied), torch.arange(rows * length).view(rows, length) % 256
    with torch.no_grad():
        expected = loaded.base(input_ids=tokens_BT).logits
    found = OnnxModel(exported[0])(tokens_BT).logits
    assert torch.allclose(found, expected, atol=1e-4)


@needs_onnx
def test_its_tokenizer_is_beside_it(exported: tuple[Path, Any], tied: ResolvedModel) -> None:
    folder = exported[0]
    text = "def f(x): return x"
    was, now = load_tokenizer(tied), load_tokenizer(ResolvedModel(folder, "onnx", ""))
    assert now(text).input_ids == was(text).input_ids
    assert {MODEL_FILE, f"{MODEL_FILE}.data", "config.json"} <= {path.name for path in folder.iterdir()}


@needs_onnx
@pytest.mark.slow
def test_a_graph_that_is_another_model_is_removed(
    run: RunWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Callable[[Any], dict[str, torch.Tensor]] = onnx_export.merged_state

    def without_a_layer(loaded: Any) -> dict[str, torch.Tensor]:
        state = right(loaded)
        return {name: one * 0 if "layers.1.mlp.up" in name else one for name, one in state.items()}

    monkeypatch.setattr(onnx_export, "merged_state", without_a_layer)
    with pytest.raises(TrueupError, match="not the run's model"):
        export_onnx_from_run(run, tmp_path / "out", str)
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_a_folder_that_is_taken_is_refused(run: RunWeights, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="not an empty folder"):
        export_onnx_from_run(run, tmp_path / "out", str)


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"trueup\[onnx\]"):
        require_onnx()
