"""Prefill steps without padding: what torch's operators compute, each row over its own context alone, the
same bits of attention however a prompt is cut and whoever is beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from paged_steps import Paged, sequences

from trueup.model import inference
from trueup.model.cpu_program import cpu_program
from trueup.model.decode import Decoder
from trueup.model.inference import InferenceModel
from trueup.model.paged_attention import KvPool
from trueup.model.prefill import PackedPlaces
from trueup.model.step_batch import PackedStep, StepBatch, padding_batch
from trueup.model.tiny import write_tiny
from trueup.schema import TrueupError

pytestmark = pytest.mark.skipif(isinstance(cpu_program(), str), reason="nothing compiles the program here")

SIZES = {"hidden_size": 64, "intermediate_size": 160}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny(folder, tied_head=True, **SIZES)
    return folder


@pytest.fixture
def model(folder: Path) -> InferenceModel:
    return InferenceModel.load(folder)


def program(model: InferenceModel) -> Decoder:
    assert model.decoder is not None
    return model.decoder


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(2, 2, 64), (6, 2, 80), (4, 1, 128), (7, 1, 32)])
def test_chunks_of_any_heads_and_blocks_give_the_logits_of_torchs_operators(
    tmp_path: Path, heads: int, kv_heads: int, head_dim: int, block_size: int
) -> None:
    """Rows of several lengths, a second chunk over what the first left, and padding on both sides."""
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    write_tiny(tmp_path, tied_head=True, **SIZES | {"hidden_size": 16 * heads} | shape)
    with_program = InferenceModel.load(tmp_path)
    found = []
    for own in (with_program, replace(with_program, decoder=None)):
        paged = Paged(own, rows=4, block_size=block_size, context=230)
        first = paged.step(sequences(4, (1, 16, 70, 129)))
        found.append((first, paged.step(sequences(4, (100, 1, 33, 18), seed=5), shape=(5, 100, 240))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_the_keys_and_values_it_leaves_are_those_of_torchs_operators(model: InferenceModel) -> None:
    pools = []
    for own in (model, replace(model, decoder=None)):
        paged = Paged(own, rows=3, block_size=4, context=48)
        paged.step(sequences(3, (21, 1, 34)))
        pools.append(paged.pool.layers)
    for one, other in zip(*pools, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def attended(model: InferenceModel, chunks: Sequence[int], beside: int = 0) -> torch.Tensor:
    """(T, J * D): attention's output for one prompt in these chunks, `beside` tokens of another in each."""
    drawn = torch.Generator().manual_seed(1)
    heads, keys, size = model.dims.heads, model.dims.kv_heads, model.dims.head_dim
    qkv_TXD = torch.randn(sum(chunks), heads + 2 * keys, size, generator=drawn)
    paged = Paged(model, rows=2, block_size=4, context=sum(chunks))
    found, start = [], 0
    for chunk in chunks:
        other = [[1] * min(beside, chunk)] if beside else []
        step = paged._padded([[1] * chunk, *other], (1 + len(other), chunk, paged_width(paged)))
        paged.rows[0].done += chunk
        packed = PackedStep.of(step)
        places = PackedPlaces.of(packed, paged.pool, model.frame, program(model).library)
        more = torch.randn(len(packed.tokens_N) - chunk, *qkv_TXD.shape[1:], generator=drawn)
        own = torch.cat([qkv_TXD[start : start + chunk], more])
        seen = places.attend(own, paged.pool.layers[0], heads=(heads, keys), scaling=model.frame.scaling)
        found.append(seen[:chunk])
        start += chunk
    return torch.cat(found)


def paged_width(paged: Paged) -> int:
    return len(paged.rows[0].blocks)


def test_attention_has_the_same_bits_however_a_prompt_is_cut_and_in_any_company(
    model: InferenceModel,
) -> None:
    whole = attended(model, [150])
    for chunks, beside in (([1, 149], 0), ([16, 17, 117], 0), ([75, 75], 9), ([150], 40)):
        assert torch.equal(attended(model, chunks, beside), whole)


def test_no_number_of_threads_changes_a_bit_of_attention(model: InferenceModel) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(attended(model, [150], 40))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_what_lies_beyond_a_rows_context_is_never_read(model: InferenceModel) -> None:
    """In its last block, in the null block and in a neighbour's."""
    found = []
    for spoilt in (False, True):
        paged = Paged(model, rows=2, block_size=16, context=40)
        if spoilt:
            for layer_S2KD in paged.pool.layers:
                layer_S2KD.fill_(torch.nan)
        found.append(paged.step([*sequences(1, (21,))], shape=(2, 32, 3)))
    assert torch.isfinite(found[1]).all()
    assert torch.equal(found[0], found[1])


def test_a_longer_context_than_a_tile_has_room_for_is_cut_into_smaller_tiles(
    model: InferenceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = attended(model, [150])
    monkeypatch.setattr("trueup.model.prefill.TILE_SCORES", 160)
    assert torch.equal(attended(model, [150]), whole)


@pytest.mark.parametrize(
    ("field", "beyond"),
    [("positions_BQ", 16), ("slots_BQ", 20), ("slots_BQ", -1), ("tables_BW", 5), ("tables_BW", -1)],
)
def test_a_step_that_names_what_is_not_there_is_refused(
    model: InferenceModel, field: str, beyond: int
) -> None:
    paged = Paged(model, rows=1, block_size=4, context=16)  # four blocks and the null block
    step: StepBatch = paged._padded([[7, 8, 9]], (1, 3, 4))
    with pytest.raises(TrueupError, match="not there"):
        model.run(replace(step, **{field: torch.full_like(getattr(step, field), beyond)}))


def test_padding_is_not_computed_but_for_what_makes_a_multiple(
    model: InferenceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []
    plain = inference.InferenceLayer.__call__

    def counted(layer: Any, stream_NH: torch.Tensor, *rest: Any) -> torch.Tensor:
        numbers.append(len(stream_NH))
        return plain(layer, stream_NH, *rest)

    monkeypatch.setattr(inference.InferenceLayer, "__call__", counted)
    paged = Paged(model, rows=3, block_size=4, context=64)
    step = paged._padded(sequences(2, (21, 9)), (8, 64, 16))
    logits_BV = model.run(step)
    assert set(numbers) == {32}
    assert model.processed_tokens(step) == 32
    assert (logits_BV[2:] == 0).all()  # rows of padding
    assert model.processed_tokens(paged._padded([[7], [8]], (8, 1, 16))) == 2
    for shape, tokens in (((2, 24, 6), 48), ((4, 1, 6), 4), ((40, 1, 2), 48)):  # a warm-up's are all computed
        assert model.processed_tokens(padding_batch(shape)) == tokens
    assert replace(model, decoder=None, pool=model.pool).processed_tokens(step) == 8 * 64


def test_a_step_of_padding_alone_is_computed_whole(model: InferenceModel) -> None:
    model.new_pool(8, 4)
    for shape in ((2, 24, 6), (4, 1, 6)):
        step = padding_batch(shape)
        assert len(PackedStep.of(step).tokens_N) == shape[0] * shape[1]
        assert torch.isfinite(model.run(step)).all()
    assert all((layer_S2KD == 0).all() for layer_S2KD in pool_of(model).layers)


def pool_of(model: InferenceModel) -> KvPool:
    assert model.pool is not None
    return model.pool
