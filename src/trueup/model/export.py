"""How a model leaves: its trainable weights into the run folder, an adapter or a merged model for other
programs (`run_export` does it for a run that has ended, `gguf_export` writes GGUF).

Everything is safetensors and JSON; nothing is pickled. Weights carry digests, and damage is found before use.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trueup.files.whole import flush, read_json_object, replace_text, sha256_of
from trueup.schema import InputError, StorageError

from .load import LoadedModel
from .staging import require_empty, staged_folder, storage_errors

WEIGHTS_MANIFEST = "weights.json"
WEIGHTS_FORMAT = 1
SHARD_SIZE = "5GB"

# --- the run's own weights --------------------------------------------------------------------------------


def save_weights(loaded: LoadedModel, folder: Path, *, about: dict[str, Any] | None = None) -> None:
    """Keeps the trainable tensors in `folder`, replacing what was kept there; `about` (JSON) travels along.

    The tensors go into a new file named by its digest; then the manifest, replaced in one step, points to
    it; then the old file is removed. A kill at any instant leaves either the old weights or the new. Raises
    StorageError.
    """
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in loaded.trainable}
    with storage_errors("saving the weights", folder):
        folder.mkdir(parents=True, exist_ok=True)
        staging = folder / ".part.safetensors"
        try:
            _save_tensors(tensors, staging)
            digest = sha256_of(staging)
            path = folder / f"weights-{digest[:16]}.safetensors"
            size = staging.stat().st_size
            staging.replace(path)
        finally:
            staging.unlink(missing_ok=True)
        flush(path)
        manifest = {
            "format": WEIGHTS_FORMAT,
            "file": path.name,
            "bytes": size,
            "sha256": digest,
            "about": about or {},
        }
        replace_text(folder / WEIGHTS_MANIFEST, json.dumps(manifest, indent=1))
        for old in folder.glob("weights-*.safetensors"):
            if old != path:
                old.unlink(missing_ok=True)


def read_weights_manifest(folder: Path) -> dict[str, Any]:
    """What `save_weights` said of the kept weights, their `about` included. Raises StorageError where it is
    damaged, InputError where there is none."""
    path = folder / WEIGHTS_MANIFEST
    if not path.is_file():
        raise InputError(f"{folder}: no kept weights ({WEIGHTS_MANIFEST} is not there)")
    try:
        manifest = read_json_object(path)
        if manifest["format"] != WEIGHTS_FORMAT:
            raise InputError(
                f"{path}: format {manifest['format']}; this version of trueup reads {WEIGHTS_FORMAT}"
            )
        if Path(manifest["file"]).name != manifest["file"]:
            raise ValueError("it names a file outside its folder")
        manifest["sha256"], manifest["bytes"], manifest["about"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path}: damaged ({error})") from None
    return manifest


def load_weights(loaded: LoadedModel, folder: Path) -> dict[str, Any]:
    """Puts kept weights back, in place, and returns their `about`.

    Raises StorageError where the file does not have its digest, InputError where names or shapes are not this
    model's. The model is untouched unless everything fits.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    manifest = read_weights_manifest(folder)
    path = folder / manifest["file"]
    try:
        if path.stat().st_size != manifest["bytes"] or sha256_of(path) != manifest["sha256"]:
            raise StorageError(f"{path}: damaged, its digest is not the one in {WEIGHTS_MANIFEST}")
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path}: cannot be read ({error})") from None
    parameters = dict(loaded.trainable)
    if tensors.keys() != parameters.keys():
        odd = sorted(tensors.keys() ^ parameters.keys())
        raise InputError(f"{path}: not this model's weights; {len(odd)} names differ, first {odd[0]}")
    for name, parameter in parameters.items():
        if tensors[name].shape != parameter.shape:
            raise InputError(
                f"{path}: {name} is {tuple(tensors[name].shape)}, the model's {tuple(parameter.shape)}"
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    return dict(manifest["about"])


def _save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, metadata={"format": "pt"})


# --- for other programs -----------------------------------------------------------------------------------


def save_adapter(loaded: LoadedModel, folder: Path, *, finish: Callable[[Path], None] | None = None) -> None:
    """Writes a peft adapter: `PeftModel.from_pretrained(base, folder)` gives this model again.

    `finish` is given the whole folder before it gets its name, to look at it and to add to it; what it raises
    leaves nothing behind.

    `base_model_name_or_path` is the name the recipe may be shared with (built-in, hub name, or the base
    folder's own name), never a path of this machine: the base is loaded by the reader and handed to peft.
    Raises InputError after full fine-tuning, which has no adapter, and where `folder` is not empty.
    """
    if loaded.section.method != "lora":
        raise InputError(
            "this run trained every parameter, so there is no adapter; export the merged model instead"
        )
    require_empty(folder)
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(loaded.module, save_embedding_layers=False)
    tensors = {name: _exact(tensor).detach().cpu().contiguous() for name, tensor in state.items()}
    with staged_folder(folder, "exporting the adapter") as staging:
        _save_tensors(tensors, staging / "adapter_model.safetensors")
        config = json.dumps(_adapter_config(loaded), indent=2, sort_keys=True)
        (staging / "adapter_config.json").write_text(config + "\n", encoding="utf-8")
        if finish is not None:
            finish(staging)


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """An adapter is fp32 whatever the run kept it in: peft and others add it up in what they find."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def _adapter_config(loaded: LoadedModel) -> dict[str, Any]:
    config: dict[str, Any] = loaded.module.peft_config["default"].to_dict()  # type: ignore[index, union-attr]
    config["base_model_name_or_path"] = loaded.resolved.name
    config["inference_mode"] = True
    return {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}


def save_merged(
    loaded: LoadedModel, folder: Path, tokenizer: Any, *, finish: Callable[[Path], None] | None = None
) -> None:
    """Writes an ordinary model folder: `AutoModelForCausalLM.from_pretrained(folder)` gives this model's
    logits.

    `finish` as for `save_adapter`. The model in memory stays as it is: adding the adapters to its weights and
    taking them out again would leave rounding behind. Raises InputError where `folder` is not empty,
    StorageError for a full disk.
    """
    require_empty(folder)
    state = merged_state(loaded)
    with staged_folder(folder, "exporting the merged model") as staging:
        loaded.base.save_pretrained(staging, state_dict=state, max_shard_size=SHARD_SIZE)
        tokenizer.save_pretrained(staging)
        _forget_machine(staging / "config.json")
        if finish is not None:
            finish(staging)


def merged_state(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    """The causal LM's state with every adapter added to its layer, under the names of the model without
    adapters."""
    from peft.tuners.lora import LoraLayer

    layers = {name: module for name, module in loaded.base.named_modules() if isinstance(module, LoraLayer)}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in loaded.base.state_dict().items():
        owner, inside, leaf = name.partition(".base_layer.")
        if inside:
            merged = _merged_weight(layers[owner], tensor) if leaf == "weight" else tensor
            state[f"{owner}.{leaf}"] = merged.detach()
        elif ".lora_" not in name:
            state[name] = tensor.detach()
    return state


@torch.no_grad()
def _merged_weight(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    delta: torch.Tensor = layer.get_delta_weight("default")
    return weight + delta.to(weight.dtype)


def _forget_machine(config_file: Path) -> None:
    config = read_json_object(config_file)
    if config.pop("_name_or_path", None) is not None:
        config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
