"""How a model leaves: an adapter or a merged model for other programs (`run_export` does it for a run that
has ended, `gguf_export` writes GGUF). Everything is safetensors and JSON; nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trueup.files.whole import read_json_object
from trueup.schema import InputError

from .load import LoadedModel
from .staging import require_empty, staged_folder

SHARD_SIZE = "5GB"


def _save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, metadata={"format": "pt"})


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
