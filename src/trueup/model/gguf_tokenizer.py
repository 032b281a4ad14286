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

from . import gguf_sentencepiece as sentencepiece

# How each name of `tokenizer.ggml.pre` splits text before merging; the patterns are those models publish.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_NUMBERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_AFTER_NUMBERS}": "llama-bpe",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_AFTER_NUMBERS}": "qwen2",
}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # llama.cpp's kinds of tokens
_SUPPORTED = (
    "byte-level BPE split as GPT-2, Llama 3 or Qwen 2 do, without a normalizer, and SentencePiece's BPE"
)

# What tells tokenizers apart: scripts, digits, contractions, white space, code, emoji, combining marks.
PROBES = (
    "Where do I find the error log? It's in /var/log/orders/error.log, isn't it?",
    "12345 tokens, 3.14159; 2026-11-30\n\n\tdef f(x):\n\t    return x ** 2  # done\n",
    "退款需要谁批准？ Größe naïve e\u0301 שלום 👩\u200d💻 ＡＢＣ",
    "  leading, trailing   and\u00a0odd   spaces \r\n",
)


@dataclass(frozen=True)
class GgufTokenizer:
    """What of a tokenizer goes into a file. `tokens`, `kinds` and `scores` have one entry a row of the
    embedding. `scores` are SentencePiece's and `merges` BPE's: a file has one of the two."""

    pre: str  # how text is split; of SentencePiece "default"
    tokens: list[str]
    kinds: list[int]
    merges: list[str] | None
    scores: list[float] | None
    add_space_prefix: bool
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
    if any(one["lstrip"] or one["rstrip"] or one["single_word"] for one in spec["added_tokens"]):
        raise _refused(model, "a tokenizer with tokens that take the white space around them")
    vocabulary = {**spec["model"]["vocab"], **{one["content"]: one["id"] for one in spec["added_tokens"]}}
    if max(vocabulary.values()) >= rows:
        raise InputError(
            f"{model}: the tokenizer has token id {max(vocabulary.values())}, but the model's embedding "
            f"has only {rows} rows"
        )
    merges: list[str] | None = None
    score: dict[str, float] | None = None
    pre, add_space_prefix = "default", False
    if sentencepiece.is_sentencepiece(spec):
        score, add_space_prefix = _pieces(tokenizer, spec, vocabulary, model)
    else:
        pre = _pre_tokenizer(spec, model)
        merges = [one if isinstance(one, str) else " ".join(one) for one in spec["model"]["merges"]]
    tokens = [f"[PAD{row}]" for row in range(rows)]
    kinds = [_UNUSED] * rows
    for token, row in vocabulary.items():
        tokens[row] = token
        kinds[row] = _BYTE if score is not None and token in sentencepiece.BYTES else _NORMAL
    for one in spec["added_tokens"]:
        kinds[one["id"]] = _CONTROL if one["special"] else _USER_DEFINED
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "unk", "pad")}
    if score is not None and ids["unk"] not in (None, ids["bos"], ids["eos"], ids["pad"]):
        kinds[ids["unk"]] = _UNKNOWN
    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None
    return GgufTokenizer(
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        merges=merges,
        scores=None if score is None else [score.get(token, 0.0) for token in tokens],
        add_space_prefix=add_space_prefix,
        special_ids={name: number for name, number in ids.items() if number is not None},
        add_bos=_adds_bos(tokenizer) and not _template_writes_bos(tokenizer),
        chat_template=template,
    )


def _pieces(
    tokenizer: Any, spec: dict[str, Any], vocabulary: dict[str, int], model: str
) -> tuple[dict[str, float], bool]:
    """The scores of SentencePiece's tokens and whether text begins with a space, proven on texts."""
    special = [one["content"] for one in spec["added_tokens"]]
    if any(one["normalized"] for one in spec["added_tokens"]) and spec["normalizer"] is not None:
        raise _refused(model, "a tokenizer with byte fallback that normalizes its added tokens")
    first = next((one for one in special if (_rendered(tokenizer) or "").startswith(one)), None)
    try:
        prefix = sentencepiece.space_prefix(spec, starts_special=first is not None)
        score = sentencepiece.scores(spec)
    except sentencepiece.NotExactError as error:
        raise _refused(model, str(error)) from None
    split = spec["pre_tokenizer"] or {}
    before = first if first is not None and split.get("prepend_scheme") == "first" else ""
    texts = [*PROBES, *sentencepiece.runs_of(vocabulary), *(f"{one} a{one}b" for one in special)]
    for text in texts:
        ours = tokenizer(before + text, add_special_tokens=False).input_ids
        theirs = sentencepiece.pieces_of(before + text, vocabulary, score, special=special, prefix=prefix)
        if ours != theirs:
            raise _refused(model, f"a tokenizer that cuts {text[:40]!r} as no scores do")
    return score, prefix


def _pre_tokenizer(spec: dict[str, Any], model: str) -> str:
    """The name in a GGUF file of the way this tokenizer splits text."""
    if spec["model"]["type"] != "BPE":
        raise _refused(model, f"a {spec['model']['type']} tokenizer")
    if spec["normalizer"] is not None:
        raise _refused(model, f"a tokenizer that normalizes text ({spec['normalizer']['type']})")
    split = spec["pre_tokenizer"] or {"type": "none"}
    steps = split["pretokenizers"] if split["type"] == "Sequence" else [split]
    (*before, last) = steps
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        raise _refused(model, f"a tokenizer that splits text by {_names(steps)}")
    whole = bool(
        spec["model"].get("ignore_merges")
    )  # of Llama 3 llama.cpp takes a word that is a token whole
    if not before and not whole and (last["use_regex"] or not spec["model"]["merges"]):
        return "gpt-2"  # without merges every byte is a token, wherever the text is split
    if len(before) == 1 and before[0]["type"] == "Split" and not last["use_regex"]:
        name = _SPLITS.get(before[0]["pattern"].get("Regex", ""))
        if (
            name
            and whole == (name == "llama-bpe")
            and before[0]["behavior"] == "Isolated"
            and not before[0]["invert"]
        ):
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
    text = _rendered(tokenizer)
    return bool(tokenizer.bos_token) and text is not None and text.startswith(tokenizer.bos_token)


def _rendered(tokenizer: Any) -> str | None:
    """A short conversation as the chat template writes it; None without one, or where it refuses that."""
    if isinstance(tokenizer.chat_template, str):
        with contextlib.suppress(Exception):  # a template may raise anything, for example for a missing role
            return str(tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False))
    return None


def is_sentencepiece(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and sentencepiece.is_sentencepiece(json.loads(backend.to_str()))


def check_same_tokens(ours: Any, reread: Any, *, texts: bool = True) -> str | None:
    """What a reread tokenizer does otherwise than the run's own, in words; None if nothing was found. Without
    `texts` only special ids and the chat template are compared."""
    for name in ("bos", "eos", "unk", "pad"):
        mine, theirs = getattr(ours, f"{name}_token_id"), getattr(reread, f"{name}_token_id")
        if mine is not None and mine != theirs:
            return f"its {name} token is {theirs}, the run's {mine}"
    if isinstance(ours.chat_template, str) and ours.chat_template != reread.chat_template:
        return "its chat template is another"
    specials = "".join(str(token) for token in ours.all_special_tokens)
    for text in (*PROBES, specials) if texts else ():
        mine = ours(text, add_special_tokens=False).input_ids
        if mine != reread(text, add_special_tokens=False).input_ids:
            return f"it makes other tokens of {text[:40]!r}"
    return None
