"""What must be known of a tokenizer beside its template: its digest, its ids against the model's, the pad
token."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trueup.schema import InputError

# A Hugging Face tokenizer (PreTrainedTokenizerBase). Any: this room does not import transformers.
Tokenizer = Any


@dataclass(frozen=True)
class Pad:
    """The token that fills rows up, and why this one."""

    id: int
    token: str
    reason: str


def largest_id(tokenizer: Tokenizer) -> int:
    return max(tokenizer.get_vocab().values(), default=-1)


def name_of(tokenizer: Tokenizer) -> str:
    """Where the tokenizer came from, for messages."""
    return str(getattr(tokenizer, "name_or_path", "") or "this model")


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise InputError when the tokenizer can produce an id that the model's embedding of `vocab_size` rows
    does not have."""
    largest = largest_id(tokenizer)
    if largest >= vocab_size:
        token = tokenizer.convert_ids_to_tokens(largest)
        raise InputError(
            f"{name_of(tokenizer)}: the tokenizer's vocabulary is larger than the model's: token {token!r} "
            f"has id {largest}, and the model has {vocab_size} rows (ids 0 to {vocab_size - 1}). Use the "
            "tokenizer it came with, or resize the model's embeddings first"
        )


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Every special token and its id, in order of id."""
    found = {
        str(token): int(tokenizer.convert_tokens_to_ids(token)) for token in tokenizer.all_special_tokens
    }
    for index, added in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if added.special:
            found[str(added.content)] = int(index)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def choose_pad(tokenizer: Tokenizer, end_ids: frozenset[int], vocab_size: int | None) -> Pad:
    """A pad token that is no end token: a model trained with pad = end either never learns to stop or, where
    pads are masked by id, loses its end tokens from the loss. Here the loss mask is explicit and pads are
    never in it; the choice also keeps exported tokenizers and other tools safe.

    First of: the tokenizer's own pad; a special token named for padding; the unknown token; an id no token
    uses; any other special token; any other id. An id the model has no row for is passed over."""
    for index, why in _pad_candidates(tokenizer, end_ids, vocab_size):
        if index not in end_ids and (vocab_size is None or index < vocab_size):
            token = tokenizer.convert_ids_to_tokens(index) if index <= largest_id(tokenizer) else None
            return Pad(index, str(token or f"id {index}"), why)
    raise InputError("every token of this tokenizer ends a turn; nothing is left to pad with")


def _pad_candidates(
    tokenizer: Tokenizer, end_ids: frozenset[int], vocab_size: int | None
) -> Iterator[tuple[int, str]]:
    own = tokenizer.pad_token_id
    if own is not None:
        yield own, "the tokenizer's own pad token"
    why = "the tokenizer has no pad token" if own is None else "the tokenizer's pad token also ends a turn"
    special = special_tokens(tokenizer)
    for token, index in special.items():
        if "pad" in token.lower():
            yield index, f"{why}; this special token is named for padding"
    if tokenizer.unk_token_id is not None:
        yield tokenizer.unk_token_id, f"{why}; the unknown token ends nothing"
    used = set(tokenizer.get_vocab().values())
    if vocab_size is not None:
        free = next((index for index in range(vocab_size) if index not in used), None)
        if free is not None:
            yield free, f"{why}; no token uses this id, which the model has a row for"
    for index in special.values():
        if index != tokenizer.bos_token_id:
            yield index, f"{why}; this special token ends nothing"
    yield from ((index, f"{why}; an ordinary token, padding only under the masks") for index in sorted(used))


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """SHA-256 over everything that turns text into ids: the fast tokenizer's own serialisation, or for a slow
    one its vocabulary; and the special tokens. Truncation and padding settings are left out: calls set
    them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        content.pop("truncation", None)
        content.pop("padding", None)
    else:
        content = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    special = {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items())}
    text = json.dumps([content, special], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
