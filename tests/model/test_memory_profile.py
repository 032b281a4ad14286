"""What the recorder sees is what is held: by hand for small chains of tensors, and for a small model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trueup.analysis.memory_trace import holders, live_bytes, module_of, operator_of, peak_of
from trueup.model.builtin import ResolvedModel
from trueup.model.load import LoadedModel, load_model
from trueup.model.memory_profile import MemoryRecorder, weights_of
from trueup.model.memory_profile_forward import ForwardAsk, record_forward
from trueup.model.memory_profile_where import Whereabouts
from trueup.model.tiny import write_tiny
from trueup.recipe.models import TuneSection

FLOAT = 4


def test_the_peak_of_a_chain_is_the_one_computed_by_hand() -> None:
    recorder = MemoryRecorder()
    weight = torch.ones(100, 50)
    recorder.claim([("w", weight)], "weights")
    with recorder, torch.no_grad():
        x = torch.zeros(10, 100)
        y = x @ weight  # 10 x 50, beside x
        del x
        z = torch.cat([y, y, y])  # 30 x 50, beside y
        del y
        z.sum()
    trace = recorder.trace()
    assert [one.size_bytes for one in trace.held] == [FLOAT * n for n in (5000, 1000, 500, 1500, 1)]
    assert peak_of(trace).size_bytes == FLOAT * (5000 + 500 + 1500)
    assert live_bytes(trace)[-1] == FLOAT * (5000 + 1500)


def test_views_and_operators_in_place_hold_nothing_of_their_own() -> None:
    recorder = MemoryRecorder()
    with recorder:
        x = torch.zeros(8, 8)
        parts = [x.view(64), x.T, x[1:], *x.chunk(2), x.detach()]
        x.add_(1)
        parts[0].mul_(2)
        torch.add(x, 1, out=x)
    assert [one.size_bytes for one in recorder.trace().held] == [64 * FLOAT]


def test_a_storage_stays_as_long_as_any_view_of_it() -> None:
    recorder = MemoryRecorder()
    with recorder:
        row = torch.zeros(100, 10)[3]
        assert live_bytes(recorder.trace())[-1] == 1000 * FLOAT
        del row
        assert live_bytes(recorder.trace())[-1] == 0
    assert recorder.trace().held[0].died is not None


def test_a_storage_that_grows_in_place_is_there_twice_for_a_moment() -> None:
    recorder = MemoryRecorder()
    with recorder:
        x = torch.zeros(10)
        x.resize_(30)
    trace = recorder.trace()
    assert peak_of(trace).size_bytes == 40 * FLOAT
    assert live_bytes(trace)[-1] == 30 * FLOAT


def test_what_another_recorder_saw_is_not_in_this_one() -> None:
    first = MemoryRecorder()
    with first:
        kept = torch.zeros(10)
    second = MemoryRecorder()
    with second:
        kept + 1
    assert [one.operator for one in second.trace().held] == ["aten.add"]


def test_the_backward_pass_is_of_the_modules_whose_gradient_it_computes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
    where = Whereabouts(model)
    recorder = MemoryRecorder(where=where)
    recorder.claim(weights_of(model), "weights")
    with where.watching(), recorder:
        model(torch.ones(3, 6)).sum().backward()
        recorder.claim(
            [(name.rpartition(".")[0], p.grad) for name, p in model.named_parameters() if p.grad is not None],
            "gradients",
        )
    held = recorder.trace().held
    assert {one.module for one in held if one.operator == "aten.tanh_backward"} == {"1"}
    gradients = {one.module: 0 for one in held if one.kind == "gradients"}
    for one in held:
        if one.kind == "gradients":
            gradients[one.module] += one.size_bytes
    assert gradients == {"0": FLOAT * (30 + 5), "2": FLOAT * (20 + 4)}


def test_a_weight_that_modules_share_parts_of_is_of_the_module_around_them() -> None:
    recorder = MemoryRecorder()
    both = torch.ones(6, 4)
    recorder.claim([("layers.0.attn.q", both[:3]), ("layers.0.attn.k", both[3:])], "weights")
    assert [(one.module, one.size_bytes) for one in recorder.trace().held] == [("layers.0.attn", 24 * FLOAT)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return load_model(ResolvedModel(Path(folder), "tiny", ""), TuneSection(method="full"))


def test_weights_are_counted_to_the_byte(tiny: LoadedModel) -> None:
    trace = record_forward(tiny, ForwardAsk(1, 8))
    weights = sum(one.size_bytes for one in trace.held if one.kind == "weights")
    buffers = sum(b.nbytes for b in tiny.base.buffers())
    assert weights == FLOAT * tiny.dims.parameters + buffers


def test_the_cache_is_counted_to_the_byte(tiny: LoadedModel) -> None:
    trace = record_forward(tiny, ForwardAsk(2, 24))
    cache = [one for one in trace.held if one.kind == "kv_pool" and one.module == "cache.0"]
    of_token = 2 * tiny.dims.kv_heads * tiny.dims.head_dim * FLOAT
    last = sorted(cache, key=lambda one: one.born)[-2:]
    assert sum(one.size_bytes for one in last) == 2 * 25 * of_token


def test_modules_and_operators_add_up_to_the_peak(tiny: LoadedModel) -> None:
    trace = record_forward(tiny, ForwardAsk(2, 32))
    for owner in (module_of, operator_of):
        assert sum(one.at_peak_bytes for one in holders(trace, owner)) == peak_of(trace).size_bytes
    names = {one.name for one in holders(trace, module_of)}
    assert {"model.embed_tokens", "model.layers.1.mlp.up_proj", "lm_head"} <= names


def test_the_logits_of_the_last_rows_alone_take_so_much_less(tiny: LoadedModel) -> None:
    """A hundred rows of logits are there, or one: the difference is to the byte."""

    def logits(ask: ForwardAsk) -> int:
        held = record_forward(tiny, ask).held
        return max(one.size_bytes for one in held if one.module == "lm_head" and one.kind == "activations")

    all_rows, last = (logits(ForwardAsk(1, 100, last_logits=last)) for last in (False, True))
    assert (all_rows, last) == (100 * tiny.dims.vocab * FLOAT, tiny.dims.vocab * FLOAT)


def test_a_prompt_in_chunks_has_a_lower_peak(tiny: LoadedModel) -> None:
    whole, chunked = (
        peak_of(record_forward(tiny, ForwardAsk(2, 64, chunk=chunk))).size_bytes for chunk in (None, 8)
    )
    assert chunked < whole
