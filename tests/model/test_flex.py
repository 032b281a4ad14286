"""FlexAttention's block mask, the model with it, and the check that lets it be taken. On a CPU, where torch
has a reference in plain products in place of the kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_batches import (
    BF16,
    FP32,
    LENGTHS,
    assert_close,
    batch_of,
    bucketed,
    examples_of,
    loaded_model,
    loss_and_gradients,
    one_by_one,
    packed,
    padded,
)
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from trueup.device import open_device
from trueup.model import flex
from trueup.model.batch import BatchTensors
from trueup.model.builtin import ResolvedModel
from trueup.model.compile import compile_model
from trueup.model.flex import block_mask, block_mask_as_tensor, with_attention_for, with_flex
from trueup.model.load import LoadedModel
from trueup.model.masks import block_causal_mask
from trueup.model.parity import Side, run_side
from trueup.model.parity_file import Point
from trueup.model.precision import Precision
from trueup.model.reference import widen
from trueup.recipe.models import TuneSection
from trueup.schema import InputError, ShapePlan

BLOCK = flex.BLOCK

runs = st.lists(st.tuples(st.integers(-1, 3), st.integers(1, 2 * BLOCK)), min_size=1, max_size=5)


@pytest.fixture
def with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to train through FlexAttention on a CPU, though its reference has a backward pass."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    torch._dynamo.reset()


@pytest.fixture
def flexed(tiny: ResolvedModel, with_gradients: None) -> LoadedModel:
    """Without the check, which has tests of its own."""
    with pytest.MonkeyPatch.context() as unchecked:
        unchecked.setattr(flex, "check_kernel", lambda *_, **__: None)
        unchecked.setattr(flex, "_check_apart", lambda *_: None)
        found, _ = with_flex(loaded_model(tiny), FP32)
    assert found.attention == "flex"
    return found


# --- the block mask ---------------------------------------------------------------------------------------


def rows_of(rows: list[list[tuple[int, int]]]) -> torch.Tensor:
    """(B, T) of runs (number, how long), as wide as the narrowest row."""
    numbers = [torch.tensor([n for n, length in row for _ in range(length)]) for row in rows]
    return torch.stack([row[: min(map(len, numbers))] for row in numbers])


def listed(counts_B1N: torch.Tensor, which_B1NN: torch.Tensor) -> torch.Tensor:
    """Boolean (B, 1, N, N): the blocks that a kernel would go through, of each block here the others."""
    wanted = torch.arange(which_B1NN.shape[-1]) < counts_B1N[..., None]
    return torch.zeros_like(wanted).scatter_(-1, which_B1NN.long(), wanted)


def gone_through(mask: BlockMask, some_B1NN: torch.Tensor, whole_B1NN: torch.Tensor) -> torch.Tensor:
    """(B, 1, T, T): what is seen where some blocks are asked token by token, and whole ones are not."""
    length = mask.shape[-1]
    some, whole = (
        blocks.repeat_interleave(BLOCK, -1).repeat_interleave(BLOCK, -2)[..., :length, :length]
        for blocks in (some_B1NN, whole_B1NN)
    )
    assert not (some & whole).any()  # keys would count twice
    return whole | (some & block_mask_as_tensor(mask))


@settings(deadline=None, max_examples=50)
@given(st.lists(runs, min_size=1, max_size=3))
def test_it_says_what_the_explicit_mask_says(rows: list[list[tuple[int, int]]]) -> None:
    """Whatever the segments and however long the row, in both passes' lists of blocks."""
    segments_BT = rows_of(rows)
    mask, expected = block_mask(segments_BT), block_causal_mask(segments_BT)
    assert torch.equal(block_mask_as_tensor(mask), expected)
    forward = [
        listed(mask.kv_num_blocks, mask.kv_indices),
        listed(mask.full_kv_num_blocks, mask.full_kv_indices),
    ]
    backward = [
        listed(mask.q_num_blocks, mask.q_indices).mT,
        listed(mask.full_q_num_blocks, mask.full_q_indices).mT,
    ]
    for blocks in (forward, backward):
        assert torch.equal(gone_through(mask, *blocks), expected)


