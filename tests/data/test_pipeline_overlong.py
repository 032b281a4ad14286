"""Splitting what is too long: every token of an answer learned once, the end only where the answer ends."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_samples import TOKENIZER, prepared, row

from trueup.data import Prepared, prepare
from trueup.data.overlong import Frame, sentence_ends, split_example
from trueup.data.splits import SPLITS
from trueup.recipe.models import DataSection
from trueup.schema import InputError

NOTHING_HELD_OUT = {"validation": 0, "test": 0}
LONG = (
    "The first one is short. The second sentence is a little longer than that! 第三句话。 And the last? Yes."
)


def examples(found: Prepared) -> list[tuple[str, str]]:
    """Whole text and learned text of the training examples, in order."""
    table = found.split("train")
    pairs = [table.example(i) for i in range(len(table))]
    return [(TOKENIZER.decode(tokens), TOKENIZER.decode(tokens[loss])) for tokens, loss in pairs]


@st.composite
def long_examples(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, Frame]:
    """Made-up tokens: some before the answer (an earlier answer among them), the answer, some after it; or
    plain text."""
    before, answer, after = draw(st.integers(0, 40)), draw(st.integers(1, 200)), draw(st.integers(0, 3))
    loss = np.zeros(before + answer + after, dtype=np.bool_)
    loss[before : before + answer] = True
    if before > 5:
        loss[2:4] = True
    limit = draw(st.integers(2, 64))
    frame = Frame.of_answer(loss, limit)
    if frame is None or draw(st.booleans()):  # plain text: all of it is learned but the first token
        loss = np.arange(answer + 1) > 0
        frame = Frame.of_text(limit)
    return np.arange(len(loss), dtype=np.int32), loss, limit, frame


@given(long_examples(), st.booleans())
def test_every_token_with_loss_is_learned_once_and_in_order(
    example: tuple[np.ndarray, np.ndarray, int, Frame], sentences: bool
) -> None:
    tokens_T, loss_T, limit, frame = example
    pieces = split_example(tokens_T, loss_T, frame, (lambda _, k: k % 7 == 0) if sentences else None)
    assert all(len(tokens) == len(loss) <= limit for tokens, loss in pieces)
    learned = np.concatenate([tokens[loss] for tokens, loss in pieces])
    assert learned.tolist() == tokens_T[loss_T].tolist()
    for tokens, loss in pieces:
        assert tokens[: frame.start].tolist() == tokens_T[: frame.start].tolist()
        assert loss.any()
        assert np.all(np.diff(tokens[frame.start :]) == 1)  # what follows is one stretch of the example


def test_a_conversation_needs_a_quarter_of_the_limit_for_its_answer() -> None:
    loss = np.asarray([False] * 76 + [True] * 100)
    assert Frame.of_answer(loss, 100) is None
    assert Frame.of_answer(loss[1:], 100) == Frame(start=75, context=6, room=25)


@pytest.mark.parametrize("overlong", ["split-sentence", "split-token"])
def test_the_pieces_of_an_answer_decode_to_it_and_only_the_last_one_ends(
    tmp_path: Path, overlong: str
) -> None:
    items = [{"instruction": "Tell me.", "output": LONG * 3}, row("short", words=2)]
    found = prepared(tmp_path, items, max_length=120, overlong=overlong, split=NOTHING_HELD_OUT)
    *pieces, (_, short) = examples(found)
    assert "".join(learned for _, learned in pieces) == LONG * 3 + "<|im_end|>"
    assert [learned.endswith("<|im_end|>") for _, learned in pieces] == [False] * (len(pieces) - 1) + [True]
    assert short == items[1]["output"] + "<|im_end|>"
    question = "<|im_start|>user\nTell me.<|im_end|>\n<|im_start|>assistant\n"
    assert all(whole.startswith(question) for whole, _ in pieces)
    report = found.report()
    assert (report["records"], report["examples"]) == (2, len(pieces) + 1)
    assert report["changed"] == {"split_piece": len(pieces)}
    assert report["first"]["split_piece"][0]["what"].startswith(f"piece 1 of {len(pieces)}: ")
    assert sum(report["splits"].values()) == report["examples"]


def test_pieces_end_with_sentences_where_there_are_any(tmp_path: Path) -> None:
    items = [{"instruction": "Tell me.", "output": LONG * 3}, {"instruction": "Now.", "output": "x" * 200}]
    found = prepared(tmp_path, items, max_length=160, overlong="split-sentence", split=NOTHING_HELD_OUT)
    learned = [text for _, text in examples(found)]
    ends = [text.rstrip()[-1] for text in learned if set(text) - set("x<|im_end|>")]
    assert set(ends) <= set(".!?。>")
    assert sum(len(text) for text in learned if set(text) <= set("x<|im_end|>")) == 200 + len("<|im_end|>")


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("One. Two", [4]),
        ("v1.2 is out", []),
        ("Really?! (Yes.) No", [8, 15]),
        ("他来了。她也来了", [4]),
        ("a\nb", [2]),
        ("e.g.this", []),
    ],
)
def test_where_sentences_end(text: str, ends: list[int]) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    ends_at = sentence_ends(TOKENIZER.decode)
    tokens_T = np.asarray(ids, dtype=np.int32)
    found = [k for k in range(1, len(ids)) if ends_at(tokens_T, k)]
    found_texts = {TOKENIZER.decode(ids[:k]).rstrip() for k in found}
    assert found_texts == {text[:end].rstrip() for end in ends}


def test_earlier_answers_are_learned_once(tmp_path: Path) -> None:
    turns = [("user", "a"), ("assistant", "early"), ("user", "b"), ("assistant", LONG * 2)]
    source = tmp_path / "in.jsonl"
    messages = [{"role": role, "content": content} for role, content in turns]
    source.write_text(json.dumps({"messages": messages}) + "\n")
    section = DataSection(source=str(source), max_length=160, overlong="split-token", split=NOTHING_HELD_OUT)
    learned = [text for _, text in examples(prepare(section, TOKENIZER, tmp_path / "data"))]
    assert len(learned) > 2
    assert "".join(learned) == "early<|im_end|>" + LONG * 2 + "<|im_end|>"


def test_with_loss_on_all_the_question_is_learned_once(tmp_path: Path) -> None:
    items = [{"instruction": "Tell me.", "output": LONG * 2}]
    settings = {"max_length": 120, "overlong": "split-token", "split": NOTHING_HELD_OUT, "loss_on": "all"}
    found = prepared(tmp_path, items, **settings)
    learned = [text for _, text in examples(found)]
    assert learned[0].startswith("user\nTell me.<|im_end|>")
    assert "".join(learned).endswith(LONG[-20:] + "<|im_end|>\n")
    assert "".join(learned).count("Tell me.") == 1
    assert found.report()["tokens_by_part"] is None


def test_plain_text_goes_on_where_it_stopped(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"text": LONG * 4}) + "\n")
    for overlong in ("split-token", "split-sentence"):
        section = DataSection(source=str(source), max_length=90, overlong=overlong, split=NOTHING_HELD_OUT)
        found = prepare(section, TOKENIZER, tmp_path / "data")
        table = found.split("train")
        parts = [table.example(i) for i in range(len(table))]
        ids = [int(parts[0][0][0]), *(int(token) for tokens, loss in parts for token in tokens[loss])]
        assert len(parts) > 4
        assert TOKENIZER.decode(ids) == LONG * 4 + "<|im_end|>"


def test_all_pieces_of_a_record_are_in_one_split(tmp_path: Path) -> None:
    items = [{"instruction": f"Tell me {n}.", "output": f"{n} {row(n)['output']} " * 4} for n in range(60)]
    held_out = {"validation": 0.3, "test": 0.3}
    found = prepared(tmp_path, items, max_length=120, overlong="split-token", split=held_out)
    where: dict[bytes, set[str]] = {}
    for name in SPLITS:
        table = found.split(name)
        for i in range(len(table)):
            question = TOKENIZER.decode(table.example(i)[0]).split("<|im_end|>")[0]
            where.setdefault(question.encode(), set()).add(name)
    assert len(where) == 60
    assert all(len(names) == 1 for names in where.values())
    assert found.report()["examples"] > 200


@pytest.mark.parametrize(
    ("overlong", "dropped", "advice"),
    [
        ("drop", "3 too_long", "or set data.overlong to truncate or to split-sentence."),
        ("truncate", "3 no_supervised_tokens", "or shorten what stands before the answers: what is within"),
        ("split-token", "3 too_long", "or shorten what stands before the answers: it leaves them less than"),
        (
            "split-sentence",
            "3 too_long",
            "or shorten what stands before the answers: it leaves them less than",
        ),
    ],
)
def test_a_data_set_whose_every_record_is_too_long_says_what_to_change(
    tmp_path: Path, overlong: str, dropped: str, advice: str
) -> None:
    """And never to set what is set already."""
    items = [{"instruction": "Q" * 200, "output": LONG} for _ in range(3)]
    with pytest.raises(InputError, match=rf"{dropped}.*data.max_length is 100: raise it") as raised:
        prepared(tmp_path, items, max_length=100, overlong=overlong)
    assert advice in str(raised.value)
    assert f"to {overlong}" not in str(raised.value)


@pytest.mark.parametrize("overlong", ["truncate", "split-sentence", "split-token"])
def test_a_data_set_whose_every_answer_is_too_long_can_be_used(tmp_path: Path, overlong: str) -> None:
    items = [{"instruction": f"Q{n}", "output": row(n, words=200)["output"]} for n in range(20)]
    found = prepared(tmp_path, items, max_length=128, overlong=overlong)
    report = found.report()
    assert (report["records"], report["dropped"]) == (20, {})
    assert report["tokens"]["max"] <= 128
    assert len(found.split("train"))
    assert len(found.split("validation"))
