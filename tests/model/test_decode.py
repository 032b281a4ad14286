"""The program of decode steps: what torch's operators compute, the same bits in any company, and no place
that is not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from paged_steps import Paged, sequences

from trueup.model.cpu_program import MOST_ROWS, cpu_program
from trueup.model.decode_matrices import decoder_of
from trueup.model.inference import InferenceModel, ServedAs
from trueup.model.inference_bytes import multiplies_bytes
from trueup.model.inference_linear import OneDnnLinear, PlainLinear
from trueup.model.step_batch import StepBatch
from trueup.model.tiny import write_tiny
from trueup.schema import TrueupError

pytestmark = pytest.mark.skipif(isinstance(cpu_program(), str), reason="nothing compiles the program here")

LENGTHS = (21, 1, 34, 8)
SIZES = {"hidden_size": 64, "intermediate_size": 160}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny(folder, tied_head=True, **SIZES)
    return folder


def with_and_without(folder: Path, served_as: ServedAs) -> tuple[InferenceModel, InferenceModel]:
    model = InferenceModel.load(folder, served_as)
    assert model.decoder is not None
    return model, replace(model, decoder=None)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 13])
@pytest.mark.parametrize("served_as", ["fp32", "int8"])
def test_a_decode_step_gives_the_logits_of_torchs_operators(
    folder: Path, served_as: ServedAs, rows: int
) -> None:
    if served_as == "int8" and not multiplies_bytes(torch.device("cpu")):
        pytest.skip("int8 is widened here, and torch's operators take it")
    found = []
    for model in with_and_without(folder, served_as):
        paged = Paged(model, rows=rows, block_size=4, context=48)
        paged.step(sequences(rows, (LENGTHS * 4)[:rows]))
        found.append(paged.step([[7 + row] for row in range(rows)], shape=(rows + 1, 1, 12)))
    # torch's rounds activations of int8 to 15 bits
    torch.testing.assert_close(found[0], found[1], atol=1e-4 if served_as == "fp32" else 2e-3, rtol=0)


@pytest.mark.parametrize("served_as", ["fp32", "int8"])
def test_biases_a_head_of_its_own_and_a_full_step_are_taken_too(tmp_path: Path, served_as: ServedAs) -> None:
    if served_as == "int8" and not multiplies_bytes(torch.device("cpu")):
        pytest.skip("int8 is widened here, and torch's operators take it")
    write_tiny(tmp_path, tied_head=False, attention_bias=True, mlp_bias=True, **SIZES)
    found = []
    with_program, without = with_and_without(tmp_path, served_as)
    for layer in with_program.layers:  # which the other one has too
        for linear in (layer.qkv, layer.out, layer.down):
            linear.bias_O.normal_()  # type: ignore[attr-defined]
    for model in (with_program, without):
        paged = Paged(model, rows=MOST_ROWS, block_size=4, context=24)
        paged.step(sequences(MOST_ROWS, (3, 17, 9)))
        found.append(paged.step([[row] for row in range(MOST_ROWS)], shape=(MOST_ROWS, 1, 6)))
    torch.testing.assert_close(found[0], found[1], atol=1e-4 if served_as == "fp32" else 2e-3, rtol=0)


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(2, 2, 64), (6, 2, 80), (4, 1, 128), (7, 1, 32)])
def test_any_heads_and_blocks_give_the_logits_of_torchs_operators(
    tmp_path: Path, heads: int, kv_heads: int, head_dim: int, block_size: int
) -> None:
    """The first row's context is its new token alone."""
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    write_tiny(tmp_path, tied_head=True, **SIZES | {"hidden_size": 16 * heads} | shape)
    found = []
    for model in with_and_without(tmp_path, "fp32"):
        paged = Paged(model, rows=4, block_size=block_size, context=72)
        prompts = sequences(4, (1, 16, 70, 33))
        paged.step([prompt[:-1] or prompt for prompt in prompts])
        paged.rows[0].done = 0
        found.append(paged.step([[7], [8], [9], [10]]))
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("served_as", ["fp32", "int8"])
def test_a_row_has_the_same_bits_in_any_company(folder: Path, served_as: ServedAs) -> None:
    """Of seven rows the first four, the next two and the last are multiplied together."""
    model, _ = with_and_without(folder, served_as)
    lengths = (*LENGTHS, *LENGTHS[:3])
    prompts = sequences(7, lengths)
    company = Paged(model, rows=7, block_size=4, context=40)
    company.step(prompts)
    found = company.step([[7 + row] for row in range(7)])
    for row in (0, 3, 4, 6):
        alone = Paged(model, rows=1, block_size=4, context=40)
        alone.step([prompts[row]])  # prefill differs by rounding: the other's takes its place
        for own, other in zip(alone.pool.layers, company.pool.layers, strict=True):
            own[torch.tensor(alone.slots(0, lengths[row]))] = other[
                torch.tensor(company.slots(row, lengths[row]))
            ]
        assert torch.equal(alone.step([[7 + row]])[0], found[row])


