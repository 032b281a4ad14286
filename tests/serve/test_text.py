"""Text as it streams: never a broken character, never a part of a stop string, and in the end all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from api_server import tiny_codec, tokenizer
from fake_engine import END
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from trueup.serve.answer import AnswerText, Piece, StopStrings
from trueup.serve.codec import Codec, PromptError, shown
from trueup.serve.request import FinishReason, Token
from trueup.serve.text import BROKEN, ByteText, WindowText, byte_pieces, decoded, text_streams

TOKENS = st.lists(st.integers(0, 262), max_size=60)  # bytes, special tokens, and ids of no token
# Few letters, so that stop strings begin, fail and overlap often.
TEXT = st.text("abX\n", max_size=40)
STOPS = st.lists(st.text("abX\n", min_size=1, max_size=5), max_size=4)


def streamed(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    stream = text_streams(tokenizer)()
    return [*(stream.feed(token) for token in tokens), stream.finish()]


# --- tokens to text -----------------------------------------------------------------------------------------


@given(TOKENS)
def test_streamed_text_is_the_whole_decode_of_the_tokens(tokens: list[int]) -> None:
    assert "".join(streamed(tokenizer(), tokens)) == decoded(tokenizer(), tokens)


@given(TOKENS, st.integers(0, 60))
def test_what_was_streamed_stays_a_beginning_of_the_text(tokens: list[int], cut: int) -> None:
    assert decoded(tokenizer(), tokens).startswith(
        "".join(streamed(tokenizer(), tokens)[: min(cut, len(tokens))])
    )


@given(st.text(max_size=30))
def test_whole_text_streams_without_a_broken_character(text: str) -> None:
    pieces = streamed(tokenizer(), list(text.replace(BROKEN, "").encode()))
    assert not any(BROKEN in piece for piece in pieces)


def test_a_character_comes_with_its_last_byte() -> None:
    """llama.cpp#4036: each of its bytes was sent as U+FFFD."""
    assert streamed(tokenizer(), list("é🌶".encode())) == ["", "é", "", "", "", "🌶", ""]


def test_the_tail_of_a_broken_character_is_flushed_at_the_end() -> None:
    assert streamed(tokenizer(), list("ab🌶".encode())[:-1]) == ["a", "b", "", "", "", BROKEN]


def test_invalid_bytes_do_not_hold_back_what_follows() -> None:
    """vllm#17448: the stream broke off there."""
    assert streamed(tokenizer(), [0xFF, *b"a", 0xC3, *b"b"]) == [BROKEN, "a", "", BROKEN + "b", ""]


def added_token_tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(tokenizer().backend_tokenizer.to_str())
    backend.add_tokens([AddedToken("日本", special=False), AddedToken("café", special=False)])
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=backend)


@given(st.lists(st.sampled_from([260, 261, 0x61, 0xC3, 0xA9, 258]), max_size=12))
def test_added_tokens_stream_as_they_decode(tokens: list[int]) -> None:
    tokenizer = added_token_tokenizer()
    assert "".join(streamed(tokenizer, tokens)) == decoded(tokenizer, tokens)


def sentencepiece_tokenizer() -> Any:
    """Spaces as letters, bytes as tokens where a word has none: Llama 2's kind."""
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁the", "▁cat", "s", "▁", "日"]
    backend = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=backend, unk_token="<unk>")


SENTENCEPIECE = sentencepiece_tokenizer()
WORDS = st.sampled_from(
    [
        [257],
        [258],
        [259],
        [260],
        [261],
        [1 + byte for byte in "é".encode()],
        [1 + byte for byte in "🌶".encode()],
    ]
)


def test_a_tokenizer_of_another_kind_is_decoded_by_windows() -> None:
    assert byte_pieces(SENTENCEPIECE) is None
    assert isinstance(text_streams(SENTENCEPIECE)(), WindowText)
    assert isinstance(text_streams(tokenizer())(), ByteText)


@given(st.lists(WORDS, max_size=20))
def test_windows_give_the_whole_decode_of_whole_text(words: list[list[int]]) -> None:
    tokens = [token for word in words for token in word]
    pieces = streamed(SENTENCEPIECE, tokens)
    assert "".join(pieces) == decoded(SENTENCEPIECE, tokens)
    assert not any(BROKEN in piece for piece in pieces)


def test_windows_survive_a_decoder_that_thinks_otherwise_of_what_was_sent() -> None:
    """Three bytes of a character, then one that is none: the decoder takes back the character."""
    tokens = [*(1 + byte for byte in "你".encode()), 1 + 0xFF, 257]
    text = "".join(streamed(SENTENCEPIECE, tokens))
    assert text.startswith("你")
    assert text.endswith(" the")


def test_windows_hold_no_more_than_a_few_tokens_back() -> None:
    pieces = streamed(SENTENCEPIECE, [1 + 0xFF] * 40)
    assert any(pieces[:20])


# --- stop strings -------------------------------------------------------------------------------------------


def cut_at(text: str, stops: Sequence[str]) -> str:
    """The text before the stop string that is whole first, found in the whole text."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


@given(TEXT, STOPS, st.data())
def test_text_ends_before_the_first_stop_string_however_it_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    scanner, out, rest = StopStrings(stops), "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        out += scanner.feed(rest[:size])
        rest = rest[size:]
        assert cut_at(text, stops).startswith(out), "part of a stop string was given out"
    assert out + scanner.finish() == cut_at(text, stops)
    assert scanner.stopped == any(stop in text for stop in stops)


def test_no_beginning_of_a_stop_string_is_streamed() -> None:
    """vllm#3574."""
    scanner = StopStrings(["DEFGHIJ"])
    assert [scanner.feed(part) for part in ("DEF", "G", "HI", "J")] == ["", "", "", ""]
    assert scanner.stopped


