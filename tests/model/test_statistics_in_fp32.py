"""Loss, softmax statistics and norms are fp32 under every policy, in our own layers and in transformers'.

Shown twice: by the dtypes that go into the operations, forward and backward, and by sums that bf16 gets
visibly wrong (it cannot count beyond 256: 256 + 1 = 256).
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Literal

import pytest
import torch
from model_batches import examples_of, packed
from test_precision import loaded_as, precision_of
from torch.utils._python_dispatch import TorchDispatchMode

from trueup.model.attention import attend, groups_of
from trueup.model.batch import batch_loss
from trueup.model.builtin import ResolvedModel
from trueup.model.layers import add_and_norm
from trueup.model.load import load_model
from trueup.model.loss import chunked_loss
from trueup.recipe.models import TuneSection
from trueup.schema.choices import PrecisionPolicy

POLICIES = ("fp32", "bf16", "bf16-master", "autocast")
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
STATISTICS = {
    "_softmax", "_softmax_backward_data", "_log_softmax", "logsumexp", "rsqrt", "exp", "exp_", "log", "log_",
    "mean", "amax", "linalg_vector_norm", "pow",
}  # fmt: skip  # no sums: those of gradients over heads that share a key are products' outputs
BF16 = torch.bfloat16


class Watch(TorchDispatchMode):
    """The dtypes of the floating point tensors that go into each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[torch.dtype]] = defaultdict(set)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        for value in args:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self.seen[name].add(value.dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layers", ["own", "transformers", "transformers, eager attention"])
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("policy", POLICIES)
def test_statistics_take_fp32_and_products_take_what_the_policy_says(
    tiny: ResolvedModel, policy: PrecisionPolicy, method: Literal["lora", "full"], layers: str
) -> None:
    if layers.endswith("eager attention"):
        section = TuneSection(method=method, rank=4)
        loaded = load_model(tiny, section, precision=precision_of(policy), attention="eager")
    else:
        loaded = loaded_as(tiny, policy, method, layers)  # type: ignore[arg-type]
    batch = packed(examples_of(0, [5, 17, 2, 9]))[0]
    with Watch() as watch:
        batch_loss(loaded, batch, precision_of(policy)).backward()  # type: ignore[no-untyped-call]
    products = set().union(*(watch.seen[name] for name in PRODUCTS if name in watch.seen))
    assert (BF16 in products) == (policy != "fp32")
    statistics = {name: dtypes for name, dtypes in watch.seen.items() if name in STATISTICS}
    assert {name: {torch.float32} for name in statistics} == statistics
    norm = {"linalg_vector_norm", "rsqrt"} if layers == "own" else {"mean", "rsqrt"}
    softmax = set() if layers == "transformers" else {"_softmax"}  # sdpa has its own inside, see below
    assert statistics.keys() >= norm | softmax | {"exp_", "log_", "amax"}


def test_bf16_cannot_count_these_sums() -> None:
    """What the tests below would find if the statistics were bf16."""
    total = torch.zeros((), dtype=BF16)
    for _ in range(300):
        total += 1
    assert total == 256


@pytest.mark.parametrize("masked", [False, True])
def test_sdpa_counts_more_than_256_equal_keys(masked: bool) -> None:
    """Of transformers' path. Every score is 0, so each of n weights is 1/n and the output is the values'
    mean; summed in bf16, the denominator would stop at 256."""
    keys = 2048
    query, key = torch.zeros(1, 2, 8, 16, dtype=BF16), torch.zeros(1, 2, keys, 16, dtype=BF16)
    value = torch.ones(1, 2, keys, 16, dtype=BF16)
    mask = torch.ones(1, 1, 8, keys, dtype=torch.bool) if masked else None
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert (out == 1).all()


def test_our_attention_counts_more_than_256_equal_keys() -> None:
    """The n-th token sees n equal keys. Where a product rounds its weights to bf16, as AMX does, 1/n is off
    by up to 2^-9 of it; a sum that stopped at 256 would be off by more than half."""
    tokens, head_dim = 700, 8
    qkv = torch.zeros(tokens, 3 * head_dim, dtype=BF16)
    qkv[:, 2 * head_dim :] = 1
    turn = torch.zeros(tokens, head_dim)
    groups = groups_of(((0, tokens),), turn + 1, turn, scaling=1.0)
    out = attend(qkv, groups, heads=(1, 1), bf16=True)
    assert ((out - 1).abs() <= 2**-8).all()


def test_our_norm_counts_more_than_256_squares() -> None:
    """The mean square of ones is one, however wide; and what is kept of the stream is all of it."""
    stream = torch.ones(3, 4096)
    change = torch.full((3, 4096), 2.0**-12, dtype=BF16)  # lost where the stream is bf16
    total, normed = add_and_norm(stream, change, torch.ones(4096), 0.0, BF16)
    assert (total == 1 + 2.0**-12).all()
    assert (normed == 1).all()


@pytest.mark.parametrize("policy", ["bf16", "bf16-master", "autocast"])
def test_transformers_norm_counts_more_than_256_squares(tiny: ResolvedModel, policy: PrecisionPolicy) -> None:
    norm = loaded_as(tiny, policy, "lora", "transformers").base.model.norm
    wide = type(norm)(4096, eps=0.0)
    assert norm.weight.dtype == torch.float32
    with precision_of(policy).autocast():
        normed = wide(torch.ones(3, 4096))
    assert normed.dtype == torch.float32
    assert torch.allclose(normed, torch.ones(3, 4096), rtol=1e-6)


@pytest.mark.parametrize("policy", ["bf16", "bf16-master", "autocast"])
@pytest.mark.parametrize("layers", ["own", "transformers"])
def test_the_stream_between_layers_is_fp32(
    tiny: ResolvedModel, policy: PrecisionPolicy, layers: Literal["own", "transformers"]
) -> None:
    """A change of 1/512 of the stream is lost where the stream is bf16."""
    loaded = loaded_as(tiny, policy, "lora", layers)
    batch = packed(examples_of(0, [5, 9]))[0]
    embedded: list[torch.Tensor] = []
    norm_inputs: list[torch.dtype] = []
    base = loaded.base.model
    hooks = [base.embed_tokens.register_forward_hook(lambda m, i, out: embedded.append(out))]
    if layers == "transformers":
        hooks += [
            m.register_forward_pre_hook(lambda m, i: norm_inputs.append(i[0].dtype))
            for m in base.modules()
            if type(m).__name__.endswith("Norm")
        ]
    batch_loss(loaded, batch, precision_of(policy))
    for hook in hooks:
        hook.remove()
    assert [out.dtype for out in embedded] == [torch.float32]
    assert set(norm_inputs) <= {torch.float32}
    assert bool(norm_inputs) == (layers == "transformers")


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_log_sum_exp_counts_a_whole_vocabulary(dtype: torch.dtype) -> None:
    """Equal logits: the loss is the logarithm of the vocabulary's size, 10.80 nats; with sums in bf16 it
    would be log 256 = 5.5."""
    vocab = 49152
    hidden, head = torch.zeros(1, 4, 8, dtype=dtype), torch.zeros(vocab, 8, dtype=dtype)
    loss = chunked_loss(hidden, head, torch.arange(4), torch.zeros(4, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert loss.item() / 4 == pytest.approx(math.log(vocab), rel=1e-6)


def test_the_loss_is_summed_in_fp32() -> None:
    """2000 tokens of about 8.3 nats each: bf16 would stop adding at 2048."""
    head = torch.zeros(4096, 8, dtype=BF16)
    loss = chunked_loss(
        torch.zeros(1, 2000, 8, dtype=BF16), head, torch.arange(2000), torch.zeros(2000, dtype=torch.int64)
    )
    assert loss.item() == pytest.approx(2000 * math.log(4096), rel=1e-5)
