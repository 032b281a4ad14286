"""A snapshot is a copy: nothing that happens to the source afterwards is in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_records import snapshot

from trueup.checkpoint.folder import load_tensors, write_checkpoint
from trueup.checkpoint.snapshot import copied

SOURCES = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "bf16": torch.randn(5).bfloat16(),
    "int64": torch.tensor([2**60, -1]),
    "uint8": torch.arange(9, dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "column": torch.arange(12.0).reshape(3, 4)[:, 1],
    "tail of a large one": torch.arange(1000.0)[-3:],
    "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
    "parameter": torch.nn.Parameter(torch.arange(4.0)),
    "conjugate": torch.tensor([1 + 2j]).conj(),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_copy_is_equal_contiguous_and_shares_no_memory(name: str) -> None:
    source = SOURCES[name]
    copy = copied(source)
    assert torch.equal(copy, source.detach().resolve_conj())
    assert copy.dtype == source.dtype
    assert copy.is_contiguous()
    assert copy.device.type == "cpu"
    assert not copy.requires_grad
    assert copy.untyped_storage().nbytes() == copy.numel() * copy.element_size()
    if source.numel():
        assert copy.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()


def test_two_names_of_one_tensor_are_two_copies(tmp_path: Path) -> None:
    """Tied weights: safetensors refuses tensors that share memory."""
    tied = torch.arange(3.0)
    both = {"weights": {"head": copied(tied), "embedding": copied(tied)}}
    folder = write_checkpoint(tmp_path / "checkpoints", snapshot(1, tensors=both))
    assert load_tensors(folder, "weights").keys() == {"head", "embedding"}


def test_what_the_optimizer_does_after_the_copy_is_not_saved(tmp_path: Path) -> None:
    """pytorch#144657: an asynchronous save held host tensors by reference and wrote later values."""
    live = torch.full((4,), 1.0)
    taken = snapshot(1, tensors={"weights": {"w": copied(live)}})
    live.fill_(2.0)
    folder = write_checkpoint(tmp_path / "checkpoints", taken)
    assert load_tensors(folder, "weights")["w"].tolist() == [1.0] * 4
