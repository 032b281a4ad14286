"""A model as one GGUF file, as llama.cpp and its relatives read it: Llama architecture, f32, f16 or q8_0.

Letters: L layers, H heads, K key-value heads, d head dimension, h hidden size.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from trueup.schema import InputError, MissingExtraError, TrueupError

from .export import merged_state
from .gguf_tokenizer import GgufTokenizer, read_tokenizer
from .load import LoadedModel

if TYPE_CHECKING:
    import numpy as np

GgufType = Literal["f32", "f16", "q8_0"]
ARCHITECTURE = "LlamaForCausalLM"
_Q8_0_BLOCK = 32


def require_gguf() -> None:
    """Raises MissingExtraError where the package `gguf` is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("gguf", "gguf", "exporting a GGUF file")


def write_gguf(loaded: LoadedModel, tokenizer: Any, path: Path, kind: GgufType, *, name: str) -> None:
    """Writes the model, adapters merged in, to `path`; `name` becomes its `general.name`.

    Norms are always f32. With q8_0, a matrix whose rows are no multiple of 32 long is f16. Tensors are
    converted one at a time. Raises InputError for what a GGUF file of this architecture cannot hold, OSError
    where the disk refuses.
    """
    config = loaded.base.config
    check_exportable(loaded)
    rows = loaded.base.get_input_embeddings().weight.shape[0]
    parts = read_tokenizer(tokenizer, rows, loaded.resolved.name)
    writer = _writer(path)
    try:
        _add_config(writer, config, kind, name=name, base=loaded.resolved.name)
        _add_tokenizer(writer, parts)
        _write_tensors(writer, loaded, kind)
    finally:
        writer.close()


def check_exportable(loaded: LoadedModel) -> None:
    """Raises InputError unless the model is one that the file's architecture `llama` describes."""
    config, name = loaded.base.config, loaded.resolved.name
    found = type(loaded.base).__name__
    if found != ARCHITECTURE:
        raise InputError(
            f"{name} is a {found}; a GGUF file is written of a {ARCHITECTURE} only. Export the merged model "
            "(--merged) and convert it with a converter that knows this architecture"
        )
    if config.attention_bias or config.mlp_bias or config.hidden_act != "silu":
        raise InputError(
            f"{name} has biases or an activation other than silu, which the GGUF architecture 'llama' has no "
            "place for; export the merged model instead (--merged)"
        )
    kind = _rope(config).get("rope_type", "default")
    if kind not in ("default", "llama3", "linear"):
        raise InputError(
            f"{name} scales its rotary positions by '{kind}'; a GGUF file is written for 'default', 'linear' "
            "and 'llama3'. Export the merged model instead (--merged)"
        )


def _rope(config: Any) -> dict[str, Any]:
    return dict(getattr(config, "rope_parameters", None) or {})


def _writer(path: Path) -> Any:
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFValueType, GGUFWriter

    class Writer(GGUFWriter):
        """As the package's own, and able to write an empty list of merges, which it refuses although the
        format has room for it: llama.cpp wants the key even of a vocabulary without merges."""

        def _pack_val(self, val: Any, vtype: Any, add_vtype: bool, sub_type: Any = None) -> bytes:
            if vtype == GGUFValueType.ARRAY and len(val) == 0:
                head = self._pack("I", vtype) if add_vtype else b""
                return bytes(head + self._pack("I", sub_type) + self._pack("Q", 0))
            packed: bytes = super()._pack_val(val, vtype, add_vtype, sub_type)
            return packed

    return Writer(path, MODEL_ARCH_NAMES[MODEL_ARCH.LLAMA])


# --- metadata ---------------------------------------------------------------------------------------------


def _add_config(writer: Any, config: Any, kind: GgufType, *, name: str, base: str) -> None:
    from gguf import GGML_QUANT_VERSION, GGUFType, LlamaFileType

    file_types = {
        "f32": LlamaFileType.ALL_F32,
        "f16": LlamaFileType.MOSTLY_F16,
        "q8_0": LlamaFileType.MOSTLY_Q8_0,
    }
    rope = _rope(config)
    writer.add_type(GGUFType.MODEL)
    writer.add_name(name)
    writer.add_base_model_count(1)
    writer.add_base_model_name(0, base)
    writer.add_file_type(file_types[kind])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if rope.get("rope_type") == "linear":
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))


