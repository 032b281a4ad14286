"""Sampling: exact where it is greedy, the asked distribution where it draws, the same in any company."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trueup.schema import InputError
from trueup.serve.request import Sampling, Token
from trueup.serve.sampling import CANDIDATES, Draw, choose, finite_rows, uniform

SAMPLINGS = st.builds(
    Sampling,
    max_tokens=st.just(1),
    temperature=st.sampled_from((0.0, 0.3, 1.0, 2.5)),
    top_k=st.sampled_from((0, 1, 5, 40, CANDIDATES + 100)),
    top_p=st.sampled_from((1.0, 0.9, 0.3, 1e-6)),
    logprobs=st.sampled_from((None, 0, 3)),
)
DRAWS = st.builds(Draw, SAMPLINGS, seed=st.integers(0, 2**63), index=st.integers(0, 9))


def some_logits(rows: int, vocabulary: int = 1500, spread: float = 2.0, seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator) * spread


def drawn(logits_V: torch.Tensor, sampling: Sampling, times: int = 2000) -> Counter[int]:
    draws = [Draw(sampling, 7, index) for index in range(times)]
    return Counter(token.id for token in choose(logits_V.expand(times, -1), draws))


def expected(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution in plain steps: temperature, then top_k, then top_p of what is left."""
    probabilities, ids = (logits_V.double() / sampling.temperature).softmax(-1).sort(descending=True)
    if sampling.top_k:
        probabilities[sampling.top_k :] = 0
    probabilities /= probabilities.sum()
    before = probabilities.cumsum(-1) - probabilities
    probabilities[before >= sampling.top_p] = 0
    return torch.zeros_like(probabilities).scatter(0, ids, probabilities / probabilities.sum())


@pytest.mark.parametrize("spread", [2.0, 0.1])  # 0.1: the mass is in more tokens than the candidates are
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1),
        Sampling(1, temperature=0.5),
        Sampling(1, top_k=7),
        Sampling(1, top_p=0.8),
        Sampling(1, temperature=1.7, top_k=50, top_p=0.6),
        Sampling(1, top_k=1200, top_p=0.9),
    ],
    ids=str,
)
def test_draws_follow_the_asked_distribution(sampling: Sampling, spread: float) -> None:
    logits_V = some_logits(1, spread=spread)[0]
    want = expected(logits_V, sampling)
    counts = drawn(logits_V, sampling)
    assert all(want[token] > 0 for token in counts)
    # In 20 groups of about equal probability: chi-squared with 19 degrees of freedom, 1 in a million.
    groups = (want.cumsum(0) * 20).clamp(max=19.999).long()
    chi = 0.0
    for group in range(20):
        mean = float(want[groups == group].sum()) * counts.total()
        seen = sum(count for token, count in counts.items() if groups[token] == group)
        chi += (seen - mean) ** 2 / mean if mean else float(seen)
    assert chi < 68


@given(st.lists(DRAWS, min_size=1, max_size=12), st.sampled_from((30, 1500)))
def test_a_row_gets_the_same_token_alone_as_in_any_company(draws: list[Draw], vocabulary: int) -> None:
    logits_BV = some_logits(len(draws), vocabulary).round(decimals=1)  # many are equal
    together = choose(logits_BV, draws)
    alone = [choose(logits_BV[row : row + 1], [draw])[0] for row, draw in enumerate(draws)]
    assert [token.id for token in together] == [token.id for token in alone]


@pytest.mark.parametrize("sampling", [Sampling(1, temperature=0.0), Sampling(1, top_k=1)], ids=str)
def test_greedy_is_the_exact_argmax_beside_rows_that_draw(sampling: Sampling) -> None:
    logits_BV = some_logits(8)
    draws = [Draw(sampling if row % 2 else Sampling(1, top_p=0.5), row, 0) for row in range(8)]
    chosen = choose(logits_BV, draws)
    assert [chosen[row].id for row in range(1, 8, 2)] == logits_BV.argmax(-1)[1::2].tolist()


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e-3])
def test_a_temperature_near_nothing_is_greedy_and_not_a_nan(temperature: float) -> None:
    logits_V = some_logits(1)[0]
    assert set(drawn(logits_V, Sampling(1, temperature=temperature), 50)) == {int(logits_V.argmax())}


def test_a_top_p_of_nearly_nothing_leaves_the_likeliest() -> None:
    logits_V = some_logits(1)[0]
    assert set(drawn(logits_V, Sampling(1, top_p=1e-9), 50)) == {int(logits_V.argmax())}


def test_a_top_k_beyond_all_numbers_cuts_nothing_off() -> None:
    logits_BV = some_logits(1)
    all_of_them = choose(logits_BV, [Draw(Sampling(1, top_k=logits_BV.shape[-1]), 7, 1)])
    assert choose(logits_BV, [Draw(Sampling(1, top_k=10**30), 7, 1)]) == all_of_them


def test_tokens_that_cannot_come_never_do() -> None:
    logits_V = torch.full((100,), -math.inf)
    logits_V[[3, 70]] = 0.0
    assert set(drawn(logits_V, Sampling(1, temperature=5.0), 300)) == {3, 70}
    assert set(drawn(logits_V, Sampling(1, top_k=50), 300)) == {3, 70}


def test_the_number_drawn_depends_on_seed_and_index_alone() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(seed, index) for seed in range(30) for index in range(30)}) == 900
    numbers = [uniform(3, index) for index in range(20_000)]
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.01


def test_logprobs_are_of_the_model_before_temperature_and_cuts() -> None:
    logits_BV = some_logits(1)
    [token] = choose(logits_BV, [Draw(Sampling(1, temperature=0.2, top_k=3, logprobs=4), 1, 0)])
    logprobs_V = logits_BV[0].log_softmax(-1)
    assert token.logprob == pytest.approx(float(logprobs_V[token.id]))
    assert [one for one, _ in token.top] == logprobs_V.topk(4).indices.tolist()
    assert [value for _, value in token.top] == pytest.approx(logprobs_V.topk(4).values.tolist())


def test_no_logprobs_unless_asked_and_only_the_chosen_ones_for_nought() -> None:
    logits_BV = some_logits(2)
    plain, own = choose(logits_BV, [Draw(Sampling(1), 1, 0), Draw(Sampling(1, logprobs=0), 1, 0)])
    assert plain == Token(plain.id)
    assert own.logprob is not None
    assert own.top == ()


def test_rows_with_a_nan_or_an_infinity_are_told() -> None:
    logits_BV = some_logits(5)
    logits_BV[1, 9] = math.nan
    logits_BV[2, 9] = math.inf
    logits_BV[3, 9] = -math.inf
    logits_BV[4] = -math.inf
    assert finite_rows(logits_BV) == [True, False, False, True, False]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("logprobs", -1),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(setting: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{setting} is .*; expected"):
        replace(Sampling(1), **{setting: value})