def test_no_number_of_threads_changes_a_bit(folder: Path) -> None:
    model, _ = with_and_without(folder, "fp32")
    paged = Paged(model, rows=3, block_size=4, context=40)
    paged.step(sequences(3, LENGTHS[:3]))
    step = paged._padded([[7], [8], [9]], (3, 1, 10))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(model.run(step))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_what_a_place_beyond_the_context_holds_is_never_read(folder: Path) -> None:
    model, _ = with_and_without(folder, "fp32")
    paged = Paged(model, rows=1, block_size=16, context=40)
    (prompt,) = sequences(1, (5,))
    paged.step([prompt])
    wanted = model.run(paged._padded([[7]], (1, 1, 3)))
    for layer_S2KD in paged.pool.layers:
        layer_S2KD[torch.tensor(paged.slots(0, 40)[6:])] = torch.nan
    assert torch.equal(model.run(paged._padded([[7]], (1, 1, 3))), wanted)


@pytest.mark.parametrize(
    ("field", "first_beyond"), [("positions_BQ", 16), ("slots_BQ", 20), ("tables_BW", 5), ("slots_BQ", -1)]
)
def test_a_step_that_names_what_is_not_there_is_refused(folder: Path, field: str, first_beyond: int) -> None:
    model, _ = with_and_without(folder, "fp32")
    paged = Paged(model, rows=1, block_size=4, context=16)  # four blocks and the null block
    step: StepBatch = paged._padded([[7]], (1, 1, 4))
    with pytest.raises(TrueupError, match="not there"):
        model.run(replace(step, **{field: torch.full_like(getattr(step, field), first_beyond)}))


def test_a_default_dtype_of_torch_does_not_shrink_what_a_step_writes_into(folder: Path) -> None:
    model, _ = with_and_without(folder, "fp32")
    paged = Paged(model, rows=1, block_size=4, context=16)
    wanted = paged.step([[7]])
    paged.rows[0].done = 0
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = paged.step([[7]])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("key", ["intermediate", "vocab", "kv_heads"])
def test_weights_of_other_sizes_than_the_dims_are_left_to_torch(folder: Path, key: str) -> None:
    """The program would read and write beyond them."""
    model, _ = with_and_without(folder, "fp32")
    dims = model.dims.model_copy(update={key: getattr(model.dims, key) // 2})
    found = decoder_of(replace(model.frame, dims=dims), model.layers, model.norm_H, model.head)
    assert isinstance(found, str)
    assert "other sizes" in found


def test_more_rows_than_it_takes_go_through_torchs_products(folder: Path) -> None:
    model, _ = with_and_without(folder, "fp32")
    assert model.decoder is not None
    found = []
    for own in with_and_without(folder, "fp32"):
        paged = Paged(own, rows=MOST_ROWS + 1, block_size=4, context=24)
        paged.step(sequences(MOST_ROWS + 1, LENGTHS[:2]))
        step = [[row] for row in range(MOST_ROWS + 1)]
        for rows, taken in ((MOST_ROWS, True), (MOST_ROWS + 1, False)):
            assert model.decoder.takes(rows, rows) is taken
        found.append(paged.step(step))
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=0)


def test_keys_and_values_in_bf16_are_left_to_torch(folder: Path) -> None:
    model, _ = with_and_without(folder, "fp32")
    assert model.decoder is not None
    for dtype, taken in ((torch.float32, True), (torch.bfloat16, False)):
        model.new_pool(4, 4, dtype)
        assert model.drops_padding is taken


def test_a_model_of_other_sizes_is_left_to_torch(tmp_path: Path) -> None:
    write_tiny(tmp_path, tied_head=True, **SIZES | {"intermediate_size": 100})
    assert InferenceModel.load(tmp_path).decoder is None


@pytest.mark.parametrize("slower", [True, False])
def test_whosever_products_are_taken_the_logits_are_the_same_but_for_rounding(
    folder: Path, monkeypatch: pytest.MonkeyPatch, slower: bool
) -> None:
    wanted = Paged(with_and_without(folder, "fp32")[1], rows=2, block_size=4, context=40).step(
        sequences(2, LENGTHS[:2])
    )
    monkeypatch.setattr("trueup.model.inference_linear.mkl_is_slower", lambda: slower)
    model, _ = with_and_without(folder, "fp32")
    assert isinstance(model.layers[0].out, OneDnnLinear if slower else PlainLinear)
    found = Paged(model, rows=2, block_size=4, context=40).step(sequences(2, LENGTHS[:2]))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_without_a_compiler_torch_takes_every_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    cpu_program.cache_clear()
    try:
        model = InferenceModel.load(folder)
    finally:
        cpu_program.cache_clear()
    assert model.decoder is None
    assert model.decoded_by == "torch's operators: there is no C++ compiler no-such-compiler"
    paged = Paged(model, rows=1, block_size=4, context=16)
    assert torch.isfinite(paged.step([[7]])).all()
