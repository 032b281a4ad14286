"""The optimizer of each policy; our own AdamW step is torch's up to rounding, and rounds without bias."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from trueup.model.precision import choose_precision
from trueup.recipe import load_recipe
from trueup.schema.choices import PrecisionPolicy
from trueup.train import rounding
from trueup.train.optimizer import make_optimizer
from trueup.train.rounding import RoundedAdamW, random_bits, rounded_by_chance

BF16, FP32 = torch.bfloat16, torch.float32
SETTINGS: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


class FastDevice:
    def fast_bf16(self) -> tuple[bool, str]:
        return True, "a test"


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rounded(exact: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return rounded_by_chance(exact, random_bits(exact, chance(seed))[..., 0])


def parameters(dtype: torch.dtype = FP32) -> list[torch.nn.Parameter]:
    """A matrix, a vector, a scalar, and a matrix that does not lie in one piece."""
    made = [numbers(9, 5), numbers(3, seed=1), numbers(seed=2), numbers(4, 6, seed=3).t()]
    return [torch.nn.Parameter(tensor.to(dtype)) for tensor in made]


def train(optimizer: torch.optim.Optimizer, trained: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        for number, parameter in enumerate(trained):
            parameter.grad = numbers(*parameter.shape, seed=100 * step + number, dtype=parameter.dtype)
        optimizer.step()


def test_in_fp32_it_is_torchs_adamw_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "PIECE", 7)  # so that matrices go in several pieces
    ours, theirs = parameters(), parameters()
    own = RoundedAdamW(ours, **SETTINGS)
    torchs = torch.optim.AdamW(theirs, **SETTINGS, foreach=False, fused=False)
    for optimizer, trained in ((own, ours), (torchs, theirs)):
        train(optimizer, trained, range(5))
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
        assert own.state[mine].keys() == torchs.state[other].keys()
        assert all(torch.equal(value, torchs.state[other][key]) for key, value in own.state[mine].items())


def test_in_bf16_each_number_is_a_neighbour_of_what_fp32_gives() -> None:
    ours = parameters(BF16)
    own = RoundedAdamW(ours, **SETTINGS)
    train(own, ours, range(3))
    exact = [torch.nn.Parameter(parameter.detach().float()) for parameter in ours]
    torchs = torch.optim.AdamW(exact, **SETTINGS, foreach=False, fused=False)
    for mine, other in zip(ours, exact, strict=True):
        torchs.state[other] = {key: value.float().clone() for key, value in own.state[mine].items()}
    train(own, ours, range(3, 4))
    for number, parameter in enumerate(exact):  # the same gradients, of which bf16 holds fewer bits
        parameter.grad = numbers(*parameter.shape, seed=300 + number, dtype=BF16).float()
    torchs.step()
    moved = 0
    for mine, other in zip(ours, exact, strict=True):
        pairs = [(mine, other)]
        pairs += [(own.state[mine][key], torchs.state[other][key]) for key in ("exp_avg", "exp_avg_sq")]
        for found, expected in pairs:
            assert found.dtype == BF16
            step = torch.exp2(torch.floor(torch.log2(expected.abs()))) / 128  # between bf16 neighbours
            off = (found.float() - expected).abs()
            assert (off < step).all()
            moved += int((off > step / 2).sum())
    assert moved  # rounding to the nearest would never be off by more than half


@pytest.mark.parametrize("value", [1.0 + 2**-9, -(1.0 + 2**-10), 3.1415927, 1e-20, -7.7e30])
def test_rounding_is_unbiased(value: float) -> None:
    exact = torch.full((200_000,), value)
    found = rounded(exact).double()
    low, high = found.min().item(), found.max().item()
    assert low < exact[0].item() < high
    assert len(found.unique()) == 2
    share = (exact[0].item() - low) / (high - low)
    error = (high - low) * math.sqrt(share * (1 - share) / len(found))  # of the mean, by chance alone
    assert abs(found.mean().item() - exact[0].item()) < 5 * error


def test_numbers_that_bf16_has_stay_and_so_does_what_is_none() -> None:
    kept = torch.tensor([0.0, -0.0, 1.0, -2.5, 2.0**-126, math.inf, -math.inf])
    for seed in range(20):
        assert rounded(kept, seed).view(torch.int16).tolist() == kept.to(BF16).view(torch.int16).tolist()
    no_number = torch.tensor([0x7FFFFFFF, -1, 0x7FC00000], dtype=torch.int32).view(FP32)
    assert rounded(no_number).isnan().all()


def test_all_random_bits_are_used() -> None:
    bits = random_bits(torch.empty(20_000), chance())
    assert bits.shape == (20_000, 4)
    for place in range(16):
        shares = (bits.int() >> place & 1).double().mean(0)
        assert ((shares - 0.5).abs() < 0.02).all()
    lanes = torch.corrcoef(bits.double().T) - torch.eye(4)
    assert lanes.abs().max() < 0.04


def test_small_updates_survive_on_average_where_nearest_rounding_loses_them() -> None:
    """Twenty updates of 1e-4 at a weight of 1, where bf16's step below is 1/256."""
    found = {}
    for name, make in (("plain", torch.optim.AdamW), ("ours", RoundedAdamW)):
        weight = torch.nn.Parameter(torch.ones(20_000, dtype=BF16))
        optimizer = make([weight], lr=1e-4, weight_decay=0.0)
        for _ in range(20):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        found[name] = weight.detach().double()
    assert (found["plain"] == 1).all()
    moved = 1 - found["ours"]
    error = moved.std().item() / math.sqrt(len(moved))
    assert abs(moved.mean().item() - 20 * 1e-4) < 5 * error + 2e-5  # moments are rounded too
    assert moved.mean().item() > 1.5e-3


