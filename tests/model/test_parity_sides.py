"""One batch through two sides: the same model is the same to the bit, and a planted error is found where it
was planted."""

from __future__ import annotations

import gc
import json
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_batches import examples_of, packed

from trueup.analysis.parity import Parity, judge
from trueup.device import Device, open_device
from trueup.model.batch import BatchTensors
from trueup.model.builtin import ResolvedModel
from trueup.model.load import LoadedModel
from trueup.model.parity import Side, points_at_most, run_side
from trueup.model.parity_compare import Comparison, difference, require_same_batch
from trueup.model.parity_file import OutputFile, OutputWriter, Point, batch_facts
from trueup.recipe.models import TuneSection
from trueup.schema import InputError, StorageError

PATHS = ("sdpa", "eager", "own")
FULL = TuneSection(method="full")


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    found = open_device("cpu", threads=1)
    yield found
    found.close()


@pytest.fixture
def batch() -> BatchTensors:
    """Two rows of three and two packed examples, padding after."""
    (made,) = packed(examples_of(3, [9, 14, 5, 11, 7]))
    return made


@pytest.fixture
def side(tiny: ResolvedModel) -> Side:
    return Side("a side", tiny, FULL, "its own", precision="fp32", attention="sdpa")


def write(path: Path, side: Side, device: Device, batch: BatchTensors, *, gradient: bool = True) -> None:
    with path.open("wb") as file:
        writer = OutputWriter(file, batch, points=points_at_most(side))
        facts = run_side(side, device, batch, writer.take, gradient=gradient)
        writer.finish(facts, batch_facts(batch, "a test"))


@pytest.fixture
def compare(tmp_path: Path, device: Device, batch: BatchTensors) -> Callable[..., Parity]:
    def run(a: Side, b: Side, tolerance: float | None = None, patch: Any = None) -> Parity:
        """`patch` is called between the two sides."""
        write(tmp_path / "a.safetensors", a, device, batch)
        outputs = OutputFile(tmp_path / "a.safetensors")
        comparison = Comparison(outputs)
        if patch is not None:
            patch()
        facts = run_side(b, device, batch, comparison.take, gradient=True)
        return judge(outputs.side, facts, outputs.facts, *comparison.finish(), tolerance=tolerance)

    return run


def scaling(name: str, factor: float) -> Callable[[LoadedModel], None]:
    """Changes one parameter of a side."""

    def put(loaded: LoadedModel) -> None:
        with torch.no_grad():
            dict(loaded.base.named_parameters())[name].mul_(factor)

    return put


@pytest.mark.parametrize("path", PATHS)
def test_the_same_model_twice_is_the_same_to_the_bit(side: Side, compare: Any, path: Any) -> None:
    one = replace(side, attention=path)
    found = compare(one, one)
    assert found.identical
    assert found.verdict == "within"
    assert found.same_weights
    assert found.not_compared == ()
    assert {one.kind for one in found.compared} == {
        "module",
        "input",
        "softmax",
        "logits",
        "loss",
        "gradient",
    }
    assert all(one.max_abs == one.relative == 0 for one in found.compared)
    assert len([one for one in found.compared if one.kind == "gradient"]) == 21


def test_every_path_has_the_same_outputs_and_they_agree(side: Side, compare: Any) -> None:
    for path in ("eager", "own"):
        found = compare(side, replace(side, attention=path))
        assert found.verdict == "within"
        assert not found.identical
        assert found.tolerance == 1e-4
        assert found.compared[0].relative < 2e-6
        left = {one.name for one in found.not_compared}
        assert left == ({f"model.layers.{n}.mlp.act_fn" for n in (0, 1)} if path == "own" else set())
        softmax = [one for one in found.compared if one.kind == "softmax"]
        assert [one.elements for one in softmax] == [46 * 4 * 27] * 2  # tokens, heads, columns


