"""A quantised folder as an ordinary transformers model with the weights that its values and scales stand for:
for the quality gate, for parity, and for whatever else takes a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .quantized import dequantise, read_kept, read_quantized


def dequantised_state(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Every stored parameter by its full name. Raises StorageError for a damaged folder."""
    kept = {name: tensor.to(dtype) for name, tensor in read_kept(folder).items()}
    found = {f"{name}.weight": dequantise(weight, dtype) for name, weight in read_quantized(folder).items()}
    return {**kept, **found}


def load_dequantised(folder: Path, *, attention: str = "sdpa", dtype: torch.dtype = torch.float32) -> Any:
    """(the causal LM, transformers' loading info). Its config no longer speaks of quantisation: what it holds
    is plain numbers."""
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return causal_lm(config, dequantised_state(folder, dtype), attention=attention, dtype=dtype)


def causal_lm(
    config: Any,
    state: dict[str, torch.Tensor],
    *,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
) -> Any:
    """(the causal LM that `config` describes, with these weights; transformers' loading info)."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    return auto._model_mapping[type(config)].from_pretrained(
        None,
        config=config,
        state_dict=state,
        dtype=dtype,
        attn_implementation=attention,
        output_loading_info=True,
    )