def _add_tokenizer(writer: Any, parts: GgufTokenizer) -> None:
    from gguf import GGUFValueType, Keys

    writer.add_tokenizer_model("gpt2" if parts.scores is None else "llama")
    writer.add_tokenizer_pre(parts.pre)
    writer.add_token_list(parts.tokens)
    writer.add_token_types(parts.kinds)
    if parts.scores is not None:
        writer.add_token_scores(parts.scores)
    else:
        merges = (parts.merges, GGUFValueType.ARRAY, GGUFValueType.STRING)
        writer.add_key_value(Keys.Tokenizer.MERGES, *merges)
    for name, number in parts.special_ids.items():
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(parts.add_bos)
    writer.add_add_space_prefix(parts.add_space_prefix)
    if parts.chat_template is not None:
        writer.add_chat_template(parts.chat_template)


# --- tensors ----------------------------------------------------------------------------------------------


def _write_tensors(writer: Any, loaded: LoadedModel, kind: GgufType) -> None:
    """First what each tensor will be, then the tensors themselves, so that one at a time is in memory."""
    import numpy as np
    from gguf import quant_shape_to_byte_shape

    tensors = list(named_tensors(loaded))
    dtypes = {"F32": "float32", "F16": "float16", "Q8_0": "uint8"}
    for name, tensor in tensors:
        stored, shape = _stored_as(tensor, kind), tuple(tensor.shape)
        dtype: np.dtype[Any] = np.dtype(dtypes[stored.name])
        if stored.name == "Q8_0":
            shape = quant_shape_to_byte_shape(shape, stored)
        writer.add_tensor_info(name, shape, dtype, math.prod(shape) * dtype.itemsize, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, tensor in tensors:
        writer.write_tensor_data(_converted(tensor, _stored_as(tensor, kind)))


def named_tensors(loaded: LoadedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The merged model's tensors under GGUF's names, queries and keys in the order of its rotary layout."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    config = loaded.base.config
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    state = merged_state(loaded)
    if config.tie_word_embeddings:  # a file without a head means: the embedding is the head
        state.pop("lm_head.weight", None)
    if _rope(config).get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_factors(config)
    for name, tensor in state.items():
        found = names.get_name(name, try_suffixes=(".weight",))
        if found is None:
            raise TrueupError(f"{loaded.resolved.name}: there is no place in a GGUF file for {name}")
        if name.endswith("q_proj.weight"):
            tensor = permuted(tensor, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            tensor = permuted(tensor, config.num_key_value_heads)
        yield found, tensor


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """(heads x d, h), rotary halves of each head interleaved: row 2i of a head is its row i, row 2i + 1 its
    row d/2 + i. Hugging Face rotates halves, llama.cpp neighbours."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


def llama3_factors(config: Any) -> torch.Tensor:
    """(d/2,) What Llama 3.1 divides each rotary frequency by: 1 for waves shorter than the old context,
    `factor` for longer ones, a blend between (Llama 3.1 reference code, `apply_scaling`)."""
    rope = _rope(config)
    factor, old_length = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    d = config.head_dim
    steps = torch.arange(0, d, 2, dtype=torch.float64) / d
    waves = 2 * math.pi * float(rope["rope_theta"]) ** steps
    smooth = ((old_length / waves - low) / (high - low)).clamp(0, 1)
    factors: torch.Tensor = 1 / ((1 - smooth) / factor + smooth)
    return factors.to(torch.float32)


def _stored_as(tensor: torch.Tensor, kind: GgufType) -> Any:
    from gguf import GGMLQuantizationType

    if tensor.dim() == 1 or kind == "f32":
        return GGMLQuantizationType.F32
    if kind == "q8_0" and tensor.shape[-1] % _Q8_0_BLOCK == 0:
        return GGMLQuantizationType.Q8_0
    return GGMLQuantizationType.F16


def _converted(tensor: torch.Tensor, stored: Any) -> np.ndarray[Any, Any]:
    from gguf import quantize

    values = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy()
    converted: np.ndarray[Any, Any] = quantize(values, stored)
    return converted
