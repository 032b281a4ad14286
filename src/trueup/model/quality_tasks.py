"""Questions with choices, scored by likelihood: a model's answer is the choice whose text it finds likeliest
after the question, by its logarithm over the text's length in characters (what lm-eval calls acc_norm).

A file has a JSON object a line: `question` or `query`, `choices`, and `answer` or `label`, the number of the
right one from 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trueup.schema import InputError


@dataclass(frozen=True)
class Item:
    question: str
    choices: tuple[str, ...]
    right: int


@dataclass(frozen=True)
class Task:
    name: str
    items: tuple[Item, ...]


def read_task(path: Path, items: int) -> Task:
    """The first `items` of a file. Raises InputError for a file or a line that is not as described above."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the task cannot be read ({error})") from None
    found = [_item(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise InputError(f"{path}: no items; a JSON object with question, choices and answer a line")
    return Task(path.stem, tuple(found[:items]))


def _item(path: Path, number: int, line: str) -> Item:
    try:
        row = json.loads(line)
        question = row["question"] if "question" in row else row["query"]
        right = row["answer"] if "answer" in row else row["label"]
        item = Item(str(question), tuple(map(str, row["choices"])), int(right))
        if 0 <= item.right < len(item.choices) and all(item.choices):
            return item
    except (ValueError, KeyError, TypeError):
        pass
    raise InputError(
        f"{path}:{number}: not an item; expected an object with question (or query), choices, and answer (or "
        "label), the number of the right choice from 0"
    )


@torch.no_grad()
def right_answers(base: Any, tokenizer: Any, task: Task) -> tuple[bool, ...]:
    """Whether the model's answer to each item is right."""
    return tuple(_answer(base, tokenizer, item) == item.right for item in task.items)


def _answer(base: Any, tokenizer: Any, item: Item) -> int:
    """All choices in one batch, filled up behind, where nothing that counts can see it. A score that is no
    number is never the best."""
    before = _ids(tokenizer, item.question)
    rows = [before + _ids(tokenizer, f" {choice}") for choice in item.choices]
    longest = getattr(base.config, "max_position_embeddings", None)
    if longest is not None and max(map(len, rows)) > longest:
        raise InputError(
            f"an item of a task has {max(map(len, rows))} tokens, and the model takes {longest}; leave it out"
        )
    width = max(map(len, rows))
    tokens_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    logs_BTV = base(input_ids=tokens_BT, use_cache=False).logits.float().log_softmax(-1)
    scores = []
    for row, (ids, choice) in enumerate(zip(rows, item.choices, strict=True)):
        places = torch.arange(len(before) - 1, len(ids) - 1)
        likelihood = float(logs_BTV[row, places, torch.tensor(ids[len(before) :])].sum())
        scores.append(likelihood / len(choice))
    best = [score if score == score else float("-inf") for score in scores]
    return max(range(len(best)), key=best.__getitem__)


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: Sequence[int] = tokenizer(text, add_special_tokens=False).input_ids
    return list(ids) or [0]
