"""The precision is chosen by what the device is fast at, says why, and decides what weights are kept in."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from model_batches import batch_of, examples_of, one_by_one, packed

from trueup.model import decoder as decoder_module
from trueup.model.batch import BatchTensors, batch_loss
from trueup.model.builtin import ResolvedModel
from trueup.model.decoder import check_decoder
from trueup.model.export import save_adapter
from trueup.model.load import LoadedModel, load_model, with_own_decoder
from trueup.model.precision import Precision, choose_precision
from trueup.model.reference import widen
from trueup.recipe.models import TuneSection
from trueup.schema.choices import PrecisionPolicy

Method = Literal["lora", "full"]
Layers = Literal["own", "transformers"]
BF16, FP32 = torch.bfloat16, torch.float32


class Device:
    def __init__(self, fast: bool) -> None:
        self.fast = fast

    def fast_bf16(self) -> tuple[bool, str]:
        return (True, "it has AVX-512-BF16") if self.fast else (False, "no AVX-512-BF16 or AMX")


def precision_of(policy: PrecisionPolicy) -> Precision:
    return choose_precision(policy, Device(fast=True))


def loaded_as(
    resolved: ResolvedModel,
    policy: PrecisionPolicy,
    method: Method,
    layers: Layers,
    targets: tuple[str, ...] = (),
) -> LoadedModel:
    section = TuneSection(method=method, rank=4, **({"targets": targets} if targets else {}))
    precision = precision_of(policy)
    loaded = load_model(resolved, section, seed=1, precision=precision)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in loaded.trainable:
            if "lora_B" in name:  # zero at first, which would hide every error in A
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    if layers == "own":
        loaded, why = with_own_decoder(loaded, precision.compute_dtype)
        assert loaded.decoder is not None, why
    return loaded


@pytest.mark.parametrize(
    ("policy", "fast", "done", "dtype"),
    [
        ("auto", True, "bf16-master", "bfloat16"),
        ("auto", False, "fp32", "float32"),
        ("fp32", True, "fp32", "float32"),
        ("autocast", False, "autocast", "bfloat16"),
        ("bf16", False, "bf16", "bfloat16"),
        ("bf16-master", False, "bf16-master", "bfloat16"),
    ],
)
def test_choice_and_reason(policy: PrecisionPolicy, fast: bool, done: str, dtype: str) -> None:
    precision = choose_precision(policy, Device(fast))
    assert (precision.policy, precision.compute_dtype) == (done, dtype)
    assert Device(fast).fast_bf16()[1] in precision.reason
    assert ("recipe" in precision.reason) == (policy != "auto")
    with precision.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert str(product.dtype) == f"torch.{dtype}"


@pytest.mark.parametrize(
    ("policy", "trained", "frozen"),
    [("fp32", FP32, FP32), ("autocast", FP32, FP32), ("bf16-master", FP32, BF16), ("bf16", BF16, BF16)],
)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_what_weights_are_kept_in(
    tiny: ResolvedModel, method: Method, policy: PrecisionPolicy, trained: torch.dtype, frozen: torch.dtype
) -> None:
    module = loaded_as(tiny, policy, method, "transformers").module
    found: dict[str, set[torch.dtype]] = {"trained": set(), "frozen": set(), "norm": set()}
    for name, parameter in module.named_parameters():
        kind = "norm" if "norm" in name else "trained" if parameter.requires_grad else "frozen"
        found[kind].add(parameter.dtype)
    assert found == {
        "trained": {trained},
        "frozen": {frozen} if method == "lora" else set(),
        "norm": {FP32},
    }
    assert {buffer.dtype for buffer in module.buffers() if buffer.is_floating_point()} == {FP32}


def gradients(
    loaded: LoadedModel, batches: list[BatchTensors], policy: PrecisionPolicy
) -> tuple[float, dict[str, torch.Tensor]]:
    loaded.module.zero_grad(set_to_none=True)
    total = 0.0
    for batch in batches:
        loss = batch_loss(loaded, batch, precision_of(policy))
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, {name: p.grad for name, p in loaded.trainable if p.grad is not None}


def distance(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """Relative, over all gradients together."""
    assert found.keys() == exact.keys()
    off = sum(float((found[name].double() - g.double()).square().sum()) for name, g in exact.items())
    return (off / sum(float(g.double().square().sum()) for g in exact.values())) ** 0.5


@pytest.mark.parametrize("layers", ["own", "transformers"])
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("policy", ["bf16", "bf16-master", "autocast"])
def test_every_policy_gives_fp32s_loss_and_gradients_to_bf16s_accuracy(
    tiny: ResolvedModel, policy: PrecisionPolicy, method: Method, layers: Layers
) -> None:
    """bf16 rounds each number by up to 1/256 of it; a wrong cast or a lost part would be far outside."""
    examples = examples_of(6, [40, 33, 21, 60, 12])
    exact_loss, exact = gradients(loaded_as(tiny, "fp32", method, "own"), one_by_one(examples), "fp32")
    loss, found = gradients(loaded_as(tiny, policy, method, layers), packed(examples), policy)
    assert loss == pytest.approx(exact_loss, rel=2e-3)
    assert 1e-4 < distance(found, exact) < 3e-2
    trained = BF16 if policy == "bf16" else FP32
    assert {g.dtype for name, g in found.items() if "norm" not in name} == {trained}


@pytest.mark.parametrize("layers", ["own", "transformers"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_masters_sum_micro_batches_in_fp32(tiny: ResolvedModel, method: Method, layers: Layers) -> None:
    """Summed in bf16, 32 micro-batches are off by about 1/256 each; the same sums in bf16 are the proof."""
    examples = one_by_one(examples_of(7, [9, 14, 6, 11] * 8))
    loaded = loaded_as(tiny, "bf16-master", method, layers)
    each = [gradients(loaded, [batch], "bf16-master")[1] for batch in examples]
    exact = {name: sum(part[name].double() for part in each) for name in each[0]}
    _, found = gradients(loaded, examples, "bf16-master")
    rounded = {name: torch.zeros_like(g, dtype=BF16) for name, g in found.items()}
    for part in each:
        for name, gradient in part.items():
            rounded[name] += gradient.to(BF16)
    assert distance(found, exact) < 1e-6  # type: ignore[arg-type]
    assert distance(rounded, exact) > 1e-3  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["fp32", "bf16", "bf16-master"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_frozen_embedding_and_head_are_kept_once(
    tmp_path: Any, policy: PrecisionPolicy, tied: bool
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    loaded = loaded_as(ResolvedModel(tmp_path, "made here", "made by a test"), policy, "lora", "own")
    assert loaded.decoder is not None
    embedding, head = loaded.decoder.embedding.weight, loaded.decoder.head_weight_VH
    assert embedding.dtype == head.dtype == (FP32 if policy == "fp32" else BF16)
    assert head.data_ptr() == loaded.head_weight.data_ptr()
    assert (head.data_ptr() == embedding.data_ptr()) == tied


def test_our_layers_are_checked_in_fp32_on_weights_kept_in_bf16(
    tiny: ResolvedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled run whose compiler fails takes our layers after its weights were rounded. In bf16 the two
    forward passes would differ by more than this tolerance."""
    monkeypatch.setattr(decoder_module, "TOLERANCE", 1e-5)
    for method in ("lora", "full"):
        loaded = loaded_as(tiny, "bf16", method, "transformers")  # type: ignore[arg-type]
        before = {name: p.detach().clone() for name, p in loaded.module.named_parameters()}
        check_decoder(loaded.base)
        for name, parameter in loaded.module.named_parameters():
            assert parameter.dtype == before[name].dtype, name
            assert torch.equal(parameter, before[name]), name