@pytest.mark.parametrize("lengths", [[100, 28, 300, 84], [512], [128] * 4, [500]])
def test_no_block_is_listed_in_vain(lengths: list[int]) -> None:
    """As torch finds them from the whole mask, which is what need not be made."""
    segments_BT = rows_of([list(enumerate(lengths, start=1))])
    ours, length = block_mask(segments_BT), segments_BT.shape[1]
    theirs = create_block_mask(ours.mask_mod, 1, 1, length, length, device="cpu")
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


# --- the model with it ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wide", "within"), [(True, 1e-9), (False, 1e-5)], ids=["fp64", "fp32"])
def test_every_shape_gives_the_same_loss_and_gradients(
    tiny: ResolvedModel, flexed: LoadedModel, wide: bool, within: float
) -> None:
    """One by one with an explicit mask, all shapes with FlexAttention: narrower than a block, and wider."""
    expecting = loaded_model(tiny, wide=wide)
    loaded = widen(flexed) if wide else flexed
    for examples in (examples_of(0, LENGTHS), examples_of(1, [150, 40, 170, 3])):
        alone = loss_and_gradients(expecting, one_by_one(examples))
        for batches in (padded(examples, left=4), packed(examples), packed(examples, 1), bucketed(examples)):
            assert_close(loss_and_gradients(loaded, batches), alone, within)


@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("lengths", [[9, 14, 6], [200, 130, 150]])
def test_a_neighbour_has_exactly_no_influence(
    flexed: LoadedModel, precision: Precision, lengths: list[int]
) -> None:
    first, second, third = examples_of(3, lengths)
    other = (examples_of(4, lengths)[0][0], first[1])
    hidden = []
    for neighbour in (first, other):
        batch = batch_of([[neighbour, second, third]], sum(lengths) + 5)
        with torch.no_grad(), precision.autocast():
            hidden.append(flexed.forward_hidden(batch.tokens_BT, batch.positions_BT, batch.segments_BT))
    start, end = lengths[0], sum(lengths)
    assert torch.equal(hidden[0][:, start:end], hidden[1][:, start:end])
    assert not torch.equal(hidden[0][:, :start], hidden[1][:, :start])


def test_a_layer_that_is_computed_again_gives_the_same(tiny: ResolvedModel, flexed: LoadedModel) -> None:
    batches = packed(examples_of(2, [150, 40, 170, 3]))
    expected = loss_and_gradients(flexed, batches)
    flexed.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert_close(loss_and_gradients(flexed, batches), expected, 1e-6)


def test_what_has_no_block_mask_goes_as_with_sdpa(tiny: ResolvedModel, flexed: LoadedModel) -> None:
    """An evaluation that calls the model itself, with left padding."""
    tokens_BT = torch.arange(40).view(2, 20)
    mask_BT = torch.tensor([[0] * 5 + [1] * 15, [1] * 20])
    with torch.no_grad():
        found, expected = (
            loaded.base(input_ids=tokens_BT, attention_mask=mask_BT).logits[mask_BT == 1]
            for loaded in (flexed, loaded_model(tiny))
        )
    assert torch.equal(found, expected)


# --- compiling --------------------------------------------------------------------------------------------


