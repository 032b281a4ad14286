"""SentencePiece's tokenizers in GGUF files, without llama.cpp: pieces with scores make the run's own tokens,
or the file is refused. test_gguf_llama_cpp.py holds the same against llama.cpp itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece_samples import TEXTS, sentencepiece_tokenizer
from test_gguf_export import LORA, card, fields_of, trained
from tokenizers import Tokenizer

from kept_checkpoints import keep
from trueup.model.builtin import ResolvedModel, resolve_model
from trueup.model.gguf_sentencepiece import pieces_of, scores
from trueup.model.gguf_tokenizer import read_tokenizer
from trueup.model.run_export import RunWeights, export_gguf_from_run
from trueup.schema import InputError

pytest.importorskip("gguf", reason="the extra gguf is not installed")

LEGACY = sentencepiece_tokenizer("legacy")
SPEC = json.loads(LEGACY.backend_tokenizer.to_str())
SPECIAL = ["<unk>", "<s>", "</s>"]


@given(
    st.text(alphabet=st.sampled_from(" thewrx12退é\n▁👩"), max_size=40),
    st.sampled_from(["", "<s>", "a</s> "]),
)
def test_pieces_with_scores_make_the_merges_tokens(text: str, before: str) -> None:
    theirs = pieces_of(before + text, SPEC["model"]["vocab"], scores(SPEC), special=SPECIAL, prefix=True)
    assert theirs == LEGACY(before + text, add_special_tokens=False).input_ids


@pytest.mark.parametrize(("spaces", "prefix"), [("legacy", True), ("first", False), ("never", False)])
def test_a_file_has_scores_and_kinds(tmp_path: Path, spaces: str, prefix: bool) -> None:
    """Written, read back by transformers, compared with the run's own logits."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from trueup.model.tiny import write_tiny

    tokenizer = sentencepiece_tokenizer(spaces)
    folder = tmp_path / "model"
    write_tiny(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, config=AutoConfig.from_pretrained(folder))
    model.resize_token_embeddings(len(tokenizer) + 3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    resolved = resolve_model(str(folder), folder)
    kept = keep(trained(resolved), tmp_path / "kept")
    out = tmp_path / "out.gguf"
    done = export_gguf_from_run(RunWeights(kept, resolved, LORA), out, card, kind="f32", name="x")
    assert done.check is not None
    fields = fields_of(out)
    assert fields["tokenizer.ggml.model"] == "llama"
    assert fields["tokenizer.ggml.add_space_prefix"] is prefix
    assert fields["tokenizer.ggml.token_type"][:5] == [2, 3, 3, 6, 6]
    assert fields["tokenizer.ggml.token_type"][-3:] == [5, 5, 5]
    assert "tokenizer.ggml.merges" not in fields
    tokens, kept = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"]
    assert kept[tokens.index("▁t")] > kept[tokens.index("▁th")] > kept[tokens.index("▁the")]


def changed(**model: Any) -> Any:
    """The tokenizer with parts of its model changed."""
    tokenizer = sentencepiece_tokenizer("legacy")
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    spec["model"].update(model)
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(spec))
    return tokenizer


def refused(tokenizer: Any, what: str) -> None:
    with pytest.raises(InputError, match=f"{what}.*nothing is written.*--merged"):
        read_tokenizer(tokenizer, 1000, "mine")


def test_merges_that_scores_do_not_describe_are_refused() -> None:
    merges = SPEC["model"]["merges"]
    refused(changed(merges=merges[:-1]), "BPE tokenizer that does not make")
    pieces = ["".join(pair) for pair in merges]
    twice = next(place for place, piece in enumerate(pieces) if pieces.count(piece) > 1)
    moved = [*merges[:twice], *merges[twice + 1 :], merges[twice]]
    refused(changed(merges=moved), "in an order that no scores give")
    refused(changed(ignore_merges=True), "does not go by its merges alone")


def test_treatments_of_spaces_that_a_file_cannot_say_are_refused() -> None:
    refused(sentencepiece_tokenizer("always"), "Metaspace with the scheme 'always'")
    bare = sentencepiece_tokenizer("first")
    bare.chat_template = None
    refused(bare, "space before the first word only, and no chat template")


def test_tokens_that_take_the_space_around_them_are_refused(tiny: ResolvedModel) -> None:
    from tokenizers import AddedToken

    tokenizer = sentencepiece_tokenizer("legacy")
    tokenizer.add_tokens([AddedToken("<|end|>", rstrip=True, special=True, normalized=False)])
    refused(tokenizer, "take the white space around them")


def test_the_samples_tell_spaces_apart() -> None:
    never = sentencepiece_tokenizer("never")
    assert any(
        LEGACY(text, add_special_tokens=False).input_ids != never(text, add_special_tokens=False).input_ids
        for text in TEXTS
    )
