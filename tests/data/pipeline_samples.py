"""Records for the tests of the pipeline: rows, near-copies of them, and preparing them in a folder."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from small_tokenizers import chatml_tokenizer

from trueup.data import Prepared, prepare
from trueup.data.records import Record, Turn
from trueup.data.splits import SPLITS, natural, uniform
from trueup.recipe.models import DataSection, SplitSection

TOKENIZER = chatml_tokenizer()
WORDS = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "el", "ir", "os", "ut")]

Row = dict[str, str]


def sentence(seed: object, words: int = 24) -> list[str]:
    return random.Random(str(seed)).choices(WORDS, k=words)


def row(seed: object, words: int = 24, changed: int = 0) -> Row:
    """A question and an answer of made-up words; in a near-copy the last `changed` words are others."""
    answer = sentence(seed, words)
    if changed:
        answer[-changed:] = [f"other{changed}x{n}" for n in range(changed)]
    return {"instruction": f"What of {seed}, number {changed}?", "output": " ".join(answer)}


def record(item: Row) -> Record:
    return Record((Turn("user", item["instruction"]), Turn("assistant", item["output"])), "made up")


def alone(records: Sequence[Record], shares: SplitSection) -> list[str]:
    """The split that each record falls to by its own content."""
    hashes = b"".join(one.content_hash() for one in records)
    codes = natural(uniform(np.frombuffer(hashes, dtype=np.uint8).reshape(-1, 16)), shares)
    return [SPLITS[code] for code in codes]


def write(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in rows), encoding="utf-8")
    return path


def prepared(folder: Path, rows: Sequence[Row], *, workers: int | None = None, **settings: Any) -> Prepared:
    source = write(folder / "in.jsonl", rows)
    return prepare(DataSection(source=str(source), **settings), TOKENIZER, folder / "data", workers=workers)


def answers(found: Prepared) -> dict[str, str]:
    """Decoded supervised text, without its end, -> the split it is in."""
    where: dict[str, str] = {}
    for name in SPLITS:
        table = found.split(name)
        for i in range(len(table)):
            tokens_T, loss_T = table.example(i)
            text = TOKENIZER.decode(tokens_T[loss_T]).removesuffix("<|im_end|>")
            assert where.setdefault(text, name) == name, f"{text!r} is in two splits"
    return where
