"""What predictions count beforehand is what torch is asked for: kernels, and tensors there together."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trueup.analysis.predict_memory import LEAST_PLACES, READY_BYTES
from trueup.analysis.predict_terms import TERMS
from trueup.device import open_device
from trueup.model import attention
from trueup.model.precision import Precision
from trueup.recipe.models import TuneSection
from trueup.train import step_probe
from trueup.train.step_probe import FULL, Asked, Probe, ProbeModel

PRODUCTS = {"mm", "addmm", "addmm_", "bmm"}
VIEWS = {
    *(
        "view",
        "t",
        "transpose",
        "slice",
        "split",
        "unsqueeze",
        "squeeze",
        "expand",
        "alias",
        "detach",
        "select",
    ),
    *("as_strided", "_unsafe_view", "permute", "unbind", "split_with_sizes", "_reshape_alias"),
}
LORA = TuneSection(method="lora", rank=4, alpha=8, targets=step_probe.ATTENTION)


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Kernels that are started, without matrix products and views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.__name__.split(".")[0] not in PRODUCTS | VIEWS
        return func(*args, **(kwargs or {}))


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes of tensors at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(one, torch.Tensor):
                self._add(one.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        place = storage.data_ptr()
        if place and place not in self._sizes:
            self._sizes[place] = storage.nbytes()
            weakref.finalize(storage, self._sizes.pop, place, None)
            self.peak = max(self.peak, sum(self._sizes.values()))


def calls(
    tune: TuneSection, *, layers: int = 2, micro_batches: int = 1, lengths: tuple[int, ...] = (64,)
) -> int:
    device = open_device("cpu", threads=1)
    precision = Precision(policy="bf16-master", compute_dtype="bfloat16", reason="a test")
    probe = Probe(ProbeModel(64, layers, 4, 2, 176, 512), tune, ())
    model = step_probe._random_model(probe, device, precision)
    optimizer = step_probe._optimizer(model, probe, device, precision)
    asked = Asked(1, lengths, micro_batches=micro_batches)
    timer = step_probe._Timer(device, model, precision, probe, asked, "example", optimizer)
    timer.one_step()
    with Calls() as counted:
        timer.one_step()
    found: int = counted.count
    return found


@pytest.mark.parametrize(("tune", "term"), [(LORA, "layers_lora"), (FULL, "layers_full")])
def test_a_layer_starts_as_many_kernels_as_its_term_weighs(tune: TuneSection, term: str) -> None:
    more = calls(tune, layers=4) - calls(tune, layers=2)
    assert TERMS[term].weight + TERMS["groups"].weight == pytest.approx(more / 2, rel=0.1)


def test_a_group_starts_as_many_kernels_as_its_term_weighs() -> None:
    more = calls(LORA, lengths=(256, 64)) - calls(LORA, lengths=(256,))
    assert TERMS["groups"].weight == pytest.approx(more / 2, rel=0.2)  # two layers


def test_a_micro_batch_starts_as_many_kernels_as_its_term_weighs() -> None:
    more = calls(LORA, micro_batches=2) - calls(LORA)
    in_layers = 2 * (TERMS["layers_lora"].weight + TERMS["groups"].weight)
    assert TERMS["micro_batches"].weight == pytest.approx(more - in_layers, rel=0.2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("queries", "keys", "head_dim"), [(4, 2, 64), (8, 2, 64), (8, 4, 128), (12, 12, 64)])
def test_getting_attention_ready_takes_the_bytes_foretold(
    dtype: torch.dtype, queries: int, keys: int, head_dim: int
) -> None:
    examples = 64
    count = examples * LEAST_PLACES
    spans = [(first, first + LEAST_PLACES) for first in range(0, count, LEAST_PLACES)]
    with Live() as live:
        turn = torch.zeros(count, head_dim)
        qkv_NO = torch.zeros(count, (queries + 2 * keys) * head_dim, dtype=dtype, requires_grad=True)
        groups = attention.groups_of(spans, turn, turn, scaling=1.0)
        bf16 = dtype == torch.bfloat16
        out = attention.attend(qkv_NO, groups, heads=(queries, keys), bf16=bf16)
        out.backward(torch.zeros_like(out))  # type: ignore[no-untyped-call]
    of_query, of_key, of_score = READY_BYTES[dtype.itemsize]
    foretold = (
        of_query * queries * head_dim + of_key * 2 * keys * head_dim + of_score * queries * LEAST_PLACES
    )
    assert foretold == pytest.approx(live.peak / count, rel=0.1)


def test_places_made_ready_are_those_of_the_largest_group() -> None:
    assert attention.ready_places(16) == 16 * attention.LEAST_PLACES
    assert attention.LEAST_PLACES == LEAST_PLACES
