"""The forward pass of serving against transformers': the same logits in whatever chunks, blocks and company,
and no influence of what no row owns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_steps import Paged, differences, expected, greedy, sequences
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from trueup.model.builtin import ResolvedModel
from trueup.model.inference import InferenceModel

WITHIN = 1e-4
LENGTHS = (21, 1, 34, 8)


@pytest.fixture(scope="module", params=["a program of its own", "torch's operators"])
def model(request: pytest.FixtureRequest, tiny: ResolvedModel) -> InferenceModel:
    loaded = InferenceModel.load(tiny.folder)
    if request.param == "torch's operators":
        return replace(loaded, decoder=None)
    if loaded.decoder is None:
        pytest.skip(loaded.decoded_by)
    return loaded


@pytest.fixture(scope="module")
def base(tiny: ResolvedModel) -> Any:
    auto: Any = AutoModelForCausalLM
    return auto.from_pretrained(tiny.folder, dtype=torch.float32)


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
def test_a_prefill_gives_the_logits_of_transformers_in_blocks_of_any_size(
    model: InferenceModel, base: Any, block_size: int
) -> None:
    prompts = sequences(4, LENGTHS)
    found = Paged(model, rows=4, block_size=block_size, context=40).step(prompts)
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(found[row], expected(base, prompt)[-1], atol=WITHIN, rtol=0)


@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(
    model: InferenceModel, base: Any, chunk: int
) -> None:
    (prompt,) = sequences(1, (37,))
    paged = Paged(model, rows=1, block_size=8, context=40)
    wanted = expected(base, prompt)
    for start in range(0, len(prompt), chunk):
        own = prompt[start : start + chunk]
        found = paged.step([own], shape=(1, chunk, 5))
        torch.testing.assert_close(found[0], wanted[start + len(own) - 1], atol=WITHIN, rtol=0)


def test_rows_of_different_lengths_decode_together_as_transformers_does_one_by_one(
    model: InferenceModel, base: Any
) -> None:
    whole = sequences(4, [length + 6 for length in LENGTHS])
    paged = Paged(model, rows=4, block_size=4, context=48)
    paged.step([tokens[:-6] for tokens in whole])
    wanted = [expected(base, tokens) for tokens in whole]
    for back in range(6, 0, -1):
        found = paged.step([[tokens[-back]] for tokens in whole], shape=(8, 1, 12))
        for row, logits_TV in enumerate(wanted):
            torch.testing.assert_close(found[row], logits_TV[-back], atol=WITHIN, rtol=0)


def test_a_chunk_as_tall_as_takes_the_kernels_other_way_gives_the_same_logits(
    model: InferenceModel, base: Any
) -> None:
    (prompt,) = sequences(1, (400,))
    found = Paged(model, rows=1, block_size=16, context=400).step([prompt])
    torch.testing.assert_close(found[0], expected(base, prompt)[-1], atol=WITHIN, rtol=0)


@settings(max_examples=15)
@given(
    prompts=st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=30), min_size=1, max_size=5),
    block_size=st.integers(1, 20),
    spare=st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 3)),
    seed=st.integers(0, 9),
)
def test_no_padding_and_no_place_of_a_block_changes_the_logits(
    model: InferenceModel,
    base: Any,
    prompts: list[list[int]],
    block_size: int,
    spare: tuple[int, int, int],
    seed: int,
) -> None:
    longest = max(map(len, prompts))
    paged = Paged(model, rows=len(prompts), block_size=block_size, context=longest, seed=seed)
    needed = (len(prompts), longest, -(-longest // block_size))
    rows, new, blocks = (size + more for size, more in zip(needed, spare, strict=True))
    found = paged.step(prompts, shape=(rows, new, blocks))
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(found[row], expected(base, prompt)[-1], atol=WITHIN, rtol=0)


def test_what_lies_in_the_null_block_has_exactly_no_influence(model: InferenceModel) -> None:
    def logits(rubbish: float) -> torch.Tensor:
        paged = Paged(model, rows=3, block_size=4, context=40)
        for layer in paged.pool.layers:
            layer[:4] = rubbish
        paged.step(sequences(3, LENGTHS), shape=(4, 40, 10))
        return paged.step([[7], [8], [9]], shape=(4, 1, 10))

    assert torch.equal(logits(0.0), logits(1e4))


def test_what_an_earlier_owner_left_in_a_block_has_exactly_no_influence(model: InferenceModel) -> None:
    def logits(rubbish: float) -> torch.Tensor:
        paged = Paged(model, rows=3, block_size=16, context=40)
        for layer in paged.pool.layers:
            layer[:] = rubbish
        paged.step(sequences(3, LENGTHS))
        return paged.step([[7], [8], [9]])

    assert torch.equal(logits(0.0), logits(-1e4))


def test_a_padding_row_has_finite_logits_and_writes_to_the_null_block_alone(model: InferenceModel) -> None:
    paged = Paged(model, rows=2, block_size=4, context=16)
    before = [layer.clone() for layer in paged.pool.layers]
    step = paged._padded([], (3, 5, 4))
    assert torch.isfinite(model.run(step)).all()
    for layer, old in zip(paged.pool.layers, before, strict=True):
        assert torch.equal(layer[4:], old[4:])


def test_a_row_of_no_numbers_leaves_the_null_block_and_the_others_alone(model: InferenceModel) -> None:
    one, other = sequences(2, (5, 9))
    whole = Paged(model, rows=2, block_size=4, context=16)
    wanted = whole.step([one, other], shape=(2, 16, 4))
    paged = Paged(model, rows=2, block_size=4, context=16)
    paged.step([one[:-1], other[:-1]], shape=(2, 16, 4))
    spoilt = torch.tensor(paged.slots(1, 8))
    for layer_S2KD in paged.pool.layers:
        layer_S2KD[spoilt] = torch.nan
    # Most of both rows' 16 places are padding; the last row's, written last, comes from what is no number.
    found = paged.step([one[-1:], other[-1:]], shape=(2, 16, 4))
    assert not found[1].isfinite().any()
    torch.testing.assert_close(found[0], wanted[0], atol=WITHIN, rtol=0)
    assert all(layer_S2KD[:4].isfinite().all() for layer_S2KD in paged.pool.layers)


def test_cleared_slots_have_no_numbers_left_of_their_owner(model: InferenceModel) -> None:
    (prompt,) = sequences(1, (7,))
    paged = Paged(model, rows=1, block_size=4, context=16)
    paged.step([prompt])
    slots = torch.tensor(paged.slots(0, 7))
    kept = [layer_S2KD.clone() for layer_S2KD in paged.pool.layers]
    model.clear(slots)
    others = torch.ones(len(kept[0]), dtype=torch.bool).index_fill_(0, slots, False)
    for before_S2KD, after_S2KD in zip(kept, paged.pool.layers, strict=True):
        assert before_S2KD[slots].any()
        assert not after_S2KD[slots].any()
        assert torch.equal(after_S2KD[others], before_S2KD[others])


def test_a_later_token_does_not_move_the_logits_of_an_earlier_one(model: InferenceModel) -> None:
    """transformers#48296: masked attention that is silently not causal."""

    def logits(last: int) -> torch.Tensor:
        (prompt,) = sequences(1, (12,))
        paged = Paged(model, rows=1, block_size=4, context=12)
        step = paged._padded([[*prompt[:11], last]], (1, 12, 3))
        step.last_B[0] = 5
        return model.run(step)

    assert torch.equal(logits(3), logits(200))


