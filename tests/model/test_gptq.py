"""GPTQ is GPTQ: what it takes from the calibration rows, what it does with it, and that it is worth it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from docstring_rows import CALIBRATION, HELD_OUT, rows

from trueup.model.builtin import ResolvedModel
from trueup.model.gptq import Hessian, gptq
from trueup.model.load import load_base
from trueup.model.quality_layers import layer_errors
from trueup.model.quantize import Wanted
from trueup.model.quantize_folder import Calibration, quantise_to
from trueup.model.quantize_round import round_to_nearest
from trueup.model.quantized import dequantise
from trueup.model.quantized_load import load_dequantised
from trueup.schema import InputError
from trueup.schema.quantization import QuantizationFacts

INT4: Any = {"scheme": "int4", "group": 16, "head": "int8"}


def seen(x_NI: torch.Tensor) -> Hessian:
    hessian = Hessian(x_NI.shape[1])
    hessian.add(x_NI)
    return hessian


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_hessian_is_two_over_n_times_the_inputs_by_themselves() -> None:
    x_NI = random(50, 6)
    assert torch.allclose(seen(x_NI).matrix(), 2 / 50 * x_NI.T @ x_NI, atol=1e-5)


def test_the_hessian_does_not_depend_on_how_the_rows_came() -> None:
    x_NI, parts = random(48, 6), Hessian(6)
    for part in x_NI.split(7):
        parts.add(part.unsqueeze(0))
    assert torch.allclose(parts.matrix(), seen(x_NI).matrix(), atol=1e-5)


def test_the_output_error_is_that_of_the_products() -> None:
    x_NI, weight_OI = random(40, 32), random(8, 32, seed=1)
    found = round_to_nearest(weight_OI, "int4", None)
    change = x_NI @ (dequantise(found) - weight_OI).T
    expected = float(change.norm() / (x_NI @ weight_OI.T).norm())
    assert seen(x_NI).output_error(weight_OI, found) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("group", [None, 16])
def test_inputs_that_have_nothing_to_do_with_each_other_are_rounded_to_the_nearest(group: int | None) -> None:
    weight_OI = random(8, 64)
    found = gptq(weight_OI, seen(torch.eye(64)), "int4", group)
    assert torch.equal(found.values_OI, round_to_nearest(weight_OI, "int4", group).values_OI)


def test_what_one_input_loses_the_next_that_is_like_it_makes_up_for() -> None:
    """Two inputs always equal, and a third alone: 0.4 + 0.4 is rounded to 0 + 1, not to 0 + 0."""
    weight_OI = torch.tensor([[0.4, 0.4, 7.0]])
    x_NI = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert round_to_nearest(weight_OI, "int4", None).values_OI.tolist() == [[0, 0, 7]]
    assert gptq(weight_OI, seen(x_NI), "int4", None, damping=1e-4).values_OI.tolist() == [[0, 1, 7]]


def test_an_input_that_calibration_never_saw_is_rounded_to_the_nearest() -> None:
    weight_OI, x_NI = random(8, 32), random(100, 32, seed=1)
    x_NI[:, 5] = 0
    found = gptq(weight_OI, seen(x_NI), "int4", None)
    nearest = round_to_nearest(weight_OI, "int4", None)
    assert torch.equal(found.values_OI[:, 5], nearest.values_OI[:, 5])


def test_inputs_that_are_all_alike_are_damped_and_not_refused() -> None:
    found = gptq(random(4, 32), seen(torch.ones(10, 32)), "int4", None)
    assert bool(torch.isfinite(dequantise(found)).all())


def test_values_stay_within_four_bits() -> None:
    found = gptq(random(16, 64), seen(random(200, 64, seed=1) @ random(64, 64, seed=2)), "int4", 32)
    assert int(found.values_OI.min()) >= -8
    assert int(found.values_OI.max()) <= 7


@pytest.fixture(scope="module")
def calibrated(
    learnt: ResolvedModel, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, QuantizationFacts]:
    out = tmp_path_factory.mktemp("gptq") / "int4"
    calibration = Calibration(rows(32, start=CALIBRATION), "docstrings")
    return out, quantise_to(out, learnt, Wanted(method="gptq", **INT4), calibration, lambda text: None)


def test_its_error_is_below_roundings_on_nine_layers_of_ten(
    calibrated: tuple[Path, QuantizationFacts],
) -> None:
    _, facts = calibrated
    assert len(facts.errors) == 14
    better = [one for one in facts.errors if one.rtn is not None and one.error < one.rtn]
    assert len(better) >= 0.9 * len(facts.errors)


def test_its_error_is_below_roundings_on_rows_it_never_saw(
    calibrated: tuple[Path, QuantizationFacts], learnt: ResolvedModel, tmp_path: Path
) -> None:
    quantise_to(tmp_path / "rtn", learnt, Wanted(**INT4), None, lambda text: None)
    original = load_base(learnt)
    held_out = rows(8, start=HELD_OUT)
    nearest, found = (
        {one.name: one.error for one in layer_errors(original, load_dequantised(folder)[0], held_out)}
        for folder in (tmp_path / "rtn", calibrated[0])
    )
    layers = [name for name in nearest if name != "lm_head"]  # a tied head is rounded to the nearest in both
    assert len(layers) == 14
    assert sum(found[name] < nearest[name] for name in layers) >= 0.9 * len(layers)


def test_a_layer_is_quantised_on_what_the_quantised_layers_before_it_give(
    calibrated: tuple[Path, QuantizationFacts], learnt: ResolvedModel
) -> None:
    folder, facts = calibrated
    name = "model.layers.1.self_attn.q_proj"
    quantised = load_dequantised(folder)[0]
    inputs: list[torch.Tensor] = []

    def look(module: Any, args: tuple[torch.Tensor, ...]) -> None:
        inputs.append(args[0].flatten(0, -2))

    quantised.get_submodule(name).register_forward_pre_hook(look)
    with torch.no_grad():
        quantised(input_ids=rows(32, start=CALIBRATION), use_cache=False)
        weight_OI = load_base(learnt).get_submodule(name).weight
        change = inputs[0] @ (quantised.get_submodule(name).weight - weight_OI).T
        expected = float(change.norm() / (inputs[0] @ weight_OI.T).norm())
    recorded = next(one.error for one in facts.errors if one.name == name)
    assert recorded == pytest.approx(expected, rel=1e-3)


def test_what_calibrated_it_is_kept(calibrated: tuple[Path, QuantizationFacts]) -> None:
    _, facts = calibrated
    assert facts.calibration is not None
    assert (facts.calibration.source, facts.calibration.tokens) == ("docstrings", 32 * 128)


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        (None, "there are none"),
        (Calibration(torch.zeros(0, 64, dtype=torch.int64), "empty"), "there are none"),
        (
            Calibration(torch.zeros(1, 64, dtype=torch.int64), "short"),
            "has 64 tokens, and GPTQ needs as many as model.layers.0.mlp.down_proj has inputs, 176",
        ),
    ],
)
def test_calibration_data_that_do_not_suffice_are_refused(
    calibration: Calibration | None, message: str, tiny: ResolvedModel, tmp_path: Path
) -> None:
    wanted = Wanted(scheme="int4", method="gptq", group=16, head="int8")
    with pytest.raises(InputError, match=message):
        quantise_to(tmp_path / "out", tiny, wanted, calibration, lambda text: None)
    assert not (tmp_path / "out").exists()


def test_an_untied_head_is_quantised_on_the_hidden_states_before_it(
    tiny: ResolvedModel, tmp_path: Path
) -> None:
    wanted = Wanted(scheme="int4", method="gptq", group=16, head="int4")
    calibration = Calibration(rows(4), "docstrings")
    facts = quantise_to(tmp_path / "out", tiny, wanted, calibration, lambda text: None)
    head = next(one for one in facts.errors if one.name == "lm_head")
    assert head.rtn is not None
    assert head.error < head.rtn