def test_the_second_moment_falls_where_nearest_rounding_keeps_it() -> None:
    """0.999 of a bf16 number rounds to the number itself."""
    found = {}
    for name, make in (("plain", torch.optim.AdamW), ("ours", RoundedAdamW)):
        weight = torch.nn.Parameter(torch.ones(20_000, dtype=BF16))
        optimizer = make([weight], lr=0.0)
        for step in range(101):
            weight.grad = torch.full_like(weight, 1.0 if step == 0 else 0.0)
            optimizer.step()
            if step == 0:
                optimizer.state[weight]["exp_avg_sq"].fill_(1.0)
        found[name] = optimizer.state[weight]["exp_avg_sq"].double()
    assert (found["plain"] == 1).all()
    assert found["ours"].mean().item() == pytest.approx(0.999**100, abs=2e-3)


def test_no_gradient_and_no_rate_move_no_bit() -> None:
    weight = torch.nn.Parameter(numbers(50, 50, dtype=BF16))
    weight.data[0, 0] = -0.0
    before = weight.detach().clone()
    optimizer = RoundedAdamW([weight], lr=0.0)
    weight.grad = torch.zeros_like(weight)
    for _ in range(3):
        optimizer.step()
    assert torch.equal(weight.detach().view(torch.int16), before.view(torch.int16))


def test_chance_is_of_seed_and_step_alone() -> None:
    """Ranks draw unlike numbers of random numbers for dropout, and must round alike."""

    def trained(seed: int, disturb: int) -> list[torch.Tensor]:
        torch.manual_seed(disturb)
        ours = parameters(BF16)
        before = torch.get_rng_state()
        train(RoundedAdamW(ours, **SETTINGS, seed=seed), ours, range(2))
        assert torch.equal(before, torch.get_rng_state())
        return [parameter.detach() for parameter in ours]

    first = trained(1, 0)
    assert all(torch.equal(a, b) for a, b in zip(first, trained(1, 5), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, trained(2, 0), strict=True))


def test_saved_state_goes_on_bit_for_bit() -> None:
    whole = parameters(BF16)
    optimizer = RoundedAdamW(whole, **SETTINGS, seed=4)
    train(optimizer, whole, range(3))
    resumed = [torch.nn.Parameter(parameter.detach().clone()) for parameter in whole]
    again = RoundedAdamW(resumed, **SETTINGS, seed=4)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for optimizer_, trained in ((optimizer, whole), (again, resumed)):
        train(optimizer_, trained, range(3, 6))
    for mine, other in zip(whole, resumed, strict=True):
        assert torch.equal(mine, other)
        assert all(torch.equal(v, again.state[other][key]) for key, v in optimizer.state[mine].items())


def test_a_closure_is_refused() -> None:
    with pytest.raises(ValueError, match="closure"):
        RoundedAdamW(parameters(), **SETTINGS).step(lambda: 0.0)


@pytest.mark.parametrize(
    ("policy", "stochastic", "kind"),
    [
        ("fp32", False, torch.optim.AdamW),
        ("bf16-master", False, torch.optim.AdamW),
        ("autocast", False, torch.optim.AdamW),
        ("bf16", False, torch.optim.AdamW),
        ("bf16", True, RoundedAdamW),
    ],
)
def test_the_optimizer_of_each_policy(
    recipe_file: Path, policy: PrecisionPolicy, stochastic: bool, kind: type[torch.optim.Optimizer]
) -> None:
    keys = [f"precision.policy={policy}", f"precision.stochastic_rounding={str(stochastic).lower()}"]
    recipe = load_recipe(recipe_file, [*keys, "optimizer.weight_decay=0.3"]).recipe
    precision = choose_precision(policy, FastDevice())
    trained = [("matrix", torch.nn.Parameter(numbers(8, 8).to(getattr(torch, precision.trained_dtype))))]
    trained += [("norm", torch.nn.Parameter(numbers(8)))]
    optimizer = make_optimizer(trained, recipe, precision, fused=True)
    assert type(optimizer) is kind
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    for _, parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for _, parameter in trained:
        state = optimizer.state[parameter]
        assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == parameter.dtype
        assert float(state["step"]) == 1


@pytest.mark.parametrize("policy", ["auto", "fp32", "bf16-master", "autocast"])
def test_stochastic_rounding_is_for_weights_kept_in_bf16(recipe_file: Path, policy: str) -> None:
    from trueup.schema import InputError

    keys = [f"precision.policy={policy}", "precision.stochastic_rounding=true"]
    with pytest.raises(InputError, match="for policy bf16"):
        load_recipe(recipe_file, keys)
