"""The chunked loss against torch's cross-entropy, and what it never allocates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from trueup.model.loss import NO_TARGET, chunked_loss


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements that any tensor made under it has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def inputs(
    rows: int, vocab: int = 37, hidden: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Any:
    g = torch.Generator().manual_seed(seed)
    hidden_BTH = torch.randn(3, 8, hidden, generator=g, dtype=dtype).requires_grad_()
    weight_VH = (torch.randn(vocab, hidden, generator=g, dtype=dtype) * 2).requires_grad_()
    rows_N = torch.randperm(24, generator=g)[:rows].sort().values
    targets_N = torch.randint(0, vocab, (rows,), generator=g)
    return hidden_BTH, weight_VH, rows_N, targets_N


def plain(
    hidden_BTH: torch.Tensor, weight_VH: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    return cross_entropy(hidden_BTH.flatten(0, 1)[rows] @ weight_VH.T, targets, reduction="sum")


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 24),
    chunk=st.integers(1, 30),
    seed=st.integers(0, 999),
    scale=st.sampled_from([1.0, -0.25]),
)
def test_values_and_gradients_are_those_of_cross_entropy(
    rows: int, chunk: int, seed: int, scale: float
) -> None:
    """trl#5575: the loss in chunks, with the value and gradients of the whole."""
    hidden, weight, rows_N, targets_N = inputs(rows, seed=seed)
    results = []
    for loss_of in (plain, lambda *a: chunked_loss(*a, chunk_rows=chunk)):
        loss = loss_of(hidden, weight, rows_N, targets_N)
        results.append((loss.detach(), *torch.autograd.grad(loss * scale, (hidden, weight))))
    for expected, ours in zip(*results, strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("frozen", ["weight", "hidden"])
def test_what_is_frozen_gets_no_gradient(frozen: str) -> None:
    hidden, weight, rows_N, targets_N = inputs(9)
    still, moving = (weight, hidden) if frozen == "weight" else (hidden, weight)
    still.requires_grad_(False)
    chunked_loss(hidden, weight, rows_N, targets_N, chunk_rows=4).backward()
    assert still.grad is None
    torch.testing.assert_close(
        moving.grad,
        torch.autograd.grad(plain(hidden, weight, rows_N, targets_N), moving)[0],
        rtol=1e-12,
        atol=1e-12,
    )


def test_no_rows_is_a_zero_that_backward_accepts() -> None:
    hidden, weight, rows_N, targets_N = inputs(0)
    loss = chunked_loss(hidden, weight, rows_N, targets_N)
    assert loss.item() == 0
    loss.backward()
    assert hidden.grad.abs().max() == 0
    assert weight.grad.abs().max() == 0


@pytest.mark.parametrize("trained_head", [False, True])
def test_the_full_logits_never_exist(trained_head: bool) -> None:
    vocab, size, rows = 5000, 8, 400
    hidden = torch.randn(1, 512, size, requires_grad=True)
    weight = torch.randn(vocab, size, requires_grad=trained_head)
    rows_N, targets_N = torch.arange(rows), torch.randint(0, vocab, (rows,))

    def largest_of(loss_of: Any) -> int:
        with LargestTensor() as watch:
            loss_of(hidden, weight, rows_N, targets_N).backward()
        return watch.elements

    assert largest_of(plain) >= rows * vocab  # the watch sees them where they do exist
    assert largest_of(lambda *a: chunked_loss(*a, chunk_rows=16)) <= 16 * vocab


def test_evaluation_computes_no_gradient() -> None:
    hidden, weight, rows_N, targets_N = inputs(20)
    products = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "mm" in str(func):
                products.append(func)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Products():
        loss = chunked_loss(hidden, weight, rows_N, targets_N, chunk_rows=5)
    assert len(products) == 4  # one a chunk
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plain(hidden, weight, rows_N, targets_N).detach(), rtol=1e-12, atol=0)


def test_autocast_multiplies_in_bf16_and_sums_in_fp32() -> None:
    hidden, weight, rows_N, targets_N = inputs(24, vocab=4000, hidden=32, dtype=torch.float32)
    seen = set()

    class Dtypes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            seen.update({(str(func), result.dtype)} if isinstance(result, torch.Tensor) else set())
            return result

    with torch.autocast("cpu", dtype=torch.bfloat16), Dtypes():
        loss = chunked_loss(hidden, weight, rows_N, targets_N, chunk_rows=10)
    assert {dtype for name, dtype in seen if name.startswith("aten.mm")} == {torch.bfloat16}
    assert {dtype for name, dtype in seen if "exp" in name and "expand" not in name} == {torch.float32}
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(plain(hidden, weight, rows_N, targets_N).item(), rel=5e-3)


def test_a_sure_model_keeps_its_small_gradient_in_bf16() -> None:
    """Softmax minus one is about -1e-3 here: rounded to bf16 before the subtraction it would be 0 or
    -4e-3."""
    hidden = torch.ones(1, 1, 1, requires_grad=True)
    weight = torch.tensor([[7.0], [0.0]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        chunked_loss(hidden, weight, torch.tensor([0]), torch.tensor([0])).backward()
    exact = torch.autograd.grad(plain(hidden, weight, torch.tensor([0]), torch.tensor([0])), hidden)[0]
    assert hidden.grad.item() == pytest.approx(exact.item(), rel=1e-2)


def test_large_logits_stay_finite() -> None:
    hidden = torch.full((1, 2, 4), 300.0, requires_grad=True)
    weight = torch.stack([torch.full((4,), 300.0), torch.full((4,), -300.0)])
    loss = chunked_loss(hidden, weight, torch.tensor([0, 1]), torch.tensor([0, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(720_000)
    assert hidden.grad.isfinite().all()


@pytest.mark.parametrize("filled", [1, 5, 8])
def test_rows_that_only_fill_a_chunk_add_nothing(filled: int) -> None:
    """A static compiler wants whole chunks: copies of row 0 without a target do not count."""
    hidden, weight, rows, targets = inputs(8)
    found = []
    for extra in (0, filled):
        hidden.grad = weight.grad = None
        more = torch.zeros(extra, dtype=torch.int64)
        loss = chunked_loss(
            hidden, weight, torch.cat([rows, more]), torch.cat([targets, more + NO_TARGET]), chunk_rows=4
        )
        loss.backward()
        found.append((loss.detach(), hidden.grad.clone(), weight.grad.clone()))
    for with_none, with_filling in zip(*found, strict=True):
        torch.testing.assert_close(with_filling, with_none, rtol=1e-12, atol=1e-12)