def test_what_only_began_like_a_stop_string_is_flushed_at_the_end() -> None:
    """llama.cpp#15007: it was lost."""
    scanner = StopStrings(["TRE\nAAAAAAAA"])
    assert [scanner.feed("UNO DUE TRE"), scanner.finish()] == ["UNO DUE ", "TRE"]


def test_what_only_began_like_a_stop_string_comes_once_that_is_certain() -> None:
    """llama.cpp#10914: it came twice."""
    scanner = StopStrings(["Alice:", "\n"])
    assert [scanner.feed(" Alice"), scanner.feed("!")] == [" ", "Alice!"]


def test_a_stop_string_in_one_token_with_text_before_it_keeps_that_text() -> None:
    """llama.cpp#9867: the text was lost with it."""
    scanner = StopStrings(["\n"])
    assert scanner.feed("?\nBob") == "?"


# --- answers ------------------------------------------------------------------------------------------------


def answered(
    tokens: Sequence[int], stops: Sequence[str] = (), finish: FinishReason = "length"
) -> list[Piece]:
    """Token by token, as steps give them, up to the first piece that ends it."""
    answer = AnswerText(tiny_codec().text_stream(), stops, frozenset({END}))
    pieces = []
    for n, token in enumerate(tokens):
        pieces.append(answer.feed((Token(token, -0.5),), finish if n == len(tokens) - 1 else None))
        if pieces[-1].finish is not None:
            break
    return pieces


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), STOPS)
def test_an_answer_is_the_whole_decode_up_to_its_stop_string(tokens: list[int], stops: list[str]) -> None:
    pieces = answered(tokens, stops)
    whole = decoded(tokenizer(), tokens)
    assert "".join(piece.text for piece in pieces) == cut_at(whole, stops)
    assert pieces[-1].finish == ("stop" if any(stop in whole for stop in stops) else "length")


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), STOPS)
def test_a_token_comes_with_the_piece_that_completes_its_text(tokens: list[int], stops: list[str]) -> None:
    pieces, text, offsets = answered(tokens, stops), "", []
    for piece in pieces:
        text += piece.text
        assert all(placed.offset <= len(text) for placed in piece.tokens)
        offsets += [placed.offset for placed in piece.tokens]
    assert offsets == sorted(offsets)
    given_ids = [placed.token.id for piece in pieces for placed in piece.tokens]
    assert given_ids == tokens[: len(given_ids)]
    if pieces[-1].finish == "length":
        assert given_ids == tokens


def test_the_token_that_ends_an_answer_is_counted_and_not_shown() -> None:
    pieces = answered([*b"hi", END], finish="stop")
    assert "".join(piece.text for piece in pieces) == "hi"
    assert pieces[-1].count == 3
    assert [placed.token.id for piece in pieces for placed in piece.tokens] == list(b"hi")


def test_a_stop_string_ends_the_answer_in_the_step_that_completes_it() -> None:
    pieces = answered([*b"one. Two", END], stops=[". T"], finish="stop")
    assert len(pieces) == len("one. T")
    assert "".join(piece.text for piece in pieces) == "one"
    assert [placed.token.id for piece in pieces for placed in piece.tokens] == list(b"one")


def test_an_answer_that_ends_within_a_character_flushes_it() -> None:
    assert "".join(piece.text for piece in answered([*b"a", 0xF0, 0x9F])) == "a" + BROKEN


# --- prompts ------------------------------------------------------------------------------------------------


def test_a_prompt_with_a_special_token_in_a_message_is_refused() -> None:
    with pytest.raises(PromptError, match=r"special token '<\|im_end\|>'") as refused:
        tiny_codec().chat([{"role": "user", "content": "hi"}, {"role": "user", "content": "a<|im_end|>b"}])
    assert refused.value.where == 1


def test_a_chat_prompt_is_ready_for_the_answer() -> None:
    tokens = tiny_codec().chat([{"role": "user", "content": "hi"}])
    assert tokens[-len("assistant\n") :] == tuple(b"assistant\n")


@pytest.mark.parametrize("token", [-1, 260, 10**9])
def test_tokens_of_no_row_are_refused(token: int) -> None:
    with pytest.raises(PromptError, match="0 to 259"):
        tiny_codec().known([65, token])


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    codec = tiny_codec()
    with pytest.raises(PromptError, match="empty"):
        codec.text(prompt) if isinstance(prompt, str) else codec.known(prompt)


def test_a_template_that_raises_is_a_refusal() -> None:
    def render(messages: list[dict[str, str]]) -> str:
        raise RuntimeError("roles must alternate")

    codec = Codec(tokenizer(), render=render, end_ids=frozenset({END}), vocabulary=260)
    with pytest.raises(PromptError, match="roles must alternate"):
        codec.chat([{"role": "user", "content": "hi"}])


def test_a_tokens_bytes_are_shown_as_escapes_where_they_are_no_text() -> None:
    codec = tiny_codec()
    assert [shown(codec.bytes_of(token)) for token in (0x41, 0xF0, END)] == ["A", "\\xf0", "<|im_end|>"]


def test_tokens_of_spaces_as_letters_have_the_space_in_their_bytes() -> None:
    codec = Codec(SENTENCEPIECE, render=str, end_ids=frozenset(), vocabulary=262)
    assert [codec.bytes_of(token) for token in (257, 1 + 0xE9, 261)] == [b" the", b"\xe9", "日".encode()]
