"""Batches built by hand: the same examples one by one, padded left or right, and packed; and what a model
makes of them.

An example is (tokens, supervised): supervised[i] says that token i is to be predicted, from the tokens
before it. B rows, T positions, N supervised positions.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trueup.model.batch import BatchTensors, batch_loss
from trueup.model.builtin import ResolvedModel
from trueup.model.load import Attention, LoadedModel, load_model
from trueup.model.precision import Precision
from trueup.model.reference import widen
from trueup.recipe.models import TuneSection

PADDING = 0  # segment number of padding; examples of a row count from 1
PAD_TOKEN = 256

FP32 = Precision(policy="fp32", compute_dtype="float32", reason="test")
BF16 = Precision(policy="autocast", compute_dtype="bfloat16", reason="test")
LENGTHS = [5, 17, 2, 9, 30, 12, 3]
LORA = TuneSection(rank=4)

Example = tuple[np.ndarray, np.ndarray]
Gradients = dict[str, torch.Tensor]


def examples_of(seed: int, lengths: list[int], vocab: int = 256) -> list[Example]:
    """Random tokens; about two thirds supervised, the last always, the first never."""
    rng = np.random.default_rng(seed)
    examples = []
    for length in lengths:
        supervised = rng.random(length) < 0.66
        supervised[0], supervised[-1] = False, True
        examples.append((rng.integers(0, vocab, length), supervised))
    return examples


def batch_of(rows: list[list[Example]], length: int, *, left: int = 0) -> BatchTensors:
    """One batch with the given examples in each row, `left` padding tokens first, padding after."""
    tokens = np.full((len(rows), length), PAD_TOKEN)
    positions = np.zeros((len(rows), length), dtype=int)
    segments = np.full((len(rows), length), PADDING)
    targets = np.full((len(rows), length), -100)
    for row, examples in enumerate(rows):
        start = left
        for number, (ids, supervised) in enumerate(examples, start=1):
            end = start + len(ids)
            tokens[row, start:end] = ids
            positions[row, start:end] = np.arange(len(ids))
            segments[row, start:end] = number
            targets[row, start : end - 1] = np.where(supervised[1:], ids[1:], -100)
            start = end
        assert start <= length
    rows_n = np.flatnonzero(targets.reshape(-1) != -100)
    return BatchTensors.from_arrays(tokens, positions, segments, rows_n, targets.reshape(-1)[rows_n])


def one_by_one(examples: list[Example]) -> list[BatchTensors]:
    return [batch_of([[example]], len(example[0])) for example in examples]


def padded(examples: list[Example], *, left: int = 0, extra: int = 3) -> list[BatchTensors]:
    longest = max(len(ids) for ids, _ in examples)
    return [batch_of([[example] for example in examples], longest + left + extra, left=left)]


def packed(examples: list[Example], rows: int = 2) -> list[BatchTensors]:
    dealt = [examples[row::rows] for row in range(rows)]
    longest = max(sum(len(ids) for ids, _ in row) for row in dealt)
    return [batch_of(dealt, longest + 2)]


def bucketed(examples: list[Example]) -> list[BatchTensors]:
    """Short ones in one batch, long ones in another, each padded to its own longest."""
    ordered = sorted(examples, key=lambda example: len(example[0]))
    half = len(ordered) // 2
    return padded(ordered[:half], extra=0) + padded(ordered[half:], extra=0)


def loaded_model(
    resolved: ResolvedModel,
    section: TuneSection = LORA,
    *,
    attention: Attention = "sdpa",
    precision: Precision | None = None,
    wide: bool = False,
    std: float = 0.1,
) -> LoadedModel:
    """With adapters that do something; `wide`: in fp64 throughout."""
    loaded = load_model(resolved, section, seed=1, attention=attention, precision=precision)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in loaded.trainable:
            if "lora_B" in name:  # zero at first, which would hide every error in A
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return widen(loaded) if wide else loaded


def loss_and_gradients(
    loaded: LoadedModel, batches: list[BatchTensors], precision: Precision = FP32
) -> tuple[float, Gradients]:
    """Of all batches together."""
    loaded.module.zero_grad(set_to_none=True)
    total = 0.0
    for batch in batches:
        loss = batch_loss(loaded, batch, precision, chunk_rows=7)
        loss.backward()
        total += loss.item()
    return total, {name: p.grad.clone() for name, p in loaded.trainable if p.grad is not None}


def assert_close(found: tuple[float, Gradients], expected: tuple[float, Gradients], within: float) -> None:
    """Loss, and each gradient in norm, up to `within`."""
    assert found[0] == pytest.approx(expected[0], rel=within)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert gradient.norm() > 0, name
        assert (found[1][name] - gradient).norm() <= within * gradient.norm(), name