def test_the_softmax_is_said_to_be_observed_only_where_it_is(side: Side, compare: Any) -> None:
    found = compare(side, replace(side, attention="eager"))
    assert found.a.softmax.startswith("derived")
    assert found.b.softmax == "observed"
    (how,) = {one.how for one in found.compared if one.kind == "softmax"}
    assert how.startswith("A: derived")
    assert how.endswith("B: observed")


@pytest.mark.parametrize("path", PATHS)
def test_a_weight_off_by_a_thousandth_is_named(side: Side, compare: Any, path: Any) -> None:
    one = replace(side, attention=path)
    off = replace(one, put_weights=scaling("model.layers.1.mlp.up_proj.weight", 1.001))
    found = compare(one, off)
    assert found.verdict == "over"
    assert found.first_over == "model.layers.1.mlp.up_proj"
    assert not found.same_weights
    (named,) = (one for one in found.compared if one.label == found.first_over)
    assert named.relative == pytest.approx(1e-3 / 1.001, rel=1e-3)
    before = [one for one in found.compared if one.order < named.order]
    assert before
    assert all(one.max_abs == 0 for one in before)


def test_a_softmax_off_by_a_thousandth_in_one_layer_is_named(
    side: Side, compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama import modeling_llama

    plain = modeling_llama.eager_attention_forward

    def off(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        output, weights = plain(module, query, key, value, mask, **options)
        if module.layer_idx != 1:
            return output, weights
        weights = weights + 1e-3 * (mask == 0)
        groups = module.num_key_value_groups
        return (weights @ value.repeat_interleave(groups, dim=1)).transpose(1, 2).contiguous(), weights

    eager = replace(side, attention="eager")
    found = compare(
        eager, eager, patch=lambda: monkeypatch.setattr(modeling_llama, "eager_attention_forward", off)
    )
    assert found.first_over == "model.layers.1.self_attn (softmax)"
    (named,) = (one for one in found.compared if one.label == found.first_over)
    assert named.max_abs == pytest.approx(1e-3, rel=1e-2)


def patched_sdpa(monkeypatch: pytest.MonkeyPatch, off: Callable[..., Any]) -> Callable[[], None]:
    """Puts a wrong kernel in the fused one's place when called; `off` is given it and its arguments."""
    from transformers import AttentionInterface

    plain: Any = AttentionInterface._global_mapping["sdpa"]

    def attend(module: Any, *tensors: Any, **options: Any) -> Any:
        return off(plain, module, *tensors, **options)

    return lambda: monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", attend)


def test_a_fused_kernel_that_is_off_shows_in_what_it_gives(
    side: Side, compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its softmax cannot be seen: what is derived from its queries and keys is right, its output is not."""

    def off(plain: Any, module: Any, *tensors: Any, **options: Any) -> Any:
        output, weights = plain(module, *tensors, **options)
        return output * (1.001 if module.layer_idx == 1 else 1), weights

    found = compare(side, side, patch=patched_sdpa(monkeypatch, off))
    assert found.first_over == "model.layers.1.self_attn.o_proj (input)"
    assert all(one.max_abs == 0 for one in found.compared if one.kind == "softmax")


def test_packed_neighbours_that_see_each_other_are_found(
    side: Side, compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that leaves the mask out of longer rows, as if each were one example; loading tries eight
    tokens."""

    def off(plain: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        if query.shape[2] > 8:
            mask = torch.ones_like(mask).tril()
        return plain(module, query, key, value, mask, **options)

    found = compare(side, side, patch=patched_sdpa(monkeypatch, off))
    assert found.first_over == "model.layers.0.self_attn.o_proj (input)"
    (named,) = (one for one in found.compared if one.label == found.first_over)
    assert named.worst is not None
    assert named.worst.segment is not None
    assert named.worst.segment > 1  # a row's first example has no neighbour before it
    assert named.worst.position < named.worst.column


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_rotary_base_is_named(side: Side, compare: Any, path: Any, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(side.resolved.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 1.05
    (folder / "config.json").write_text(json.dumps(config))
    one = replace(side, attention=path)
    found = compare(one, replace(one, resolved=ResolvedModel(folder, "other", "a copy")))
    assert found.first_over == "model.rotary_emb"
    assert found.same_weights


@pytest.mark.parametrize("path", ["sdpa", "own"])
def test_autocast_is_within_its_own_tolerance_and_not_within_a_millionth(
    side: Side, compare: Any, path: Any
) -> None:
    fp32 = replace(side, attention=path)
    found = compare(fp32, replace(fp32, precision="autocast"))
    assert (found.verdict, found.tolerance) == ("within", 2e-2)
    assert found.tolerance_reason == "the default of bf16, the lower precision"
    assert found.compared[0].relative > 1e-3
    strict = compare(fp32, replace(fp32, precision="autocast"), 1e-6)
    assert strict.verdict == "over"
    assert strict.first_over is not None
    assert strict.first_over.startswith("model.layers.0.")


@pytest.mark.parametrize("path", ["sdpa", "own"])
@pytest.mark.parametrize("policy", ["bf16", "bf16-master"])
def test_weights_in_bf16_are_within_its_tolerance(side: Side, compare: Any, path: Any, policy: Any) -> None:
    fp32 = replace(side, attention=path, section=TuneSection(rank=4), put_weights=adapters())
    found = compare(fp32, replace(fp32, precision=policy))
    assert (found.verdict, found.b.precision, found.b.compute_dtype) == ("within", policy, "bfloat16")
    assert found.same_weights  # they are of one model; how a side keeps them is its precision
    embedded = next(one for one in found.compared if one.name == "model.embed_tokens")
    assert 0 < embedded.relative < 4e-3


def adapters(factor: float = 1.0) -> Callable[[LoadedModel], None]:
    """Second matrices that are not zero; that of one layer's queries scaled."""

    def put(loaded: LoadedModel) -> None:
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name, parameter in loaded.trainable:
                if "lora_B" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
                    if "layers.1.self_attn.q_proj" in name:
                        parameter.mul_(factor)

    return put


@pytest.mark.parametrize("path", ["sdpa", "own"])
def test_an_adapter_that_is_off_is_named_and_only_trained_parameters_have_gradients(
    side: Side, compare: Any, path: Any
) -> None:
    lora = replace(side, section=TuneSection(rank=4), attention=path, put_weights=adapters())
    assert compare(lora, lora).identical
    found = compare(lora, replace(lora, put_weights=adapters(1.05)))
    assert found.first_over == "model.layers.1.self_attn.q_proj"
    gradients = {one.name for one in found.compared if one.kind == "gradient"}
    assert len(gradients) == 2 * 4 * 2
    assert all(".lora_" in name for name in gradients)


def test_an_adapter_beside_its_base_model_lists_what_only_one_has(side: Side, compare: Any) -> None:
    found = compare(replace(side, section=TuneSection(rank=4)), side)
    assert found.verdict == "within"  # a fresh adapter adds nothing
    left = {(one.kind, one.reason) for one in found.not_compared}
    assert left == {("gradient", "only A has it"), ("gradient", "only B has it")}


def test_not_a_number_on_one_side_is_named_where_it_comes_up(side: Side, compare: Any) -> None:
    broken = replace(side, put_weights=scaling("model.layers.0.mlp.gate_proj.weight", float("nan")))
    found = compare(side, broken, 1e9)
    assert found.verdict == "over"
    assert found.first_over == "model.layers.0.mlp.gate_proj"
    assert found.compared[0].nonfinite == "b"
    both = compare(broken, broken, 1e9)
    assert both.verdict == "over"
    assert not both.identical
    assert both.compared[0].nonfinite == "both"


@pytest.mark.parametrize("mode", ["layer", "model"])
def test_of_a_compiled_side_what_is_outside_is_compared(
    side: Side, compare: Any, mode: Any, monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    monkeypatch.setattr(type(device), "compile_backend", lambda self: ("eager", "a test"))
    compiled = replace(side, compile=mode)
    found = compare(compiled, side)
    assert found.verdict == "within"
    assert found.a.softmax == "unavailable: it is inside compiled code"
    names = {one.name for one in found.compared}
    assert {"hidden states", "head", "mean per supervised token", "lm_head.weight"} <= names
    assert ("model.layers.1" in names) == (mode == "layer")
    assert "model.layers.1.mlp" not in names
    off = replace(side, put_weights=scaling("model.layers.1.mlp.up_proj.weight", 1.1))
    first = compare(compiled, off).first_over
    assert first == ("model.layers.1" if mode == "layer" else "hidden states")


def test_padding_is_not_compared(side: Side, device: Device, batch: BatchTensors, tmp_path: Path) -> None:
    write(tmp_path / "a", side, device, batch)
    outputs = OutputFile(tmp_path / "a")
    other = replace(batch, tokens_BT=batch.tokens_BT.masked_fill(batch.segments_BT == 0, 7))
    comparison = Comparison(outputs)
    run_side(side, device, other, comparison.take, gradient=True)
    compared, _ = comparison.finish()
    assert all(one.max_abs == 0 for one in compared)


def test_the_worst_place_is_that_token(
    side: Side, device: Device, batch: BatchTensors, tmp_path: Path
) -> None:
    write(tmp_path / "a", side, device, batch, gradient=False)
    comparison = Comparison(OutputFile(tmp_path / "a"), lambda token: f"<{token}>")
    changed = batch.tokens_BT.clone()
    changed[1, 3] = (changed[1, 3] + 1) % 256
    run_side(side, device, replace(batch, tokens_BT=changed), comparison.take, gradient=False)
    compared, _ = comparison.finish()
    (embedded,) = (one for one in compared if one.name == "model.embed_tokens")
    worst = embedded.worst
    assert worst is not None
    token = int(batch.tokens_BT[1, 3])
    assert (worst.row, worst.column, worst.token, worst.text) == (1, 3, token, f"<{token}>")
    assert worst.segment == int(batch.segments_BT[1, 3])
    assert abs(worst.a - worst.b) == pytest.approx(embedded.max_abs)
    assert not any(one.kind == "gradient" for one in compared)


# --- figures ----------------------------------------------------------------------------------------------


def test_differences() -> None:
    a, b = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.5]])
    assert difference(a, a) == (0.0, 0.0, 0)
    assert difference(a, b) == (0.5, pytest.approx(0.5 / 25.25**0.5), 3)
    zeros = torch.zeros(3)
    assert difference(zeros, zeros) == (0.0, 0.0, 0)
    assert difference(torch.tensor([0.0, 1e-9, 0.0]), zeros) == (pytest.approx(1e-9), float("inf"), 1)
    same = torch.tensor([1.0, float("inf"), 2.0])
    assert difference(same, same)[::2] == (float("inf"), 1)
    assert difference(torch.zeros(2), torch.tensor([0.0, float("nan")]))[::2] == (float("inf"), 1)


def test_large_outputs_are_gone_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1000, generator=generator) for _ in range(2))
    whole = difference(a, b)
    monkeypatch.setattr("trueup.model.parity_compare.NUMBERS_AT_ONCE", 7)
    parts = difference(a, b)
    assert parts == pytest.approx(whole)
    assert whole[1] == pytest.approx(float((a - b).norm() / b.norm()), rel=1e-5)


# --- files ------------------------------------------------------------------------------------------------


def test_a_file_read_back_is_what_was_written(
    side: Side, device: Device, batch: BatchTensors, tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    taken: list[tuple[Point, torch.Tensor]] = []
    with path.open("wb") as file:
        writer = OutputWriter(file, batch, points=200)

        def take(point: Point, value: torch.Tensor) -> None:
            taken.append((point, value.clone()))
            writer.take(point, value)

        facts = run_side(side, device, batch, take, gradient=True)
        writer.finish(facts, batch_facts(batch, "a test"))
    outputs = OutputFile(path)
    outputs.verify()
    assert outputs.side == facts
    require_same_batch(outputs.batch(), batch, ("a", "b"))
    read = list(outputs)
    assert [point for point, _ in read] == [point for point, _ in taken]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(read, taken, strict=True))


def test_a_damaged_file_is_refused(side: Side, device: Device, batch: BatchTensors, tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, side, device, batch, gradient=False)
    content = path.read_bytes()
    (tmp_path / "flipped").write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(StorageError, match="damaged"):
        OutputFile(tmp_path / "flipped").verify()
    other = content.replace(b'\\"precision\\":\\"fp32\\"', b'\\"precision\\":\\"bf16\\"')
    assert other != content
    (tmp_path / "told otherwise").write_bytes(other)
    with pytest.raises(StorageError, match="damaged"):
        OutputFile(tmp_path / "told otherwise").verify()
    (tmp_path / "older").write_bytes(content.replace(b"trueup-parity-2", b"trueup-parity-1"))
    with pytest.raises(InputError, match="not a file of outputs that this version"):
        OutputFile(tmp_path / "older")
    (tmp_path / "short").write_bytes(content[:-8])
    with pytest.raises(StorageError, match="cannot be read"):
        OutputFile(tmp_path / "short")
    with pytest.raises(InputError, match="not a file of outputs"):
        OutputFile(side.resolved.folder / "model.safetensors")


def test_other_batches_are_refused_by_what_differs(batch: BatchTensors) -> None:
    other = replace(batch, tokens_BT=batch.tokens_BT + 1)
    with pytest.raises(InputError, match="different batches: tokens differ"):
        require_same_batch(batch, other, ("here", "there"))
    other = replace(batch, positions_BT=batch.positions_BT + 1, segments_BT=batch.segments_BT + 1)
    with pytest.raises(InputError, match="positions, segments differ"):
        require_same_batch(batch, other, ("here", "there"))


def test_layers_that_ours_cannot_stand_for_run_as_they_are(side: Side, compare: Any) -> None:
    """Adapters that drop out inputs are one case; every accelerator is another."""
    auto = replace(side, attention="auto", section=TuneSection(rank=4, dropout=0.5))
    found = compare(auto, auto)
    assert found.identical
    assert found.a.attention == "sdpa"


@pytest.mark.parametrize("path", PATHS)
def test_a_model_is_let_go_of_once_it_has_run(
    side: Side, device: Device, batch: BatchTensors, path: Any
) -> None:
    """Else both sides' would be in memory."""
    seen: list[weakref.ref[Any]] = []
    one = replace(side, attention=path, put_weights=lambda loaded: seen.append(weakref.ref(loaded.base)))
    run_side(one, device, batch, lambda point, value: None, gradient=True)
    gc.collect()
    assert [ref() for ref in seen] == [None]


# --- refusals ---------------------------------------------------------------------------------------------


def test_what_a_side_cannot_run_is_refused(side: Side, device: Device, batch: BatchTensors) -> None:
    def run(one: Side, shown: BatchTensors = batch) -> None:
        run_side(one, device, shown, lambda point, value: None, gradient=False)

    with pytest.raises(InputError, match="do not compile"):
        run(replace(side, attention="own", compile="layer"))
    with pytest.raises(InputError, match=r"attention=own is not possible: .*drop"):
        run(replace(side, attention="own", section=TuneSection(rank=4, dropout=0.5)))
    with pytest.raises(InputError, match="token id 999"):
        run(side, replace(batch, tokens_BT=torch.full_like(batch.tokens_BT, 999)))
    with pytest.raises(InputError, match="positions for 4096"):
        run(side, replace(batch, positions_BT=batch.positions_BT + 5000))


def test_the_attention_is_put_back(side: Side, device: Device, batch: BatchTensors) -> None:
    kept: list[LoadedModel] = []
    one = replace(side, put_weights=kept.append)
    run_side(one, device, batch, lambda point, value: None, gradient=False)
    assert kept[0].base.config._attn_implementation == "sdpa"
    hooks = [m for m in kept[0].base.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert hooks == []
    assert "transformers.models.llama.modeling_llama" in sys.modules
