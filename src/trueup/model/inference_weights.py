"""Where serving takes a model's weights from, matrix by matrix, so that no second model is ever in memory: a
folder, plain or quantised, or a model that is loaded already. And what a forward pass must know beside them.

P positions, D numbers of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from trueup.schema import InputError, ModelDims, TrueupError

from .decoder import UnsupportedError, check_decoder, check_structure
from .dims import most_positions, require_possible
from .folder import config_of, weight_files
from .inference_check import require_weights, with_one_layer
from .inference_linear import Matrix
from .quantized import facts_of, is_quantised, read_kept, read_quantized
from .quiet import silence_libraries

# Rotary embeddings whose angles depend on how long a sequence is, beyond the positions they were made for.
GROWING_ROPE = ("dynamic", "longrope")
WORDS = 200  # characters of what transformers says of a config.json: it may list all models that it knows
SKETCHED = 64  # rows of the embedding and size of the feed-forward part of a model built to be looked at


@dataclass(frozen=True)
class Frame:
    """What there is beside matrices. `turn_2PD`: cosine and sine by position, as the model scales them, the
    first half of the sines negative."""

    dims: ModelDims
    max_positions: int
    scaling: float  # of attention's scores
    eps: float
    turn_2PD: torch.Tensor


class Weights(Protocol):
    """By transformers' names. `matrix` takes one without ".weight"."""

    def matrix(self, name: str) -> Matrix: ...
    def vector(self, name: str) -> torch.Tensor | None: ...


@dataclass(frozen=True)
class LoadedWeights:
    """Of a causal LM in memory, adapters added to what they adapt."""

    base: Any

    def matrix(self, name: str) -> torch.Tensor:
        module = self.base.get_submodule(name)
        weight: torch.Tensor = getattr(module, "base_layer", module).weight.detach()
        if hasattr(module, "lora_A"):
            down, up = (getattr(module, part)["default"].weight.detach() for part in ("lora_A", "lora_B"))
            weight = weight + (up.float() @ down.float() * module.scaling["default"]).to(weight.dtype)
        return weight

    def vector(self, name: str) -> torch.Tensor | None:
        owner, _, last = name.rpartition(".")
        module = self.base.get_submodule(owner)
        found = getattr(getattr(module, "base_layer", module), last, None)
        return None if found is None else found.detach()


@dataclass(frozen=True)
class FolderWeights:
    """Of a folder, plain or one that `trueup quantize` wrote."""

    folder: Path

    @cached_property
    def _quantised(self) -> dict[str, Any]:
        return read_quantized(self.folder) if is_quantised(self.folder) else {}

    @cached_property
    def _kept(self) -> dict[str, torch.Tensor]:
        return read_kept(self.folder)

    @cached_property
    def _file_of(self) -> dict[str, Path]:
        from safetensors import safe_open

        places: dict[str, Path] = {}
        for path in weight_files(self.folder):
            with safe_open(path, framework="pt") as file:
                places.update(dict.fromkeys(file.keys(), path))
        return places

    def matrix(self, name: str) -> Matrix:
        if name in self._quantised:
            return self._quantised.pop(name)  # type: ignore[no-any-return]  # nobody asks twice
        found = self.vector(f"{name}.weight")
        if found is None:
            raise InputError(f"{self.folder}: the weight files have no {name}.weight; copy the model again")
        return found

    def vector(self, name: str) -> torch.Tensor | None:
        from safetensors import safe_open

        if is_quantised(self.folder):
            return self._kept.get(name)
        path = self._file_of.get(name)
        if path is None:
            return None
        with safe_open(path, framework="pt") as file:
            found: torch.Tensor = file.get_tensor(name)
        return found

    @property
    def parameters(self) -> int:
        from math import prod

        from safetensors import safe_open

        if is_quantised(self.folder):
            return sum(owner.parameters for owner in facts_of(self.folder).owners)
        total = 0
        for path in weight_files(self.folder):
            with safe_open(path, framework="pt") as file:
                total += sum(prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
        return total


def frame_of_folder(folder: Path, max_positions: int | None) -> Frame:
    """Raises InputError for a model that serving's forward pass does not fit: looked at in a model of one
    layer, without the folder's weights. And for weight files that are not what config.json describes."""
    config = config_of(folder)
    require_possible(config, folder.name)
    with _input_errors(folder.name):
        sketch = _sketch(config)
        check_structure(sketch)
        check_decoder(sketch)
        dims = ModelDims.from_config(config, parameters=FolderWeights(folder).parameters, trainable=0)
        require_weights(folder, config, dims)
        return _frame(sketch, dims, most_positions(config), max_positions, folder.name)


def frame_of_loaded(base: Any, dims: ModelDims, max_positions: int | None) -> Frame:
    """Of a model in memory. Raises InputError as `frame_of_folder` does."""
    with _input_errors(type(base).__name__):
        check_decoder(base)
        return _frame(base, dims, most_positions(base.config.to_dict()), max_positions, type(base).__name__)


def _sketch(config: dict[str, Any]) -> Any:
    """A causal LM of this configuration, with one layer, a small vocabulary and random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    silence_libraries()
    own = with_one_layer(config) | {"vocab_size": SKETCHED, "intermediate_size": SKETCHED}
    own |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    auto: Any = AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return auto.from_config(AutoConfig.for_model(**own), dtype=torch.float32).eval()


def _frame(base: Any, dims: ModelDims, most: int | None, wanted: int | None, name: str) -> Frame:
    decoder = getattr(base, str(base.base_model_prefix))
    positions = min(size for size in (most, wanted, 1 << 20) if size)
    kind = str(getattr(decoder.rotary_emb, "rope_type", "default"))
    rope = dict(getattr(base.config, "rope_parameters", None) or {})
    unscaled: Any = getattr(decoder.rotary_emb, "original_max_seq_len", positions)
    made_for = int(rope.get("original_max_position_embeddings") or unscaled)
    if kind in GROWING_ROPE and positions > made_for:
        raise InputError(
            f"{name}: its rotary embedding ({kind}) turns differently in contexts of more than {made_for} "
            f"tokens, and keys kept in a cache cannot be turned again; serve contexts up to {made_for}"
        )
    layer = decoder.layers[0]
    return Frame(
        dims=dims,
        max_positions=positions,
        scaling=float(layer.self_attn.scaling),
        eps=float(layer.input_layernorm.variance_epsilon),
        turn_2PD=_turns(decoder.rotary_emb, positions),
    )


@torch.no_grad()
def _turns(rotary: Any, positions: int) -> torch.Tensor:
    device = rotary.inv_freq.device
    places = torch.arange(positions, device=device)[None]
    cos_1PD, sin_1PD = rotary(torch.zeros(1, dtype=torch.float32, device=device), places)
    sin_PD = sin_1PD[0].clone()
    sin_PD[:, : sin_PD.shape[1] // 2].neg_()
    return torch.stack((cos_1PD[0], sin_PD))


@contextmanager
def _input_errors(name: str) -> Iterator[None]:
    try:
        yield
    except UnsupportedError as error:
        raise InputError(
            f"{name}: {error}; serving has a forward pass of its own, for Llama-class decoders alone"
        ) from None
    except (TrueupError, MemoryError):
        raise
    except Exception as error:  # of many kinds, for what config.json should not say
        words = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{name}: its config.json does not describe a model that transformers knows: {words[:WORDS]}"
        ) from None
