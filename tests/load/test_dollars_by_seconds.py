"""Dollars split between input and output tokens by the server's own seconds: of servers that tell them under
each of the names, and say what they know of waiting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from made_loads import loaded, settings, value
from rich.console import Console
from scripted_server import ScriptedServer, quick

from trueup.analysis.load_bill import make_load_bill
from trueup.report.load import load_bill_text
from trueup.schema import RunRecord

# One request at a time, each 1 s to its first token and 2 s for the others: ten in 30 s, for $0.03. They
# bring 200 tokens and take 50.
ALONE = {"arrivals": "closed", "rate": None, "concurrency": 1, "requests": 10}
PREFILL_S, DECODE_S = 1.0, 2.0


def loaded_by(page_of: Callable[[int], str]) -> RunRecord:
    """The load on a server that tells, of the requests it answered by then, what `page_of` says."""
    server = ScriptedServer(quick, metrics=lambda: page_of(len(server.bodies)))
    return loaded(server, settings(**ALONE)).record


def clock(prefill: str, decode: str) -> Callable[[int], str]:
    def page(requests: int) -> str:
        return (
            f"# TYPE {prefill.removesuffix('_total')} counter\n{prefill} {7 + PREFILL_S * requests}\n"
            f"# TYPE {decode.removesuffix('_total')} counter\n{decode} {3 + DECODE_S * requests}\n"
        )

    return page


def histograms(**seconds: float) -> Callable[[int], str]:
    """Of each name the seconds of one request."""

    def page(requests: int) -> str:
        return "".join(
            f"# TYPE vllm:{name}_seconds histogram\n"
            f'vllm:{name}_seconds_bucket{{le="+Inf"}} {requests}\n'
            f"vllm:{name}_seconds_sum {each * requests}\nvllm:{name}_seconds_count {requests}\n"
            for name, each in seconds.items()
        )

    return page


VLLM = histograms(
    request_queue_time=0.25, request_prefill_time=0.75, time_to_first_token=1.0, request_decode_time=1.5
)


@pytest.mark.parametrize(
    "page",
    [
        clock("trueup:prefill_seconds_total", "trueup:decode_seconds_total"),
        clock("llamacpp:prompt_seconds_total", "llamacpp:tokens_predicted_seconds_total"),
        histograms(request_prefill_time=PREFILL_S, request_decode_time=DECODE_S),
    ],
)
def test_a_third_of_the_dollars_is_the_inputs_where_a_third_of_the_seconds_is(
    page: Callable[[int], str],
) -> None:
    record = loaded_by(page)
    assert value(record, "load_s") == pytest.approx(30.0)
    assert value(record, "prefill_time_share") == pytest.approx(1 / 3)
    assert value(record, "usd_per_million_input_tokens_split") == pytest.approx(0.01 / 200 * 1e6)
    assert value(record, "usd_per_million_output_tokens_split") == pytest.approx(0.02 / 50 * 1e6)


def test_the_machines_own_seconds_are_taken_before_those_of_requests() -> None:
    ours = clock("trueup:prefill_seconds_total", "trueup:decode_seconds_total")
    record = loaded_by(lambda requests: ours(requests) + VLLM(requests))
    assert value(record, "prefill_time_share") == pytest.approx(1 / 3)
    assert "overlap" not in record.measurements["prefill_time_share"].method


def test_seconds_of_requests_are_said_to_overlap_once() -> None:
    bill = make_load_bill(loaded_by(VLLM))
    assert sum("overlap" in note for note in bill.notes) == 1
    split = bill.costs["usd_per_million_input_tokens_split"]
    assert split.value == pytest.approx(0.03 / 3 / 200 * 1e6)
    assert "overlap" in split.method


def test_waiting_prefill_and_first_token_are_read_from_vllms_histograms() -> None:
    record = loaded_by(VLLM)
    for name, mean_s in (("queue", 0.25), ("prefill", 0.75), ("ttft", 1.0)):
        assert value(record, f"server_{name}_mean_s") == pytest.approx(mean_s)
        assert record.measurements[f"server_{name}_mean_s"].n == 10


def test_a_histogram_that_the_server_lacks_is_named() -> None:
    record = loaded_by(histograms(request_decode_time=1.0))
    reason = record.measurements["server_queue_mean_s"].reason
    assert reason == "the server has no histogram of request queue seconds"
    assert "no counter of prefill" in (record.measurements["prefill_time_share"].reason or "")


def test_counters_that_are_no_numbers_are_no_counters() -> None:
    record = loaded_by(
        lambda requests: "trueup:prefill_seconds_total NaN\ntrueup:decode_seconds_total +Inf\n"
    )
    assert "no counter of prefill" in (record.measurements["prefill_time_share"].reason or "")


def test_why_there_is_no_split_is_told_once() -> None:
    record = loaded_by(lambda requests: "vllm:num_preemptions_total 0\n")
    console = Console(width=400, record=True, file=None)
    with console.capture() as captured:
        console.print(load_bill_text(make_load_bill(record), record))
    text = captured.get()
    assert text.count("the server has no counter of prefill seconds") == 1
    assert "no dollars for input and output tokens apart, by time" in text
