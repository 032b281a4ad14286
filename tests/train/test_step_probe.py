"""Probes: micro-batches as the loop sees them, counted as they are, and steps that end."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.analysis.predict_terms import ProductTable
from trueup.device import open_device, product_times
from trueup.model.precision import Precision
from trueup.train import step_probe
from trueup.train.step_probe import PROBES, SMALL_PROBES, Asked, random_micro_batch
from trueup.train.step_work import counted

FP32 = Precision(policy="fp32", compute_dtype="float32", reason="a test")
ALL = [asked for probe in PROBES for asked in probe.steps]


@pytest.mark.parametrize("asked", ALL)
def test_a_probes_rows_are_full_of_its_examples(asked: Asked) -> None:
    one = random_micro_batch(asked, 512, 0)
    assert one.shape == (asked.rows, asked.width)
    numbers = range(1, len(asked.lengths) + 1)
    assert all(
        [np.count_nonzero(row == n) for n in numbers] == list(asked.lengths) for row in one.segments_BT
    )
    assert one.attention_sum_sq == asked.rows * sum(length * length for length in asked.lengths)


def test_some_probes_take_examples_in_several_groups() -> None:
    """Else a layer's own calls and a group's could not be told apart."""
    groups = {
        counted(
            list(asked.lengths) * asked.rows,
            rows=asked.rows,
            width=asked.width,
            supervised=1,
            head=1,
            attention="example",
        ).groups
        for asked in ALL
    }
    assert len(groups) >= 3


@pytest.mark.parametrize("asked", ALL)
def test_no_first_token_of_an_example_is_supervised(asked: Asked) -> None:
    one = random_micro_batch(asked, 512, 0)
    assert one.supervised_tokens > 0
    assert not one.loss_BT[one.positions_BT == 0].any()


def test_attention_with_a_mask_counts_whole_rows() -> None:
    found = counted([10, 20], rows=1, width=32, supervised=5, head=5, attention="row")
    assert (found.scores, found.scores_again, found.groups) == (32 * 32, 32 * 32, 1)


def test_attention_by_example_counts_the_places_it_takes() -> None:
    found = counted([16, 16, 32], rows=1, width=64, supervised=5, head=5, attention="example")
    assert found.scores >= 2 * 16 * 16 + 32 * 32
    assert found.useful == 64
    assert found.attention_sum_sq == 2 * 16 * 16 + 32 * 32


def test_long_examples_leave_out_later_keys_block_by_block() -> None:
    found = counted([1024], rows=1, width=1024, supervised=5, head=5, attention="example")
    assert 1024 * 1024 / 2 < found.scores < 1024 * 1024
    assert found.scores_again == found.scores


def test_the_softmax_of_short_examples_is_kept() -> None:
    found = counted([128, 64], rows=1, width=192, supervised=5, head=5, attention="example")
    assert found.scores_again == 0


def test_a_spent_budget_still_times_the_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("cpu", threads=1)
    table = ProductTable(product_times(device, "fp32", budget_s=0.1))
    monkeypatch.setattr(step_probe, "UNTIMED", 1)
    called: list[int] = []
    probed = step_probe.probed_steps(device, FP32, table, budget_s=0.0, after_each=lambda: called.append(1))
    assert len(probed.timed) == sum(len(probe.steps) for probe in PROBES[:SMALL_PROBES])
    assert all(seconds > 0 for _, seconds in probed.timed)
    assert probed.attention == "example"
    assert len(called) >= 3 * len(probed.timed)


def test_assembling_batches_takes_time() -> None:
    example_s, token_s = step_probe.assembly_seconds(repeats=3)
    assert example_s >= 0
    assert token_s >= 0
    assert example_s + token_s > 0
