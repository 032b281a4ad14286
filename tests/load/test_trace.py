"""A trace's file, and its lengths made to fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.load.trace import TraceRow, length_scale, read_trace, scaled
from trueup.schema import InputError

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_rows_are_seconds_since_the_first_and_token_counts(tmp_path: Path) -> None:
    path = written(
        tmp_path, HEAD + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    first, second = read_trace(path).rows
    assert first == TraceRow(0.0, 374, 44)
    assert second.at_s == pytest.approx(4.314579, abs=1e-5)
    assert (second.prompt_tokens, second.output_tokens) == (396, 109)


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path, "GeneratedTokens,TIMESTAMP,model,ContextTokens\n7,2023-11-16 18:15:46,x,9\n")
    assert read_trace(path).rows == (TraceRow(0.0, 9, 7),)


def test_offsets_of_instants_count(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEAD + "2023-10-29 02:59:00+02:00,9,7\n2023-10-29 02:01:00+01:00,9,7\n2023-10-29 01:02:00,9,7\n",
    )
    assert [row.at_s for row in read_trace(path).rows] == [0.0, 120.0, 180.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r":1: columns none"),
        ("a,b,c\n1,2,3\n", r":1: columns a, b, c; a trace has TIMESTAMP"),
        (HEAD, "it holds no request"),
        (HEAD + "yesterday,1,1\n", r":2: 'yesterday' is no instant"),
        (HEAD + "2023-11-16 18:15:46,many,1\n", r":2: 'many' is no number of tokens"),
        (HEAD + "2023-11-16 18:15:46,-3,1\n", r":2: -3 tokens; expected 0 to"),
        (HEAD + "2023-11-16 18:15:46,1\n", r":2: 2 columns"),
        (HEAD + "x" * 2_000 + ",1,1\n", r":2: a cell of over"),
        (HEAD + "x" * 200_000 + ",1,1\n", r":2: (a cell of over|no CSV: field larger)"),
        (
            HEAD + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n",
            r":3: .* is before the request above it",
        ),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_trace_that_is_none_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        read_trace(written(tmp_path, text))


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_trace(tmp_path / "none.csv")


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20_000), st.integers(1, 5_000)), min_size=1),
    context=st.integers(64, 8192),
    reserve=st.integers(2, 20),
)
def test_scaled_lengths_fit_the_context_and_keep_their_order(
    lengths: list[tuple[int, int]], context: int, reserve: int
) -> None:
    rows = [TraceRow(0.0, prompt, output) for prompt, output in lengths]
    scale = length_scale(rows, context, reserve)
    assert 0 < scale <= 1
    made = [(scaled(row.prompt_tokens, scale), scaled(row.output_tokens, scale)) for row in rows]
    assert all(prompt + output + reserve <= context + 1 for prompt, output in made)
    assert all(prompt >= 1 and output >= 1 for prompt, output in made)
    prompts = sorted(zip((row.prompt_tokens for row in rows), (prompt for prompt, _ in made), strict=True))
    assert [scaled_ for _, scaled_ in prompts] == sorted(scaled_ for _, scaled_ in prompts)


def test_lengths_that_fit_stay_as_they_are() -> None:
    assert length_scale([TraceRow(0.0, 100, 50)], 2048, 8) == 1.0


def test_a_context_without_room_is_refused() -> None:
    with pytest.raises(InputError, match="leaves no room"):
        length_scale([TraceRow(0.0, 100, 50)], 9, 8)
