"""A tokenizer as GGUF metadata: vocabulary, kinds of tokens, merges, special ids, chat template.

A GGUF file does not hold a tokenizer, only its parts; a reader builds the rest (how text is split into words)
from one of the names it knows. So only what such a name describes exactly is written; anything else is
refused, since a reader would build another tokenizer without a word.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any

from trueup.schema import InputError

# How each name of `tokenizer.ggml.pre` splits text before merging; the patterns are those models publish.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_NUMBERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_AFTER_NUMBERS}": "llama-bpe",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_AFTER_NUMBERS}": "qwen2",
}
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # llama.cpp's kinds of tokens
_SUPPORTED = "byte-level BPE split as GPT-2, Llama 3 or Qwen 2 do, without a normalizer"

# What tells tokenizers apart: scripts, digits, contractions, white space, code, emoji, combining marks.
PROBES = (
    "Where do I find the error log? It's in /var/log/orders/error.log, isn't it?",
    "12345 tokens, 3.14159; 2026-11-30\n\n\tdef f(x):\n\t    return x ** 2  # done\n",
    "退款需要谁批准？ Größe naïve e\u0301 שלום 👩\u200d💻 ＡＢＣ",
    "  leading, trailing   and\u00a0odd   spaces \r\n",
)


@dataclass(frozen=True)
class GgufTokenizer:
    """What of a tokenizer goes into a file. `tokens`, `kinds` have one entry a row of the embedding."""

    pre: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    special_ids: dict[str, int]  # bos, eos, unk, pad
    add_bos: bool
    chat_template: str | None


def read_tokenizer(tokenizer: Any, rows: int, model: str) -> GgufTokenizer:
    """The parts of a fast tokenizer for a model whose embedding has `rows` rows.

    Raises InputError for a kind of tokenizer that a GGUF file cannot describe exactly.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _refused(model, f"a tokenizer of the class {type(tokenizer).__name__}")
    spec = json.loads(backend.to_str())
    pre = _pre_tokenizer(spec, model)
    vocabulary = {**spec["model"]["vocab"], **{one["content"]: one["id"] for one in spec["added_tokens"]}}
    if max(vocabulary.values()) >= rows:
        raise InputError(
            f"{model}: the tokenizer has token id {max(vocabulary.values())}, but the model's embedding "
            f"has only {rows} rows"
        )
    tokens = [f"[PAD{row}]" for row in range(rows)]
    kinds = [_UNUSED] * rows
    for token, row in vocabulary.items():
        tokens[row], kinds[row] = token, _NORMAL
    for one in spec["added_tokens"]:
        kinds[one["id"]] = _CONTROL if one["special"] else _USER_DEFINED
    merges = [one if isinstance(one, str) else " ".join(one) for one in spec["model"]["merges"]]
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "unk", "pad")}
    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None
    return GgufTokenizer(
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        merges=merges,
        special_ids={name: number for name, number in ids.items() if number is not None},
        add_bos=_adds_bos(tokenizer) and not _template_writes_bos(tokenizer),
        chat_template=template,
    )


def _pre_tokenizer(spec: dict[str, Any], model: str) -> str:
    """The name in a GGUF file of the way this tokenizer splits text."""
    kind = spec["model"]["type"]
    if kind != "BPE" or spec["model"].get("byte_fallback"):
        raise _refused(model, f"a {kind} tokenizer" + (" with byte fallback" if kind == "BPE" else ""))
    if spec["normalizer"] is not None:
        raise _refused(model, f"a tokenizer that normalizes text ({spec['normalizer']['type']})")
    split = spec["pre_tokenizer"] or {"type": "none"}
    steps = split["pretokenizers"] if split["type"] == "Sequence" else [split]
    (*before, last) = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        raise _refused(model, f"a tokenizer that splits text by {_names(steps)}")
    if not before and (last["use_regex"] or not spec["model"]["merges"]):
        return "gpt-2"  # without merges every byte is a token, wherever the text is split
    if len(before) == 1 and before[0]["type"] == "Split" and not last["use_regex"]:
        name = _SPLITS.get(before[0]["pattern"].get("Regex", ""))
        if name and before[0]["behavior"] == "Isolated" and not before[0]["invert"]:
            return name
    raise _refused(model, f"a tokenizer that splits text by {_names(steps)} in a way of its own")


def _names(steps: list[dict[str, Any]]) -> str:
    return " and ".join(step["type"] for step in steps)


def _refused(model: str, what: str) -> InputError:
    return InputError(
        f"{model} has {what}. A GGUF file can only hold {_SUPPORTED}; with this one a reader would make "
        "other tokens than the run's, so nothing is written. Export the merged model instead (--merged)"
    )


def _adds_bos(tokenizer: Any) -> bool:
    ids: list[int] = tokenizer("a").input_ids
    return tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id


def _template_writes_bos(tokenizer: Any) -> bool:
    """Whether the chat template begins with the token that the tokenizer would put before it: a reader that
    is told to add one would feed two (seen in llama-cpp-python issue 1501)."""
    if not isinstance(tokenizer.chat_template, str) or not tokenizer.bos_token:
        return False
    with contextlib.suppress(Exception):  # a template may raise anything, for example for a missing role
        text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
        return str(text).startswith(tokenizer.bos_token)
    return False


def check_same_tokens(ours: Any, reread: Any) -> str | None:
    """What a reread tokenizer does otherwise than the run's own, in words; None if nothing was found."""
    for name in ("bos", "eos", "unk", "pad"):
        mine, theirs = getattr(ours, f"{name}_token_id"), getattr(reread, f"{name}_token_id")
        if mine is not None and mine != theirs:
            return f"its {name} token is {theirs}, the run's {mine}"
    if isinstance(ours.chat_template, str) and ours.chat_template != reread.chat_template:
        return "its chat template is another"
    specials = "".join(str(token) for token in ours.all_special_tokens)
    for text in (*PROBES, specials):
        mine = ours(text, add_special_tokens=False).input_ids
        if mine != reread(text, add_special_tokens=False).input_ids:
            return f"it makes other tokens of {text[:40]!r}"
    return None
