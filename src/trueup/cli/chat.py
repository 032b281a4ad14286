"""`trueup chat MODEL|URL`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trueup.schema import InputError, TrueupError

from .output import say, stdout_reserved
from .serve import UNJUDGED_OPTION

if TYPE_CHECKING:
    from trueup.serve.conversation import Talk

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Timing:
    """One answer as it was seen: seconds to the first text, and from there to the end."""

    first_s: float
    rest_s: float
    tokens: int

    def __str__(self) -> str:
        rate = (
            f"{(self.tokens - 1) / self.rest_s:,.1f} tokens/s"
            if self.tokens > 1 and self.rest_s
            else "no rate"
        )
        return f"first token after {self.first_s:.2f} s, then {rate}; {self.tokens} tokens"


def chat(
    model: str = typer.Argument(
        help="The address of an OpenAI-compatible server, or a model folder, a built-in or a hub name.",
        metavar="MODEL|URL",
    ),
    prompt: str | None = typer.Option(None, "--prompt", "-p", help="One question; its answer, and the end."),
    system: str | None = typer.Option(None, "--system", help="What the model is told first."),
    max_tokens: int = typer.Option(512, "--max-tokens", min=1, help="Most tokens of an answer."),
    temperature: float = typer.Option(0.7, "--temperature", min=0.0, max=2.0, help="0 is greedy."),
    seed: int | None = typer.Option(None, "--seed", help="Of what is drawn, for the same answer again."),
    name: str | None = typer.Option(None, "--model", help="At a URL: the model's name. Default: its first."),
    api_key_file: Path | None = typer.Option(None, "--api-key-file", help="At a URL: a file with the key."),
    quant: str | None = typer.Option(None, "--quant", help="Of a MODEL: fp32, bf16 or int8."),
    context: int | None = typer.Option(None, "--context", help="Of a MODEL: tokens, at most. Default: 4096."),
    unjudged: bool = UNJUDGED_OPTION,
) -> None:
    """Talk with a model in the terminal, and see how fast it answers. An empty line or Ctrl-D ends it."""
    messages: Messages = [] if system is None else [{"role": "system", "content": system}]
    with ExitStack() as held:
        with stdout_reserved():
            talk = _talk(held, model, name, api_key_file, quant, context, unjudged=unjudged)
        for question in [prompt] if prompt is not None else _questions():
            messages.append({"role": "user", "content": question})
            answer, timing = _shown(
                talk.answer(messages, max_tokens=max_tokens, temperature=temperature, seed=seed)
            )
            say(str(timing))
            messages.append({"role": "assistant", "content": answer})


def _talk(
    held: ExitStack,
    model: str,
    name: str | None,
    api_key_file: Path | None,
    quant: str | None,
    context: int | None,
    *,
    unjudged: bool,
) -> Talk:
    if model.startswith(("http://", "https://")):
        if quant is not None or context is not None or unjudged:
            raise InputError("--quant, --context and --unjudged are for a MODEL; a server has its own")
        from trueup.serve.conversation import Remote

        return Remote(model, name, _key(api_key_file))
    if name is not None or api_key_file is not None:
        raise InputError("--model and --api-key-file are for the address of a server")
    return _local(held, model, quant, context, unjudged=unjudged)


def _local(held: ExitStack, model: str, quant: str | None, context: int | None, *, unjudged: bool) -> Talk:
    """The engine in this process, for one answer at a time. Its device is `held`."""
    from trueup.data.template import ChatTemplate
    from trueup.device import open_device
    from trueup.model.load import load_tokenizer
    from trueup.serve.conversation import Local
    from trueup.serve.opening import Opening, codec_of

    from .serve_plan import asked_for, place_of, planned, require_judged, served_as

    given = {"quant": quant, "context": context, "concurrency": 1}
    asked = asked_for(model, given, "auto", None, [])
    judged = require_judged(asked.resolved, unjudged=unjudged)
    plan = planned(asked, place_of(asked.device), None)
    tokenizer = load_tokenizer(asked.resolved)
    codec = codec_of(asked.resolved.folder, tokenizer, ChatTemplate(tokenizer))
    folder = asked.resolved.folder
    opening = Opening(folder, served_as(plan.ask), plan.ask.kv, plan.plan, codec.end_ids)
    say(f"{asked.resolved.name}: {plan.fit.why}")
    if judged is not None:
        say(judged)
    opened = opening.open(held.enter_context(closing(open_device(plan.place.kind))))
    return Local(opened.engine, codec, plan.plan.most_tokens)


def _key(path: Path | None) -> str | None:
    """The first of the file, which may be the server's own."""
    from trueup.serve.limits import read_keys

    return None if path is None else read_keys(path)[0]


def _questions() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line.strip():
            return
        yield line.strip()


def _shown(pieces: Iterator[tuple[str, int]]) -> tuple[str, Timing]:
    """Prints the answer as it comes; `pieces` are text and how many tokens there have been."""
    began, first, text, tokens = time.perf_counter(), None, "", 0
    for piece, count in pieces:
        first = time.perf_counter() if first is None else first
        text, tokens = text + piece, count
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    ended = time.perf_counter()
    if first is None:
        raise TrueupError("the model gave no token")
    return text, Timing(first - began, ended - first, tokens)
