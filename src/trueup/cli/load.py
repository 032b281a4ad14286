"""`trueup load URL|MODEL`."""

from __future__ import annotations

from pathlib import Path

import typer

from .load_bills import PEAK_OPTION, TRAFFIC_OPTION
from .output import JSON_OPTION, print_json, print_rich, say
from .records import PRICE_OPTION, PRICE_SOURCE_OPTION


def load(
    server: str = typer.Argument(
        help="The address of an OpenAI-compatible server, or a model that `trueup serve` takes: it is served "
        "for as long as the load lasts.",
        metavar="URL|MODEL",
    ),
    trace: Path | None = typer.Option(
        None, "--trace", help="A CSV of TIMESTAMP, ContextTokens, GeneratedTokens: lengths, and instants."
    ),
    rate: float | None = typer.Option(None, "--rate", help="Poisson arrivals: requests a second."),
    rate_end: float | None = typer.Option(
        None, "--rate-end", help="With --rate and --duration: the rate goes evenly to this one."
    ),
    concurrency: int | None = typer.Option(
        None, "--concurrency", help="Instead of arrivals: so many requests in flight."
    ),
    concurrency_end: int | None = typer.Option(
        None, "--concurrency-end", help="With --concurrency: the number goes evenly to this one."
    ),
    requests: int | None = typer.Option(
        None,
        "--requests",
        help="So many requests. Default: the trace's; 200 without one and without --duration.",
    ),
    duration: float | None = typer.Option(None, "--duration", help="Send no request after so many seconds."),
    seed: int = typer.Option(0, "--seed", help="Of arrivals and prompts; another for each repeat."),
    time_scale: float = typer.Option(1.0, "--time-scale", help="The trace's gaps times this."),
    length_scale: float | None = typer.Option(
        None, "--length-scale", help="The trace's lengths times this. Default: so that the longest fits."
    ),
    context: int | None = typer.Option(
        None, "--context", help="Tokens that a request may have. Default: as the server tells."
    ),
    prompt_tokens: int = typer.Option(256, "--prompt-tokens", help="Without a trace or a file."),
    output_tokens: int = typer.Option(
        64, "--output-tokens", help="Without a trace, or where a file has none."
    ),
    prompts: Path | None = typer.Option(
        None,
        "--prompts",
        help="A file of prompts: JSON lines with `prompt` and `max_tokens`, or a line each.",
    ),
    model: str | None = typer.Option(None, "--model", help="The served model's name. Default: the first."),
    chat: bool = typer.Option(False, "--chat", help="Through chat completions instead of completions."),
    ignore_eos: bool = typer.Option(
        True, "--ignore-eos/--no-ignore-eos", help="Ask for answers of exactly the wanted length."
    ),
    temperature: float = typer.Option(0.0, "--temperature", help="0 is greedy."),
    timeout: float = typer.Option(600.0, "--timeout", help="Seconds after which an answer is given up."),
    warm_up: int = typer.Option(4, "--warm-up", help="Requests before the load, in no figure."),
    ttft_limit: float | None = typer.Option(
        None, "--ttft-limit", help="Seconds to the first token, for goodput."
    ),
    tpot_limit: float | None = typer.Option(
        None, "--tpot-limit", help="Seconds a token after it, for goodput."
    ),
    e2e_limit: float | None = typer.Option(
        None, "--e2e-limit", help="Seconds to the whole answer, for goodput."
    ),
    instance: str | None = typer.Option(
        None, "--instance", help="What the server runs on: its price is looked up, and it is recorded."
    ),
    usd_per_hour: float | None = PRICE_OPTION,
    price_source: str = PRICE_SOURCE_OPTION,
    quality: Path | None = typer.Option(
        None, "--quality", help="The gate's quality.json, recorded with the load. Default: MODEL's own."
    ),
    memory_plan: Path | None = typer.Option(
        None, "--memory-plan", help="JSON of `trueup memory plan`, recorded with the load."
    ),
    serve_option: list[str] = typer.Option(
        [],
        "--serve-option",
        metavar="OPTION",
        help="With MODEL: passed on to `trueup serve`, such as --serve-option=--quant=int8.",
    ),
    ready_within: float = typer.Option(
        600.0, "--ready-within", help="With MODEL: seconds it may take to start."
    ),
    traffic: float | None = TRAFFIC_OPTION,
    peak: float = PEAK_OPTION,
    name: str | None = typer.Option(None, "--name", help="Name of the run; must be new."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Put a load on a server and record what its clients saw as a run. Ctrl-C ends it; what was measured is
    kept. TRUEUP_API_KEY is sent as the key."""
    options = dict(locals())
    from .load_job import Asked, run_load

    outcome = run_load(Asked(**{name: options[name] for name in Asked.__dataclass_fields__}))
    record = outcome.record
    say(f"run {record.id} {record.state}: {record.header.reason}")
    if as_json:
        from .runs import run_document

        print_json(run_document(record))
    elif record.requests:
        from trueup.report.load import load_text

        from .load_bills import bill_or_none

        print_rich(load_text(record, bill_or_none(record, traffic, peak)))
    if outcome.error is not None:
        raise typer.Exit(getattr(outcome.error, "exit_code", 1))
    if record.state != "finished":
        raise typer.Exit(1)
