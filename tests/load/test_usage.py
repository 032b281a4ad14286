"""What a server counts of an answer is believed where it can be so, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_loads import loaded, settings, value
from scripted_server import DONE, OVERHEAD, Script, ScriptedServer, event, quick, text_chunk, words_in

from trueup.analysis.load_server import counter_doubt
from trueup.load.usage import Expected, believed, read_usage

TWENTY = Expected(prompt_tokens=100, most_output=20, has_text=True)


@pytest.mark.parametrize(
    ("usage", "prompt", "output", "words"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 20}, 100, 20, None),
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}, 100, 20, None),
        ({"prompt_tokens": 109, "completion_tokens": 0 + 1}, 109, 1, None),
        ({"prompt_tokens": 100, "completion_tokens": 21}, 100, None, "is 21, and max_tokens was 20"),
        ({"prompt_tokens": 100, "completion_tokens": 0}, 100, None, "0 of an answer with text"),
        ({"prompt_tokens": 100, "completion_tokens": -3}, 100, None, "completion_tokens is -3"),
        ({"prompt_tokens": 100, "completion_tokens": True}, 100, None, "completion_tokens is True"),
        ({"prompt_tokens": 100, "completion_tokens": 7.5}, 100, None, "completion_tokens is 7.5"),
        ({"prompt_tokens": 100, "completion_tokens": "7"}, 100, None, "completion_tokens is '7'"),
        ({"prompt_tokens": 10**30, "completion_tokens": 20}, None, 20, "prompt_tokens is 1000"),
        ({"prompt_tokens": 0, "completion_tokens": 20}, None, 20, "no prompt is empty"),
        ({"prompt_tokens": 60, "completion_tokens": 20}, None, 20, "by the server's own counts of other"),
        ({"prompt_tokens": 112, "completion_tokens": 20}, None, 20, "it is 100"),
        (
            {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 300},
            None,
            None,
            "total_tokens is 300, and its parts are 100 and 20",
        ),
        ({"completion_tokens": 20}, None, 20, None),
        ({}, None, None, None),
        (3, None, None, "the usage is 3, no object"),
        ([1, 2], None, None, "no object"),
    ],
)
def test_a_count_that_cannot_be_is_left_out_and_the_other_kept(
    usage: Any, prompt: int | None, output: int | None, words: str | None
) -> None:
    found = believed(read_usage(usage), TWENTY)
    assert (found.prompt, found.output) == (prompt, output)
    assert words in found.doubt if found.doubt and words else found.doubt == words


def test_no_usage_is_no_count_and_no_doubt() -> None:
    assert believed(None, TWENTY) == (None, None, None, None)


def test_of_a_prompt_that_nobody_counted_any_number_can_be() -> None:
    unknown = Expected(prompt_tokens=None, most_output=None, has_text=True)
    found = believed(read_usage({"prompt_tokens": 5000, "completion_tokens": 999}), unknown)
    assert found == (5000, 999, None, None)


def test_more_cached_tokens_than_the_prompt_has_are_none() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 101}}
    found = believed(read_usage(usage), TWENTY)
    assert (found.prompt, found.cached) == (100, None)
    assert "cached_tokens is 101 of 100" in (found.doubt or "")


COUNTS = st.one_of(st.none(), st.booleans(), st.integers(-(10**40), 10**40), st.text(), st.floats())


@given(
    st.dictionaries(
        st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"]),
        st.one_of(COUNTS, st.dictionaries(st.just("cached_tokens"), COUNTS)),
    )
)
def test_whatever_it_tells_what_is_believed_can_be(usage: dict[str, Any]) -> None:
    found = believed(read_usage(usage), TWENTY)
    assert found.output is None or 1 <= found.output <= 20
    assert found.prompt is None or 90 <= found.prompt <= 110
    assert found.cached is None or found.cached >= 0
    if found.doubt:
        found.doubt.encode()


# --- in a load ----------------------------------------------------------------------------------------------


def answering(usage: Any, *, chunks: int = 5) -> Any:
    """A server that answers like any other, with this usage; of the first request it tells the truth."""

    def answers(n: int, body: dict[str, Any]) -> Script:
        if n == 0:
            return quick(n, body)
        told = usage(body) if callable(usage) else usage
        pieces = [(1.0 if at == 0 else 0.5, text_chunk(" x")) for at in range(chunks)]
        ended = [(0.0, text_chunk("", "length")), (0.0, event({"choices": [], "usage": told})), (0.0, DONE)]
        return Script([*pieces, *ended])

    return answers


def test_more_tokens_than_were_asked_for_are_not_priced_and_the_input_still_is() -> None:
    def doubled(body: dict[str, Any]) -> dict[str, int]:
        return {"prompt_tokens": OVERHEAD + words_in(body), "completion_tokens": 2 * body["max_tokens"]}

    record = loaded(ScriptedServer(answering(doubled)), settings()).record
    assert record.state == "finished"
    assert value(record, "completed_requests_count") == 10
    assert value(record, "ttft_p50_s") == pytest.approx(1.0)
    assert value(record, "input_tokens") == 200
    reason = (
        "9 of 10 answers have no count that can be; the first: completion_tokens is 10, and max_tokens was 5"
    )
    for name in ("output_tokens", "output_tokens_per_s", "total_tokens_per_s", "tokens_per_chunk"):
        assert record.measurements[name].reason == reason
    assert record.measurements["usd_per_million_output_tokens"].reason == reason
    assert record.measurements["tpot_p50_s"].n == 1  # of the answer that was counted


def test_prompts_counted_otherwise_than_before_the_load_are_not_priced() -> None:
    record = loaded(
        ScriptedServer(answering({"prompt_tokens": 7, "completion_tokens": 5})), settings()
    ).record
    assert value(record, "output_tokens") == 50
    reason = record.measurements["input_tokens"].reason or ""
    assert "prompt_tokens is 7, and by the server's own counts of other prompts it is 20" in reason
    assert record.measurements["total_tokens_per_s"].reason == reason


def test_a_negative_usage_leaves_the_answer_its_times() -> None:
    record = loaded(
        ScriptedServer(answering({"prompt_tokens": -1, "completion_tokens": -1})), settings()
    ).record
    assert value(record, "error_share") == 0
    assert value(record, "e2e_p50_s") == pytest.approx(3.0)
    assert "prompt_tokens is -1" in (record.measurements["input_tokens"].reason or "")
    assert "completion_tokens is -1" in (record.measurements["output_tokens"].reason or "")


def test_a_usage_that_grows_by_its_own_total_alone_counts_nothing() -> None:
    told = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 90}
    record = loaded(ScriptedServer(answering(told)), settings()).record
    for name in ("input_tokens", "output_tokens"):
        assert "total_tokens is 90" in (record.measurements[name].reason or "")


def test_a_counter_that_rose_by_less_than_the_answers_count_is_told_of() -> None:
    reads = 0

    def metrics() -> str:
        nonlocal reads
        reads += 1
        return f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total {10 * (reads > 1)}\n"

    found = loaded(ScriptedServer(quick, metrics=metrics), settings()).record.measurements
    assert "adds up to 50 output tokens, and the server's own counter rose by 10" in (
        counter_doubt(found) or ""
    )
    honest = {**found, "output_tokens": found["output_tokens"].model_copy(update={"value": 10.0})}
    assert counter_doubt(honest) is None