def test_each_shape_is_compiled_once(flexed: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other segments in the same shape are no other graph, nor is another layer."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled: list[dict[str, Any]] = []
    torch_compile = torch.compile

    def compile_counting(function: Callable[..., Any], **options: Any) -> Any:
        compiled.append(options)
        return torch_compile(function, **options, backend=counter)

    monkeypatch.setattr(torch, "compile", compile_counting)
    kernel = flex._kernel.__wrapped__("cuda")
    monkeypatch.setattr(torch, "compile", torch_compile)
    monkeypatch.setattr(flex, "_kernel", lambda kind: kernel)
    torch._dynamo.reset()
    graphs = []
    for seed, length in enumerate([200, 200, 200, 256, 256, 200]):
        examples = examples_of(seed, [100 - seed, 60, 90, 40 + seed])
        loss_and_gradients(flexed, [batch_of([examples[:2], examples[2:]], length)])
        graphs.append(counter.frame_count)
    assert graphs == [1, 1, 1, 2, 2, 2]
    assert [options["dynamic"] for options in compiled] == [False]


@pytest.mark.parametrize("mode", ["layer", "model"])
def test_inside_a_compiled_decoder(tiny: ResolvedModel, flexed: LoadedModel, mode: Any) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = compile_model(flexed, mode, backend=counter, graphs=2)  # type: ignore[arg-type]
    try:
        for seed in range(3):
            examples = examples_of(seed, [100 - seed, 60, 90, 40 + seed])
            batches = [batch_of([examples[:2], examples[2:]], 200)]
            expected = loss_and_gradients(loaded_model(tiny), one_by_one(examples))
            assert_close(loss_and_gradients(flexed, batches), expected, 1e-5)
        assert counter.frame_count == 1
    finally:
        compiled.undo()


# --- whether it is taken ----------------------------------------------------------------------------------


def raises(*_: Any, **__: Any) -> torch.Tensor:
    raise RuntimeError("\n\nno Triton here\nand much more")


def sees_later_tokens(*inputs: torch.Tensor, block_mask: BlockMask, **options: Any) -> torch.Tensor:
    rows, _, length, _ = block_mask.shape
    causal = block_mask.mask_mod

    def both_ways(b: Any, h: Any, query: Any, key: Any) -> Any:
        return causal(b, h, query, key) | causal(b, h, key, query)

    wrong = create_block_mask(both_ways, rows, 1, length, length, device="cpu")
    return flex_attention(*inputs, block_mask=wrong, **options)


def sees_a_neighbour(*inputs: torch.Tensor, block_mask: BlockMask, **options: Any) -> torch.Tensor:
    rows, _, length, _ = block_mask.shape
    wrong = create_block_mask(lambda b, h, q, k: q >= k, rows, 1, length, length, device="cpu")
    return flex_attention(*inputs, block_mask=wrong, **options)


def sees_a_trace_of_its_row(query: torch.Tensor, *inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Less than the tolerance."""
    trace = 1e-6 * inputs[1].mean(dim=(1, 2), keepdim=True)
    return flex_attention(query, *inputs, **options) + trace


def has_other_gradients(query: torch.Tensor, *inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    exact = flex_attention(query, *inputs, **options)
    return exact + (exact.detach() - exact) * 0.01  # the same numbers, with 0.99 of the gradient


def gives_nan(*inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    return flex_attention(*inputs, **options) * torch.nan


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (raises, "RuntimeError: no Triton here$"),
        (sees_later_tokens, "its output is off by"),
        (sees_a_neighbour, "its output is off by"),
        (sees_a_trace_of_its_row, "examples packed into one row influence each other"),
        (has_other_gradients, "its gradient of queries is off by 0.01 "),
        (gives_nan, "its output is off by nan"),
    ],
)
def test_a_kernel_with_a_fault_is_not_taken(
    tiny: ResolvedModel,
    with_gradients: None,
    monkeypatch: pytest.MonkeyPatch,
    kernel: Callable[..., torch.Tensor],
    told: str,
) -> None:
    loaded = loaded_model(tiny)
    batches = packed(examples_of(0, LENGTHS))
    expected = loss_and_gradients(loaded, batches)
    monkeypatch.setattr(flex, "_kernel", lambda kind: kernel)
    found, why = with_flex(loaded, FP32)
    assert found.attention == "sdpa"
    assert re.search(f"^FlexAttention was tried here and left: {told}", why), why
    assert found.base.config._attn_implementation == "sdpa"
    assert found.module.training
    assert_close(loss_and_gradients(found, batches), expected, 0)


def test_a_device_that_cannot_train_through_it_is_told(tiny: ResolvedModel) -> None:
    """torch's own word on a CPU, unpatched."""
    found, why = with_flex(loaded_model(tiny), FP32)
    assert found.attention == "sdpa"
    assert "does not support backward on CPU" in why


def test_dropout_of_attention_is_not_left_out(tiny: ResolvedModel, with_gradients: None) -> None:
    loaded = loaded_model(tiny)
    loaded.base.config.attention_dropout = 0.1
    found, why = with_flex(loaded, FP32)
    assert found.attention == "sdpa"
    assert "attention with dropout" in why


def plan_of(strategy: Any, width: int) -> ShapePlan:
    shapes = ((4, width),)
    return ShapePlan(
        strategy=strategy,
        compile="none",
        static=False,
        full=shapes,
        training=shapes,
        evaluation=shapes,
        tokens_per_microbatch=4 * width,
        micro_batches_per_step=1,
        steps_per_epoch=1,
        data="a test",
        reason="a test",
    )


@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
def test_a_plan_takes_it_where_it_has_something_to_leave_out(
    tiny: ResolvedModel, with_gradients: None, precision: Precision
) -> None:
    loaded = loaded_model(tiny)
    for plan, taken, told in (
        (
            plan_of("pack", 300),
            "flex",
            f"within {flex.TOLERANCE[getattr(torch, precision.compute_dtype)]:g} of",
        ),
        (plan_of("longest", 300), "sdpa", "an explicit block-causal mask: .* follow the data"),
        (plan_of("pack", 128), "sdpa", "an explicit block-causal mask: .* no row has more than one"),
    ):
        loaded, why = with_attention_for(plan, loaded, precision)  # as after another plan
        assert loaded.attention == taken
        assert re.search(told, why), why


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here to run the kernel on")
@pytest.mark.parametrize(("precision", "within"), [(FP32, 1e-4), (BF16, 0.1)], ids=["fp32", "bf16"])
def test_on_a_gpu_it_is_taken_and_trains_as_one_by_one(
    tiny: ResolvedModel, precision: Precision, within: float
) -> None:
    loaded = loaded_model(tiny)
    loaded.module.cuda()
    examples = examples_of(1, [150, 40, 170, 3])
    alone, together = (
        [BatchTensors.from_arrays(*vars(batch).values(), device="cuda") for batch in batches]
        for batches in (one_by_one(examples), packed(examples))
    )
    expected = loss_and_gradients(loaded, alone)
    flexed, why = with_attention_for(plan_of("pack", 300), loaded, precision)
    assert flexed.attention == "flex", why
    assert_close(loss_and_gradients(flexed, together, precision), expected, within)


# --- in a comparison --------------------------------------------------------------------------------------


def test_parity_runs_it_and_derives_its_softmax(tiny: ResolvedModel, with_gradients: None) -> None:
    side = Side("a side", tiny, TuneSection(method="full"), "its own", precision="fp32")
    (batch,) = packed(examples_of(3, [90, 140, 50, 11, 7]))
    device = open_device("cpu", threads=1)
    outputs: dict[str, dict[tuple[str, str], torch.Tensor]] = {"flex": {}, "sdpa": {}}
    for attention, found in outputs.items():

        def take(point: Point, value: torch.Tensor, found: Any = found) -> None:
            found[point.name, point.kind] = value

        facts = run_side(Side(**{**vars(side), "attention": attention}), device, batch, take, gradient=True)
        assert facts.attention == attention
    device.close()
    assert outputs["flex"].keys() == outputs["sdpa"].keys()
    assert any(kind == "softmax" for _, kind in outputs["flex"])
    for at, value in outputs["sdpa"].items():
        assert (outputs["flex"][at] - value).norm() <= 1e-5 * value.norm(), at


def test_parity_says_why_it_cannot_run_it(tiny: ResolvedModel) -> None:
    side = Side("a side", tiny, TuneSection(), "its own", precision="fp32", attention="flex")
    device = open_device("cpu", threads=1)
    with pytest.raises(InputError, match=r"a side: attention=flex is not possible: .*backward on CPU"):
        run_side(side, device, packed(examples_of(3, [9, 4]))[0], lambda *_: None, gradient=True)
    device.close()