def test_who_shares_the_batch_changes_nothing_beyond_rounding(model: InferenceModel) -> None:
    prompts = sequences(6, LENGTHS)
    together = Paged(model, rows=6, block_size=4, context=40).step(prompts)
    for row, prompt in enumerate(prompts):
        alone = Paged(model, rows=1, block_size=4, context=40).step([prompt])[0]
        torch.testing.assert_close(together[row], alone, atol=1e-5, rtol=0)
        assert int(together[row].argmax()) == int(alone.argmax())


@pytest.mark.parametrize("batch", [1, 5])
def test_greedy_tokens_are_those_of_transformers_generate(
    model: InferenceModel, base: Any, batch: int
) -> None:
    prompts, count = sequences(10, LENGTHS), 12
    found: list[list[int]] = []
    margins = []
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        tokens, margin = greedy(Paged(model, rows=batch, block_size=4, context=48), part, count)
        found += tokens
        margins.append(margin)
    wanted = [generated(base, prompt, count) for prompt in prompts]
    clear, close = differences(found, wanted, torch.cat(margins))
    assert clear == 0
    assert close <= 1


def generated(base: Any, prompt: list[int], count: int) -> list[int]:
    out = base.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def test_rotary_angles_that_a_model_stretches_are_those_of_transformers(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    base = written(tmp_path, rope_parameters=rope)
    (prompt,) = sequences(1, (50,))
    found = Paged(InferenceModel.load(tmp_path), rows=1, block_size=8, context=56).step([prompt])
    torch.testing.assert_close(found[0], expected(base, prompt)[-1], atol=WITHIN, rtol=0)


def test_biases_and_heads_of_another_size_are_the_models_own(tmp_path: Path) -> None:
    base = written(tmp_path, attention_bias=True, mlp_bias=True, head_dim=32)
    (prompt,) = sequences(1, (9,))
    paged = Paged(InferenceModel.load(tmp_path), rows=1, block_size=4, context=12)
    torch.testing.assert_close(paged.step([prompt])[0], expected(base, prompt)[-1], atol=WITHIN, rtol=0)
    torch.testing.assert_close(paged.step([[7]])[0], expected(base, [*prompt, 7])[-1], atol=WITHIN, rtol=0)


def written(folder: Path, **changes: Any) -> Any:
    """A random Llama saved in the folder, no weight of it zero."""
    sizes: dict[str, Any] = {
        "vocab_size": 260,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        base: Any = LlamaForCausalLM(LlamaConfig(**sizes | changes))
        with torch.no_grad():
            for parameter in base.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
    base.save_pretrained(folder)
    return base.eval()
