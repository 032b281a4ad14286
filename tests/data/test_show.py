"""What a person is shown is what the model is trained on: the same tokens, the same text, the same mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import BOS_AND_TRIM, byte_tokenizer, chatml_tokenizer

from trueup.data import prepare
from trueup.data.show import _pieces, shown_examples
from trueup.data.vocabulary import special_tokens
from trueup.recipe.models import DataSection

SPECIAL_TEXTS = ("<|im_start|>", "<|im_end|>", "\ufffd")
ONE_SPLIT = {"validation": 0.0, "test": 0.0}


def prepared_rows(folder: Path, rows: list[dict[str, str]], tokenizer: Any) -> Any:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = DataSection(source=str(folder / "rows.jsonl"), max_length=512, split=ONE_SPLIT)
    return prepare(section, tokenizer, folder / "home")


@pytest.mark.parametrize("trims", [False, True])
def test_the_first_examples_token_by_token(tmp_path: Path, trims: bool) -> None:
    tokenizer = (
        byte_tokenizer(BOS_AND_TRIM, adds_bos=True, bos_token="<s>", eos_token="</s>")
        if trims
        else chatml_tokenizer()
    )
    rows = [{"prompt": f"{n}: 漢字?", "completion": f"naïve 🙂 {n}\n\tand so on"} for n in range(4)]
    prepared = prepared_rows(tmp_path, rows, tokenizer)
    shown = shown_examples(prepared, tokenizer, 3)
    assert len(shown) == 3
    for i, example in enumerate(shown):
        tokens_T, loss_T = prepared.split("train").example(i)
        assert [token["id"] for token in example["tokens"]] == tokens_T.tolist()
        assert [token["loss"] for token in example["tokens"]] == loss_T.tolist()
        assert example["text"] == tokenizer.decode(tokens_T, clean_up_tokenization_spaces=False)
        assert "".join(token["text"] for token in example["tokens"]) == example["text"]
        learned = "".join(token["text"] for token in example["tokens"] if token["loss"])
        assert learned == f"{rows[i]['completion']}<|im_end|>"
        assert {token["text"] for token in example["tokens"] if token["special"]} >= {"<|im_end|>"}
        json.dumps(example)


def test_no_more_than_there_are(tmp_path: Path) -> None:
    tokenizer = chatml_tokenizer()
    prepared = prepared_rows(tmp_path, [{"prompt": "a", "completion": "b"}], tokenizer)
    assert len(shown_examples(prepared, tokenizer, 9)) == 1
    assert shown_examples(prepared, tokenizer, 9, "test") == []


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8")) | st.sampled_from([*SPECIAL_TEXTS, "🙂", "👩‍👧", "漢", " the"])
    )
)
def test_the_texts_of_the_tokens_make_up_the_text(parts: list[str]) -> None:
    tokenizer = chatml_tokenizer()
    ids = tokenizer("".join(parts), add_special_tokens=False)["input_ids"]
    pieces = _pieces(tokenizer, ids, frozenset(special_tokens(tokenizer).values()))
    assert len(pieces) == len(ids)
    assert "".join(pieces) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_a_tokenizer_that_drops_the_first_space() -> None:
    """Like SentencePiece's: the space belongs to the piece and is left out at the start of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"▁Why": 0, "▁not": 1, "?": 2, "</s>": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["</s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    assert _pieces(tokenizer, [0, 1, 3], frozenset({3})) == ["Why", " not", "</s>"]
