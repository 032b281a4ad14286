"""Prompts of wanted token counts, found by asking the server, and prompts from files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.load.prompts import PROBE_WORDS, FilePrompt, WordCost, cost_of, read_prompts, text_of
from trueup.schema import InputError


@given(overhead=st.integers(0, 50), each=st.integers(1, 4), words=st.integers(1, 2000))
def test_the_servers_counts_of_two_prompts_tell_any_other(overhead: int, each: int, words: int) -> None:
    cost = cost_of({n: overhead + n * each for n in PROBE_WORDS})
    assert cost.exact
    assert cost.words_for(overhead + words * each) == words
    assert len(text_of(words, 3, 5).split()) == words


def test_a_third_count_that_does_not_fit_makes_lengths_near_and_says_so() -> None:
    cost = cost_of(dict(zip(PROBE_WORDS, (7, 19, 14), strict=True)))
    assert not cost.exact
    assert "near, not exact" in cost.told


def test_a_server_without_counts_has_a_word_taken_for_a_token() -> None:
    cost = cost_of(dict.fromkeys(PROBE_WORDS))
    assert (cost.words_for(100), cost.exact) == (100, False)
    assert "told no counts" in cost.told


def test_a_server_that_counts_nonsense_is_not_believed() -> None:
    counts = dict(zip(PROBE_WORDS, (40, 8, 20), strict=True))
    assert cost_of(counts).words_for(100) == 100


def test_a_prompt_shorter_than_the_overhead_has_one_word() -> None:
    assert WordCost(overhead=30, each=1).words_for(5) == 1


@given(st.integers(2, 400), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_each_request_has_a_text_of_its_own_and_always_the_same(
    words: int, seed: int, one: int, other: int
) -> None:
    assert text_of(words, seed, one) == text_of(words, seed, one)
    if words >= 20 and one != other:
        assert text_of(words, seed, one).split()[1:12] != text_of(words, seed, other).split()[1:12]


def test_prompts_of_a_file_keep_their_order_and_their_lengths(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a b", "max_tokens": 9}\n\n{"prompt": "c"}\n')
    assert read_prompts(path) == [FilePrompt("a b", 9), FilePrompt("c", None)]
    plain = tmp_path / "prompts.txt"
    plain.write_text("first\nsecond\n")
    assert read_prompts(plain) == [FilePrompt("first", None), FilePrompt("second", None)]


def test_a_line_may_hold_what_ends_lines_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes('{"prompt": "a\u2028b\x85c"}\r\n'.encode())
    assert [prompt.text for prompt in read_prompts(path)] == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", ":1: not JSON"),
        ("[1]", ":1: expected a `prompt`"),
        ('{"prompt": ""}', ":1: expected a `prompt`"),
        ('{"prompt": "x"}\n{"prompt": "y", "max_tokens": true}', ":2: max_tokens True"),
        ('{"prompt": "\\ud800"}', ":1: the prompt has half a character"),
        ("", "it holds no prompt"),
    ],
)
def test_a_file_of_prompts_that_is_none_is_refused_with_its_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_prompts(path)
