"""What a server counted of one answer, and which of it can be so. A count that cannot is not believed: it is
left out, with the reason, while the answer's times stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_TOKENS = 100_000_000  # of one answer: beyond it a count is a mistake
# A prompt may differ so far from what the server's own counts of others give: those draw some 30 words, and
# none costs more than another, so with 95% confidence fewer than a tenth of all words do (0.9^30 = 0.04).
PROMPT_SLACK, PROMPT_SLACK_TOKENS = 0.1, 2


class Told(NamedTuple):
    """The `usage` of an answer; None of what it lacks. `faults`: what in it is no count, by its key."""

    prompt: int | None = None
    output: int | None = None
    cached: int | None = None
    total: int | None = None
    faults: Mapping[str, str] = {}


class Counts(NamedTuple):
    """The counts that can be believed, and why others cannot."""

    prompt: int | None
    output: int | None
    cached: int | None
    doubt: str | None


class Expected(NamedTuple):
    """What is known of an answer without its usage. `prompt_tokens` is by the server's own counts of other
    prompts of the same words, or None; `most_output` is what max_tokens asked for, or None."""

    prompt_tokens: int | None
    most_output: int | None
    has_text: bool


def read_usage(usage: Any) -> Told:
    if not isinstance(usage, Mapping):
        return Told(faults={"usage": f"the usage is {_short(usage)}, no object"})
    details = usage.get("prompt_tokens_details")
    found: dict[str, int | None] = {}
    faults: dict[str, str] = {}
    for key, held in (
        ("prompt_tokens", usage.get("prompt_tokens")),
        ("completion_tokens", usage.get("completion_tokens")),
        ("cached_tokens", details.get("cached_tokens") if isinstance(details, Mapping) else None),
        ("total_tokens", usage.get("total_tokens")),
    ):
        count = isinstance(held, int) and not isinstance(held, bool) and 0 <= held <= MOST_TOKENS
        found[key] = held if count else None
        if held is not None and not count:
            faults[key] = f"{key} is {_short(held)}"
    return Told(
        found["prompt_tokens"],
        found["completion_tokens"],
        found["cached_tokens"],
        found["total_tokens"],
        faults,
    )


def believed(told: Told | None, expected: Expected) -> Counts:
    """Nothing, and no doubt, where the server told no usage."""
    if told is None:
        return Counts(None, None, None, None)
    doubts = dict(told.faults)
    prompt = _unless(_doubt_of_prompt(told, expected), told.prompt, "prompt_tokens", doubts)
    output = _unless(_doubt_of_output(told, expected), told.output, "completion_tokens", doubts)
    if prompt is not None and output is not None and told.total not in (None, prompt + output):
        doubts["total_tokens"] = f"total_tokens is {told.total}, and its parts are {prompt} and {output}"
        prompt = output = None
    cached = told.cached
    if cached is not None and told.prompt is not None and cached > told.prompt:
        cached = _unless(f"cached_tokens is {cached} of {told.prompt}", cached, "cached_tokens", doubts)
    return Counts(prompt, output, cached, "; ".join(doubts.values()) or None)


def _unless(doubt: str | None, count: int | None, key: str, doubts: dict[str, str]) -> int | None:
    if doubt is None:
        return count
    doubts[key] = doubt
    return None


def _doubt_of_output(told: Told, expected: Expected) -> str | None:
    if told.output is None:
        return None
    if expected.most_output is not None and told.output > expected.most_output:
        return f"completion_tokens is {told.output}, and max_tokens was {expected.most_output}"
    if told.output == 0 and expected.has_text:
        return "completion_tokens is 0 of an answer with text"
    return None


def _doubt_of_prompt(told: Told, expected: Expected) -> str | None:
    if told.prompt is None:
        return None
    if told.prompt == 0:
        return "prompt_tokens is 0, and no prompt is empty"
    known = expected.prompt_tokens
    if known is not None and abs(told.prompt - known) > max(PROMPT_SLACK_TOKENS, PROMPT_SLACK * known):
        return (
            f"prompt_tokens is {told.prompt}, and by the server's own counts of other prompts it is {known}"
        )
    return None


def _short(held: Any) -> str:
    text = repr(held) if isinstance(held, str) else str(held)
    return text.encode("utf-8", "replace").decode()[:40]
