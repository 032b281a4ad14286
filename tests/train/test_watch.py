"""The non-finite watch: planted faults are found by name, and looking for them leaves no trace."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from trueup.data import MicroBatch
from trueup.model.layers import gated
from trueup.model.non_finite import Watch, watched
from trueup.train.randomness import RandomState
from trueup.train.session import Session
from trueup.train.stepper import GlobalBatch, NonFiniteError, gather, micro_batch_loss, train_step
from trueup.train.watch import Finding, examples_at, first_non_finite

FULL = ("tune.method=full", "compile.mode=none")
LAYERS = ("own", "transformers")


@pytest.fixture(autouse=True)
def no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trueup.train.session.CEILING_BUDGET_S", 0.01)


@pytest.fixture(params=LAYERS)
def layers(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(open_tiny: Any, layers: str) -> Callable[..., Session]:
    """A session whose forward pass is our own, or that of transformers' modules."""

    def make(*overrides: str) -> Session:
        session: Session = open_tiny(*overrides)
        if layers == "own":
            assert session.model.decoder is not None
            return session
        return replace(session, model=replace(session.model, decoder=None))

    return make


def find(session: Session, step: int = 0) -> Finding:
    return first_non_finite(session, batch_of(session, step), RandomState.of(session.device))


def batch_of(session: Session, step: int = 0) -> GlobalBatch:
    return gather(session, session.epoch(0)[step])


def layer_of(session: Session, n: int) -> Any:
    return session.model.base.model.layers[n]


def test_a_weight_that_is_infinite_names_its_layer(opened: Any) -> None:
    session = opened(*FULL)
    with torch.no_grad():
        layer_of(session, 1).mlp.up_proj.weight[3, 5] = math.inf
    finding = find(session)
    assert (finding.module, finding.direction) == ("model.layers.1.mlp.up_proj", "forward")
    assert finding.non_finite_parameters == ("model.layers.1.mlp.up_proj.weight",)
    assert finding.norms["model.layers.1.mlp.up_proj.weight"] == "inf"
    assert finding.examples
    assert set(finding.examples) <= set(finding.batch_examples)


def test_a_frozen_weight_under_an_adapter_is_found_too(opened: Any, layers: str) -> None:
    session = opened("compile.mode=none")
    with torch.no_grad():
        layer_of(session, 0).self_attn.v_proj.base_layer.weight[0, 0] = math.nan
    found = find(session).module
    assert found == "model.layers.0.self_attn.v_proj" + ("" if layers == "own" else ".base_layer")


def test_a_token_whose_embedding_is_no_number_names_the_examples_that_have_it(opened: Any) -> None:
    session = opened(*FULL, "train.tokens_per_step=192", "shapes.tokens_per_microbatch=192")
    batch = next(batch for batch in map(partial_batch(session), range(20)) if rare_token(batch) is not None)
    (micro_batch,) = batch.own
    token, expected = rare_token(batch) or (0, 0)
    with torch.no_grad():
        session.model.base.get_input_embeddings().weight[token] = math.nan
    finding = first_non_finite(session, batch, RandomState.of(session.device))
    assert (finding.module, finding.direction) == ("model.embed_tokens", "forward")
    assert finding.examples == (expected,)
    assert finding.batch_examples == micro_batch.example_ids
    assert len(finding.batch_examples) > 1


def test_only_batches_with_the_token_fail(opened: Any) -> None:
    session = opened(*FULL, "train.tokens_per_step=96")
    owners: dict[int, set[int]] = {}
    for n in range(len(session.training.lengths)):
        for token in session.training.example(n)[0].tolist():
            owners.setdefault(token, set()).add(n)
    token = min(owners, key=lambda one: len(owners[one]))
    with torch.no_grad():
        session.model.base.get_input_embeddings().weight[token] = math.nan
    failed: list[bool] = []
    for step in range(len(session.epoch(0))):
        batch = batch_of(session, step)
        examples = {n for micro_batch in batch.own for n in micro_batch.example_ids}
        if failed.count(bool(examples & owners[token])) == 2:
            continue
        failed.append(bool(examples & owners[token]))
        if failed[-1]:
            with pytest.raises(NonFiniteError):
                train_step(session, batch, 0.0)
            assert set(find(session, step).examples) == examples & owners[token]
        else:
            assert train_step(session, batch, 0.0).loss > 0
    assert set(failed) == {True, False}


def partial_batch(session: Session) -> Callable[[int], GlobalBatch]:
    return lambda step: batch_of(session, step % len(session.epoch(0)))


def rare_token(batch: GlobalBatch) -> tuple[int, int] | None:
    """(token, example) where exactly one example of the only micro-batch has the token."""
    (micro_batch,) = batch.own
    owners: dict[int, set[int]] = {}
    for place, token in enumerate(micro_batch.tokens_BT.flatten().tolist()):
        for example in examples_at(micro_batch, [place]):
            owners.setdefault(token, set()).add(example)
    if len(micro_batch.example_ids) < 2:
        return None
    return next(((token, min(found)) for token, found in owners.items() if len(found) == 1), None)


def test_attention_scores_that_overflow_are_attentions_doing(opened: Any) -> None:
    session = opened(*FULL)
    with torch.no_grad():
        layer_of(session, 1).self_attn.q_proj.weight.mul_(1e22)
        layer_of(session, 1).self_attn.k_proj.weight.mul_(1e22)
    finding = find(session)
    assert (finding.module, finding.direction) == ("model.layers.1.self_attn", "forward")
    assert not finding.non_finite_parameters
    assert next(iter(finding.norms)) in {f"model.layers.1.self_attn.{one}_proj.weight" for one in "qk"}


