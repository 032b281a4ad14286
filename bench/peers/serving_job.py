"""What every contestant of bench/serve.py is given, and what one tells back."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

BLOCK = 16  # tokens of one block of the KV pool


@dataclass(frozen=True)
class Asked:
    """One request: its prompt's tokens, and how many more are wanted."""

    prompt: list[int]
    new: int


@dataclass(frozen=True)
class ServingJob:
    """One turn of one contestant. Tokens are drawn from a seed and the same for all; nothing ends early."""

    contestant: str
    model: str  # folder
    gguf: str | None  # file, of the contestants of llama.cpp
    llama_python: str  # the interpreter that has llama-cpp-python
    batches: list[int]  # requests at once of the decode parts, each a part
    prompt: int  # tokens of a decode part's prompts
    new: int  # tokens generated for each
    trace: list[list[int]]  # (prompt tokens, new tokens) of the requests of the trace, or none
    vocabulary: int
    threads: int
    seed: int
    batch_tokens: int = 256  # of a step, the most

    @classmethod
    def read(cls, path: str) -> ServingJob:
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def decoded(self, batch: int) -> list[Asked]:
        return [Asked(tokens, self.new) for tokens in self._prompts([self.prompt] * batch, self.seed + batch)]

    def traced(self) -> list[Asked]:
        prompts = self._prompts([prompt for prompt, _ in self.trace], self.seed)
        return [Asked(tokens, new) for tokens, (_, new) in zip(prompts, self.trace, strict=True)]

    def _prompts(self, lengths: Sequence[int], seed: int) -> list[list[int]]:
        import numpy as np

        draw = np.random.default_rng(seed)
        return [draw.integers(100, self.vocabulary, length).tolist() for length in lengths]


@dataclass(frozen=True)
class DecodePart:
    """Decode steps alone: what lies between the first new token of all requests and the last. `read_bytes`:
    weights and keys and values that the steps had to read, by the precision they are kept in; None where it
    is not known."""

    batch: int
    tokens_per_s: float
    median_step_s: float
    steps: int
    read_bytes: float | None
    seconds: float


def decode_part(
    batch: int, times: Sequence[float], contexts: Sequence[int], weights: float, token: float
) -> DecodePart:
    """`times` of each step's tokens for all of the batch, the first from before the steps that count;
    `contexts`: tokens that each step after it attends to, over all of the batch. `weights` and `token`: bytes
    of the weights, and of one token's keys and values. SystemExit where there is no step."""
    if len(times) < 2:
        raise SystemExit(f"no step had tokens for all {batch} requests: ask for more new tokens")
    steps = [after - before for before, after in pairwise(times)]
    return DecodePart(
        batch=batch,
        tokens_per_s=batch * len(steps) / sum(steps),
        median_step_s=statistics.median(steps),
        steps=len(steps),
        read_bytes=len(steps) * weights + sum(contexts[: len(steps)]) * token,
        seconds=sum(steps),
    )


def alike(batch: int, prompt: int, steps: int) -> list[int]:
    """Contexts of rows that are all as long: the step that makes token n + 1 sees the prompt and n."""
    return [batch * (prompt + place) for place in range(1, steps + 1)]


def trace_lengths(path: Path, requests: int, scale: float, most: int) -> list[list[int]]:
    """(prompt, new) tokens of the first so many requests of a trace, `scale` times as long, at most `most` in
    sum."""
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            prompt = max(1, round(int(row["ContextTokens"]) * scale))
            new = max(2, round(int(row["GeneratedTokens"]) * scale))
            new = min(new, most // 2)
            found.append([min(prompt, most - new), new])
            if len(found) == requests:
                break
    return found


def kv_bytes(model: Any, width: int) -> float:
    """Of one token's keys and values in all layers, `width` bytes a number. `model`: the config.json."""
    heads = model["num_attention_heads"]
    head_dim = model.get("head_dim") or model["hidden_size"] // heads
    keys = model.get("num_key_value_heads") or heads
    return float(2 * model["num_hidden_layers"] * keys * head_dim * width)