def test_rounding_leaves_a_model_in_fp64_alone(tiny: ResolvedModel) -> None:
    loaded = widen(loaded_as(tiny, "fp32", "lora", "own"))
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float64}


@pytest.mark.parametrize("layers", ["own", "transformers"])
def test_activation_checkpointing_under_masters_changes_no_gradient(
    tiny: ResolvedModel, layers: Layers
) -> None:
    batches: list[BatchTensors] = packed(examples_of(0, [5, 17, 2, 9]))
    found: list[Any] = []
    for checkpointing in (False, True):
        precision = precision_of("bf16-master")
        loaded = load_model(
            tiny, TuneSection(method="full"), precision=precision, activation_checkpointing=checkpointing
        )
        if layers == "own":
            loaded = with_own_decoder(loaded, precision.compute_dtype)[0]
        found.append(gradients(loaded, batches, "bf16-master"))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(g, found[1][1][name]) for name, g in found[0][1].items())


def test_a_batch_of_one_token_and_padding_is_finite_under_every_policy(tiny: ResolvedModel) -> None:
    ids, _ = examples_of(1, [2])[0]
    batch = batch_of([[(ids, [False, True])]], 8)
    for policy in ("bf16", "bf16-master", "autocast"):
        for layers in ("own", "transformers"):
            loaded = loaded_as(tiny, policy, "lora", layers)
            loss, found = gradients(loaded, [batch], policy)
            assert torch.isfinite(torch.tensor(loss))
            assert all(torch.isfinite(g).all() for g in found.values())


def test_an_adapter_kept_in_bf16_leaves_in_fp32(tiny: ResolvedModel, tmp_path: Any) -> None:
    from safetensors.torch import load_file

    loaded = loaded_as(tiny, "bf16", "lora", "own")
    save_adapter(loaded, tmp_path / "adapter")
    written = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    trained = {name.replace(".default", ""): p for name, p in loaded.trainable}
    assert written.keys() == trained.keys()
    for name, tensor in written.items():
        assert tensor.dtype == FP32
        assert torch.equal(tensor, trained[name].float()), name