class _NanBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * math.nan


def test_a_gradient_that_is_no_number_names_the_layer_that_made_it(
    opened: Any, layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(*FULL)
    apply: Any = _NanBackward.apply
    if layers == "own":
        calls: list[int] = []

        def patched(x: torch.Tensor) -> torch.Tensor:
            calls.append(0)  # once for each of the two layers
            return gated(apply(x)) if len(calls) % 2 else gated(x)

        monkeypatch.setattr("trueup.model.decoder.gated", patched)
    else:
        feed = layer_of(session, 0).mlp
        forward = feed.forward
        feed.forward = lambda x: forward(apply(x))
    finding = find(session)
    assert (finding.module, finding.direction) == ("model.layers.0.mlp", "backward")
    assert not finding.non_finite_parameters


def test_a_loss_that_is_no_number_of_hidden_states_that_are_is_the_heads_doing(opened: Any) -> None:
    session = opened(*FULL)
    with torch.no_grad():
        session.model.base.get_output_embeddings().weight[7] = math.inf
    assert find(session).module == "lm_head"


@pytest.mark.parametrize("mode", ["layer", "model"])
def test_compiled_modules_are_watched_as_they_are_written(open_tiny: Any, mode: str) -> None:
    session = open_tiny(*FULL)
    session = replace(session, model=replace(session.model, decoder=None))
    decoder = session.model.base.model
    modules = list(decoder.layers) if mode == "layer" else [decoder]
    for module in modules:
        module.compile(backend="eager")
    calls = [module._compiled_call_impl for module in modules]
    with torch.no_grad():
        layer_of(session, 1).mlp.gate_proj.weight[0, 0] = math.nan
    assert find(session).module == "model.layers.1.mlp.gate_proj"
    assert [module._compiled_call_impl for module in modules] == calls


def test_checkpointed_layers_are_watched_once(opened: Any) -> None:
    session = opened(*FULL, "train.activation_checkpointing=true")
    with torch.no_grad():
        layer_of(session, 1).mlp.down_proj.weight[0, 0] = math.inf
    assert find(session).module == "model.layers.1.mlp.down_proj"


@pytest.mark.parametrize("dropout", [0.0, 0.5])  # our own layers take none
def test_looking_changes_nothing(open_tiny: Any, dropout: float) -> None:
    session = open_tiny("compile.mode=none", f"tune.dropout={dropout}")
    torch.manual_seed(4)
    random, weights = torch.get_rng_state(), weights_of(session)
    before = RandomState.of(session.device)
    torch.rand(3)
    now = torch.get_rng_state()
    finding = first_non_finite(session, batch_of(session), before)
    assert finding.module is None
    assert "too large" in finding.message
    assert torch.equal(torch.get_rng_state(), now)
    assert not torch.equal(now, random)
    assert all(p.grad is None for _, p in session.model.trainable)
    assert all(torch.equal(a, b) for a, b in zip(weights, weights_of(session), strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in session.model.base.modules())


def test_the_replay_drops_out_what_the_step_dropped_out(open_tiny: Any) -> None:
    session = open_tiny("compile.mode=none", "tune.dropout=0.5")
    adapter = layer_of(session, 0).self_attn.q_proj.lora_A["default"]
    seen: list[torch.Tensor] = []
    adapter.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone()))
    torch.manual_seed(5)
    before = RandomState.of(session.device)
    train_step(session, batch_of(session), 0.0)
    count = len(seen)
    torch.rand(7)
    first_non_finite(session, batch_of(session), before)
    assert len(seen) == 2 * count
    assert all(torch.equal(a, b) for a, b in zip(seen[:count], seen[count:], strict=True))


@pytest.mark.parametrize("policy", ["fp32", "bf16", "bf16-master", "autocast"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_watching_computes_the_same_bits(opened: Any, policy: str, method: str) -> None:
    session = opened("compile.mode=none", f"precision.policy={policy}", f"tune.method={method}")
    (micro_batch, *_) = batch_of(session).own
    plain = micro_batch_loss(session, micro_batch, "training")
    plain.backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad.clone() for _, p in session.model.trainable if p.grad is not None]
    session.optimizer.zero_grad(set_to_none=True)
    watch = Watch(micro_batch.processed_tokens)
    with watched(session.model, watch) as model:
        loss = micro_batch_loss(replace(session, model=model), micro_batch, "training")
        watch.backward(loss)
    assert torch.equal(loss, plain)
    again = [p.grad for _, p in session.model.trainable]
    assert all(b is not None and torch.equal(a, b) for a, b in zip(gradients, again, strict=True))


def test_places_are_examples() -> None:
    segments = np.asarray([[1, 1, 2, 0], [1, 2, 3, 3]], dtype=np.int32)
    zeros = np.zeros_like(segments, dtype=np.int64)
    batch = MicroBatch(zeros, zeros, segments, zeros.astype(bool), (10, 11, 12, 13, 14), 0)
    assert examples_at(batch, [0, 2, 3]) == (10, 11)
    assert examples_at(batch, [4, 7, 6]) == (12, 14)


def test_a_finding_is_json(opened: Any) -> None:
    session = opened(*FULL)
    with torch.no_grad():
        session.model.base.model.norm.weight[0] = math.nan
    finding = find(session)
    assert finding.module == "model.norm"
    json.dumps(finding.model_dump(mode="json"), allow_nan=False)
    assert Finding.model_validate_json(finding.model_dump_json()) == finding


def weights_of(session: Session) -> list[torch.Tensor]:
    return [p.detach().clone() for p in session.model.base.parameters()]
