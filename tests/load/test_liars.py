"""Servers that are fast and wrong: what their streams show of the time between tokens, and what not."""

from __future__ import annotations

from typing import Any

import pytest
from made_loads import loaded, settings, value
from scripted_server import DONE, OVERHEAD, Script, ScriptedServer, text_chunk, usage_chunk, words_in

from trueup.analysis.load_bill import make_load_bill
from trueup.analysis.load_limits import Limits
from trueup.analysis.load_names import UNSEEN


def stream(gaps_s: list[float], *, tokens: int | None = None) -> Any:
    """Chunks after these waits; the usage tells `tokens`, by default those that were asked for."""

    def answers(n: int, body: dict[str, Any]) -> Script:
        counted = body["max_tokens"] if tokens is None else tokens
        pieces = [(wait_s, text_chunk(" the")) for wait_s in gaps_s]
        ended = [(0.0, text_chunk("", "length")), (0.0, usage_chunk(OVERHEAD + words_in(body), counted))]
        return Script([*pieces, *ended, (0.0, DONE)])

    return answers


def test_all_tokens_in_one_chunk_show_no_time_between_tokens() -> None:
    found = loaded(ScriptedServer(stream([3.0])), settings()).record.measurements
    assert found["itl_p50_s"].reason == "no answer came in more than one chunk"
    assert found["tpot_p50_s"].reason == (
        "all tokens of 10 answers came at once: the times between them are not known"
    )
    assert found["ttft_p50_s"].value == pytest.approx(3.0)
    assert "all text of 10 of 10 answers came at once" in found["ttft_p50_s"].method


def test_whoever_asked_waited_for_no_token_so_a_limit_on_tpot_is_kept() -> None:
    asked = settings(limits=Limits(tpot_s=0.1))
    assert value(loaded(ScriptedServer(stream([3.0])), asked).record, "goodput_share") == 1.0


def test_chunks_that_come_together_have_no_median_between_them() -> None:
    record = loaded(ScriptedServer(stream([1.0, 0.0, 0.0, 0.0, 2.0])), settings()).record
    itl = record.measurements["itl_p50_s"]
    assert itl.value is None
    assert "the time between them is not known" in (itl.reason or "")
    assert "75.0% came together with the chunk before" in itl.method
    assert value(record, "itl_p90_s") == pytest.approx(2.0)
    assert value(record, "itl_mean_s") == pytest.approx(0.5)


def test_more_chunks_than_tokens_are_not_called_tokens() -> None:
    """A server that repeats its text, or cuts its tokens up."""
    record = loaded(ScriptedServer(stream([0.1] * 20)), settings()).record
    assert value(record, "tokens_per_chunk") == pytest.approx(0.25)
    for said in ("0.25 tokens are counted for a chunk", "repeats text or counts too few", "not a token's"):
        assert said in record.measurements["itl_p50_s"].method


def test_a_first_chunk_of_several_tokens_makes_tpot_too_short_and_that_is_said() -> None:
    record = loaded(ScriptedServer(stream([1.0, 0.8])), settings(output_tokens=8)).record
    assert (
        "those of the first came within TTFT: a token took longer than this"
        in record.measurements["tpot_p50_s"].method
    )


def test_tpot_of_some_answers_says_which_it_leaves_out() -> None:
    def every_other(n: int, body: dict[str, Any]) -> Script:
        found: Script = stream([1.0] if n % 2 else [1.0, 0.5, 0.5, 0.5, 0.5])(n, body)
        return found

    tpot = loaded(ScriptedServer(every_other), settings()).record.measurements["tpot_p50_s"]
    assert tpot.n == 5
    assert "without 5 of 10 answers, whose tokens all came at once" in tpot.method


def test_more_tokens_than_the_text_has_bytes_are_said_to_be_unseen() -> None:
    """Sixty tokens for the four bytes of a word: nothing of the count can be told wrong, but that."""
    record = loaded(ScriptedServer(stream([1.0])), settings(output_tokens=60)).record
    assert value(record, "output_tokens") == 600
    assert UNSEEN in record.measurements["output_tokens"].method
    assert any(note.startswith(UNSEEN) for note in make_load_bill(record).notes)


def test_as_many_tokens_as_bytes_can_be_and_one_more_for_the_end() -> None:
    record = loaded(ScriptedServer(stream([1.0])), settings(output_tokens=5)).record
    assert UNSEEN not in record.measurements["output_tokens"].method


def test_one_token_a_chunk_is_by_the_servers_count_alone() -> None:
    """Nothing here can tell a word from a token: what is said names who says it."""
    record = loaded(ScriptedServer(stream([0.01] * 5)), settings()).record
    assert "one token by the server's count" in record.measurements["itl_p50_s"].method
