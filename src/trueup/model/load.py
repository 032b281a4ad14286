"""From a model folder to something that can be trained: the base model with adapters, or all parameters.

B rows, T positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn

from trueup.recipe.models import TuneSection
from trueup.schema import InputError, ModelDims, TrueupError

from .builtin import ResolvedModel
from .decoder import Decoder, UnsupportedError, build_decoder, check_decoder, check_structure
from .dims import most_positions
from .flex import block_mask
from .folder import config_of
from .masks import additive_mask, block_causal_mask
from .precision import Precision
from .probe import probe
from .quantized import is_quantised
from .quantized_load import load_dequantised
from .quiet import silence_libraries
from .storage import keep_weights_as

Attention = Literal["sdpa", "eager"]

# Recorded where config.json names more experts than one: ModelDims and its formulas describe dense models.
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for training. `module` is the peft model for LoRA, the causal LM itself otherwise."""

    module: nn.Module
    base: Any  # the causal LM, of whatever architecture class; its linear layers carry the adapters for LoRA
    resolved: ResolvedModel
    section: TuneSection
    dims: ModelDims
    max_positions: int | None  # the longest example the model is made for, in tokens
    attention: Attention | Literal["flex"]
    decoder: Decoder | None = None  # our own forward pass, where it is used

    @property
    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that the optimizer moves, in the module's order. A tied head appears once."""
        return [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]

    @property
    def head_weight(self) -> torch.Tensor:
        """(V, H). The embedding itself where the head is tied."""
        weight: torch.Tensor = self.base.get_output_embeddings().weight
        return weight

    @cached_property
    def masked_because(self) -> str | None:
        """Why eager training goes through the model's own forward pass, which takes a mask over whole rows;
        None where ours can take its place and walk the examples."""
        if self.head_weight.device.type != "cpu":
            return "our own layers are for the CPU, example by example"
        try:
            check_decoder(self.base)
        except UnsupportedError as error:
            return str(error)
        return None

    def get_ready(self, tokens: int) -> None:
        """Call before the first micro-batch; no later one has more than `tokens` tokens."""
        if self.decoder is not None:
            self.decoder.get_ready(tokens)

    def forward_hidden(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, segments_BT: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states (B, T, H) after the final norm and before the head; no cache is kept."""
        if self.decoder is not None:
            return self.decoder(tokens_BT, positions_BT, segments_BT)
        mask: Any = (block_mask if self.attention == "flex" else block_causal_mask)(segments_BT)
        if self.attention == "eager":
            mask = additive_mask(mask, torch.promote_types(self.head_weight.dtype, torch.float32))
        decoder = getattr(self.base, str(self.base.base_model_prefix))
        output = decoder(input_ids=tokens_BT, position_ids=positions_BT, attention_mask=mask, use_cache=False)
        hidden_BTH: torch.Tensor = output.last_hidden_state
        return hidden_BTH


def with_own_decoder(loaded: LoadedModel, compute_dtype: str) -> tuple[LoadedModel, str]:
    """The model with our forward pass for eager training on a CPU, or as it was; and why.

    `compute_dtype`: that of the matrix products, 'float32' or 'bfloat16'. Frozen weights of the layers become
    it under policy autocast too, which would round them to the same numbers anew in every micro-batch.
    """
    if loaded.masked_because is not None:
        return loaded, f"an explicit block-causal mask: {loaded.masked_because}"
    decoder = build_decoder(loaded.base, getattr(torch, compute_dtype))
    why = "each example of a row attends by itself, without a mask; frozen weights kept as products take them"
    return replace(loaded, decoder=decoder), why


def masked_by_config(config: dict[str, Any], section: TuneSection, device_kind: str) -> bool:
    """Whether a model with this config.json will have a `masked_because` once it is loaded, as far as can be
    told without its weights."""
    if device_kind != "cpu" or (section.method == "lora" and section.dropout):
        return True
    from transformers import AutoConfig, AutoModelForCausalLM

    silence_libraries()
    auto: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            check_structure(auto.from_config(AutoConfig.for_model(**config)))
    except (UnsupportedError, ValueError):  # ValueError: a family that transformers does not know
        return True
    return False


def read_config(resolved: ResolvedModel) -> dict[str, Any]:
    """The model's config.json, from which its dimensions follow."""
    return config_of(resolved.folder)


def load_tokenizer(resolved: ResolvedModel) -> Any:
    """The folder's tokenizer; code in the folder is never run. Raises InputError where it cannot be
    loaded."""
    from transformers import AutoTokenizer

    silence_libraries()
    with _input_errors(resolved, "the tokenizer"):
        return AutoTokenizer.from_pretrained(resolved.folder, local_files_only=True, trust_remote_code=False)


def load_model(
    resolved: ResolvedModel,
    section: TuneSection,
    *,
    torch_device: str | torch.device = "cpu",
    seed: int = 0,
    precision: Precision | None = None,
    attention: Attention = "sdpa",
    activation_checkpointing: bool = False,
    tokenizer: Any = None,
) -> LoadedModel:
    """Loads the weights in fp32, adds adapters for LoRA, checks the result with a few tokens, rounds what
    `precision` keeps in bf16 (None: nothing) and moves it.

    The adapters' first values depend on `seed` alone; the caller's random state is left as it was. With a
    `tokenizer`, its vocabulary is compared with the model's. Raises InputError for a model that cannot be
    trained here: weights missing, remote code needed, unknown LoRA targets, an architecture that the probe
    finds out.
    """
    silence_libraries()
    dims_of = _dims_maker(resolved)
    base = load_base(resolved, attention)
    _check_vocabulary(resolved, base, tokenizer)
    module = _add_lora(base, section, seed) if section.method == "lora" else base.requires_grad_(True)
    lora = sum(p.numel() for name, p in module.named_parameters() if "lora_" in name)
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    total = sum(p.numel() for p in module.parameters())
    loaded = LoadedModel(
        module=module,
        base=base,
        resolved=resolved,
        section=section,
        dims=dims_of(total, trainable, lora),
        max_positions=most_positions(base.config.to_dict()),
        attention=attention,
    )
    probe(loaded)
    if activation_checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if precision is not None:
        keep_weights_as(module, base.get_input_embeddings(), precision)
    module.to(torch_device)
    module.train()
    return loaded


def put_weights(loaded: LoadedModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Puts kept values of what is trained in place. InputError, with the model untouched, where names or
    shapes are not this model's."""
    parameters = dict(loaded.trainable)
    odd = sorted(parameters.keys() ^ tensors.keys())
    odd += [
        name
        for name in sorted(parameters.keys() & tensors.keys())
        if parameters[name].shape != tensors[name].shape
    ]
    if odd:
        raise InputError(
            f"these are not weights of this model: {len(odd)} differ in name or shape, the first {odd[0]}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def _dims_maker(resolved: ResolvedModel) -> Any:
    config = read_config(resolved)
    experts = [key for key in EXPERT_KEYS if (config.get(key) or 0) > 1]
    if experts:
        raise InputError(
            f"{resolved.name}: a mixture of experts ({experts[0]}); dense Llama-class models are expected"
        )

    def make(parameters: int, trainable: int, lora: int) -> ModelDims:
        try:
            return ModelDims.from_config(config, parameters=parameters, trainable=trainable, lora=lora)
        except KeyError as error:
            raise InputError(
                f"{resolved.name}: config.json has no {error}, so this is not a Llama-class model, "
                f"whose floating point operations and memory could be counted"
            ) from None

    make(0, 0, 0)  # before loading gigabytes
    return make


def load_base(resolved: ResolvedModel, attention: Attention = "sdpa") -> Any:
    """The causal LM in fp32, a quantised folder's as what its values stand for. Raises InputError for what
    cannot be loaded whole."""
    from transformers import AutoModelForCausalLM

    with _input_errors(resolved, "the model"):
        if is_quantised(resolved.folder):
            loaded: Any = load_dequantised(resolved.folder, attention=attention)
        else:
            loaded = AutoModelForCausalLM.from_pretrained(
                resolved.folder,
                dtype=torch.float32,
                attn_implementation=attention,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    base, info = loaded
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        # transformers fills these with random numbers and goes on
        raise InputError(
            f"{resolved.folder}: {len(missing)} of the model's tensors are not in the weight files, "
            f"first {', '.join(missing[:3])}"
        )
    head = base.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise InputError(f"{resolved.name}: a model with an output head without bias is expected")
    return base


def _check_vocabulary(resolved: ResolvedModel, base: Any, tokenizer: Any) -> None:
    rows = base.get_input_embeddings().weight.shape[0]
    largest = max(tokenizer.get_vocab().values(), default=-1) if tokenizer is not None else -1
    if largest >= rows:
        raise InputError(
            f"{resolved.name}: the tokenizer has token id {largest}, but the model's embedding has only "
            f"{rows} rows (ids 0 to {rows - 1}); use the tokenizer that belongs to this model"
        )


def linear_names(base: nn.Module) -> list[str]:
    """The last part of the names of the linear layers that LoRA can adapt, the head excepted, sorted."""
    head = base.get_output_embeddings()  # type: ignore[operator]
    return sorted({name.rpartition(".")[2] for name, m in base.named_modules() if _adaptable(m, head)})


def _adaptable(module: nn.Module, head: Any) -> bool:
    return isinstance(module, nn.Linear) and module is not head


def _add_lora(base: Any, section: TuneSection, seed: int) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    head = base.get_output_embeddings()
    layers = [f".{name}" for name, module in base.named_modules() if _adaptable(module, head)]
    unknown = [t for t in section.targets if not any(layer.endswith(f".{t}") for layer in layers)]
    if unknown or not section.targets:
        raise InputError(
            f"tune.targets: {', '.join(unknown) or 'empty'}; this model's linear layers are "
            f"{', '.join(linear_names(base))} (the head and the embedding stay frozen)"
        )
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=section.rank,
        lora_alpha=section.alpha,  # type: ignore[arg-type]  # annotated int, used as a factor
        lora_dropout=section.dropout,
        target_modules=list(section.targets),
    )
    state = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)
        module: nn.Module = get_peft_model(base, config)
    finally:
        torch.set_rng_state(state)
    return module


@contextmanager
def _input_errors(resolved: ResolvedModel, what: str) -> Iterator[None]:
    """What the libraries raise for a folder they cannot use (they raise many kinds), in one kind and one
    line."""
    try:
        yield
    except (TrueupError, MemoryError):
        raise
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        hint = (
            " (its own code would have to run, which trueup never does)"
            if "trust_remote_code" in str(error)
            else ""
        )
        raise InputError(f"{resolved.folder}: {what} cannot be loaded{hint}: {lines[0]}") from error
