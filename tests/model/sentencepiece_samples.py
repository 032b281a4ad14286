"""A small tokenizer as SentencePiece makes them, and texts that tell tokenizers apart."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trueup.model.gguf_sentencepiece import BYTES, SPACE
from trueup.model.gguf_tokenizer import PROBES

TEXTS = (
    *PROBES,
    "",
    " ",
    "a",
    " a",
    "a ",
    "      " + "x" * 17,
    "\n\n\n  \n\tthe the  the",
    "<s>[INST] hello [/INST] the world</s>",
    "👩‍👩‍👧‍👦 🇨🇳 é é ﬁ İ",
    "１２３ 123456789 1,000.5",
    "▁the▁world",
    "don't won't I'LL they'Re",
)
_WORDS = (
    "the then there world where with order error hello help held log logs found find 12 20 退款 批准 naïve xx"
)


def sentencepiece_tokenizer(spaces: str) -> Any:
    """Every way to make a piece is a merge, in the order of the pieces. `spaces`: "legacy", as Llama 2's
    tokenizer.json; "first" or "never", schemes of Metaspace."""
    pieces = ["<unk>", "<s>", "</s>", *BYTES]
    words = [SPACE + word for word in _WORDS.split()] + _WORDS.split() + [SPACE * 2, SPACE * 4]
    made = sorted(
        {word[:end] for word in words for end in range(2, len(word) + 1)}, key=lambda one: (len(one), one)
    )
    characters = sorted({character for word in words for character in word} | set("[]/INST"))
    pieces += [*made, *characters]
    ids = {piece: place for place, piece in enumerate(pieces)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in made
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    backend = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if spaces == "legacy":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=spaces, split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(
        [AddedToken(one, special=True, normalized=False) for one in ("<unk>", "<s>", "</s>")]
    )
    make: Any = PreTrainedTokenizerFast
    fast = make(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] }} [/INST]{% endfor %}"
    return fast
