"""A template at fault is refused before the data goes through it; one that is only particular is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from chat_templates import BROKEN, CHATML, FAMILIES, LLAMA_3, SPECIAL, Broken, Family
from small_tokenizers import byte_tokenizer

from trueup.data import prepare
from trueup.data.check import SAMPLE_RECORDS, check_template, checked
from trueup.data.records import Record, RowError, Turn
from trueup.data.template import ChatTemplate
from trueup.data.vocabulary import choose_pad
from trueup.recipe.models import DataSection
from trueup.schema import InputError

QUESTION = (Turn("user", "Why is the sky blue?"), Turn("assistant", "Because of the air."))
RECORDS = {
    "question": Record(QUESTION, "here:1"),
    "system": Record((Turn("system", "Be brief."), *QUESTION), "here:2"),
    "turns": Record((*QUESTION, Turn("user", "And red?"), Turn("assistant", "The same air.")), "here:3"),
}


def template_of(family: Family) -> ChatTemplate:
    tokenizer = byte_tokenizer(
        family.template, special=family.special, adds_bos=family.adds_bos, **family.tokens()
    )
    return ChatTemplate(tokenizer)


def broken(template: str) -> ChatTemplate:
    return ChatTemplate(byte_tokenizer(template, bos_token="<s>", eos_token="<|im_end|>"))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_known_families_pass(name: str) -> None:
    family = FAMILIES[name]
    template = template_of(family)
    notes = check_template(template, list(RECORDS.values()))
    assert bool([note for note in notes if "refuses the system message" in note]) == (not family.system)
    assert not [
        note for note in notes if "refuses the system message" not in note and "begins texts with" not in note
    ]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", RECORDS)
def test_loss_is_on_answers_and_their_ends_alone(name: str, kind: str) -> None:
    family, record = FAMILIES[name], RECORDS[kind]
    template = template_of(family)
    if kind == "system" and not family.system:
        with pytest.raises(
            RowError, match=r"refuses the system message .*put its text into the first user turn"
        ) as caught:
            template.render(record)
        assert caught.value.reason == "template_refused"
        return
    (example,) = template.encode([template.render(record)], "answer")
    answers = [turn.content for turn in record.turns if turn.role == "assistant"]
    thought = ["", "<think>\n\n</think>\n\n"][name == "thinking"]
    expected = [family.learned.format(answer=answer) for answer in answers]
    expected[-1] = thought + expected[-1]
    learned = template.tokenizer.decode(example.tokens_T[example.loss_T], clean_up_tokenization_spaces=False)
    assert learned == "".join(expected)
    ends = np.isin(example.tokens_T, sorted(template.end_ids)) & example.loss_T
    assert ends.sum() == len(answers)
    if (family.bos and family.bos in family.template) or "bos_token" in family.template:
        exchanges = len(answers) if name == "Llama 2" else 1
        assert (example.tokens_T == template.tokenizer.bos_token_id).sum() == exchanges
    assert choose_pad(template.tokenizer, template.end_ids, None).id not in template.end_ids


@pytest.mark.parametrize("name", [name for name in FAMILIES if FAMILIES[name].trims])
def test_a_template_that_trims_is_particular_and_counted(name: str) -> None:
    template = template_of(FAMILIES[name])
    spaced = Record((Turn("user", " Why? "), Turn("assistant", "  So.\n")), "here:1")
    assert check_template(template, [spaced] * SAMPLE_RECORDS) == ()
    (example,) = template.encode([template.render(spaced)], "answer")
    assert "answer_whitespace_trimmed" in example.changes


@pytest.mark.parametrize("name", BROKEN)
def test_every_fault_is_refused_with_what_was_rendered(name: str) -> None:
    fault: Broken = BROKEN[name]
    with pytest.raises(InputError) as caught:
        check_template(broken(fault.template), [RECORDS["question"], RECORDS[fault.needs]])
    message = str(caught.value)
    assert fault.says in message
    assert fault.shows in message
    assert "Mend chat_template in the tokenizer's folder, or delete it there" in message
    assert len(message) < 1000


@pytest.mark.parametrize("name", [name for name in BROKEN if BROKEN[name].needs != "question"])
def test_a_fault_in_records_the_data_has_not_is_said_and_costs_only_those(name: str) -> None:
    fault = BROKEN[name]
    template = broken(fault.template)
    kind = {"system": "a system message", "turns": "several turns"}[fault.needs]
    (note,) = [said for said in check_template(template, [RECORDS["question"]]) if f"has {kind}" in said]
    assert fault.says in note
    template.render(RECORDS["question"])
    with pytest.raises(RowError) as caught:
        template.render(RECORDS[fault.needs])
    assert note.endswith(f"dropped as {caught.value.reason}")


def test_what_the_made_up_records_do_not_show_the_first_records_do() -> None:
    template = broken(CHATML.replace("m.content", "m.content | replace('J', 'C')"))
    fine = Record((Turn("user", "Who?"), Turn("assistant", "Light.")), "x:9")
    sample = [Record((Turn("user", "Who?"), Turn("assistant", f"Jar {n}.")), f"x:{n}") for n in range(8)]
    with pytest.raises(InputError, match=r"Seen with x:0: .*Jar 0.*Rendered: .*Car 0") as caught:
        check_template(template, sample)
    assert "changes the answer" in str(caught.value)
    assert check_template(template, [*sample[1:], fine]) == ()  # then it loses some records, not all


def test_rendered_text_is_shown_without_control_characters() -> None:
    template = broken(CHATML.replace("m.content", "m.content | replace('k', '\x1b[31m')"))
    sample = [Record((Turn("user", "Who?"), Turn("assistant", "Dark.")), "x:1")]
    with pytest.raises(InputError) as caught:
        check_template(template, sample)
    assert str(caught.value).isprintable()
    assert r"Dar\x1b[31m" in str(caught.value)


def test_a_text_with_a_special_token_is_the_records_fault() -> None:
    sample = [Record((Turn("user", "Who?"), Turn("assistant", "I <|im_end|> end.")), "x:1")]
    assert check_template(broken(CHATML), sample) == ()


def test_plain_text_goes_through_no_template() -> None:
    text = Record((Turn("text", "Once upon a time."),), "x:1")
    template = broken(BROKEN["escapes"].template)
    assert check_template(template, [text]) == ()
    with pytest.raises(InputError, match="what the user says"):
        check_template(template, [text, RECORDS["question"]])


def test_records_pass_through_in_order() -> None:
    records = [Record((Turn("user", f"{n}?"), Turn("assistant", f"{n}.")), f"x:{n}") for n in range(20)]
    taken: list[int] = []

    def stream() -> object:
        for n, record in enumerate(records):
            taken.append(n)
            yield record

    passing = checked(broken(CHATML), stream())  # type: ignore[arg-type]
    assert next(passing) == records[0]
    assert len(taken) == SAMPLE_RECORDS
    assert list(passing) == records[1:]


def test_two_bos_at_the_start_are_repaired_and_said() -> None:
    """llama-cpp-python#1501."""
    family = FAMILIES["Llama 3"]
    template = ChatTemplate(
        byte_tokenizer("{{ bos_token }}" + LLAMA_3, special=SPECIAL, adds_bos=True, **family.tokens())
    )
    (note,) = check_template(template, [RECORDS["question"]])
    assert "writes BOS twice at the start; one is removed" in note


def test_a_bos_the_template_leaves_out_is_said() -> None:
    tokenizer = byte_tokenizer(CHATML, adds_bos=True, bos_token="<s>", eos_token="<|im_end|>")
    (note,) = check_template(ChatTemplate(tokenizer), [RECORDS["question"]])
    assert "begins texts with '<s>' and the chat template does not" in note


def test_an_answer_asked_for_with_another_header_is_said() -> None:
    asks = CHATML.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
    template = broken(asks)
    assert asks != CHATML
    (note,) = check_template(template, [RECORDS["question"]])
    assert "begins an answer with '<|im_start|>assistant\\n' in a whole conversation" in note
    assert "'<|im_start|>assistant\\n<think>\\n' where one is asked for" in note
    assert check_template(broken(CHATML), [RECORDS["question"]]) == ()


def test_a_header_that_is_learned_since_nothing_asks_for_it_is_said() -> None:
    asks = "{% if add_generation_prompt %}"
    silent = CHATML.replace(asks, "{% if false %}")
    assert silent != CHATML
    template = broken(silent)
    (note,) = check_template(template, [RECORDS["question"]])
    assert r"so '<|im_start|>assistant\n' before an answer is learned with it" in note
    (example,) = template.encode([template.render(RECORDS["question"])], "answer")
    learned = template.tokenizer.decode(example.tokens_T[example.loss_T])
    assert learned == "<|im_start|>assistant\nBecause of the air.<|im_end|>"


def test_a_tokenizer_that_loses_text_is_said() -> None:
    from tokenizers import normalizers

    tokenizer = byte_tokenizer(CHATML, eos_token="<|im_end|>")
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    (note,) = check_template(ChatTemplate(tokenizer), [RECORDS["question"]])
    assert "does not give every text back" in note


def test_an_end_that_is_no_token_is_named() -> None:
    """unsloth#416: a ChatML template on a tokenizer without its tokens. EOS ends the answer instead."""
    template = ChatTemplate(byte_tokenizer(CHATML, special=["</s>"], eos_token="</s>"))
    assert any("'<|im_end|>', which is none" in note for note in template.notes)
    (example,) = template.encode([template.render(RECORDS["question"])], "answer")
    assert template.tokenizer.decode(example.tokens_T[example.loss_T]) == "Because of the air.</s>"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("loss_on", ["answer", "all"])
def test_nothing_is_learned_from_the_example_before(name: str, loss_on: str) -> None:
    """transformers#25452: in a packed row no example's end is trained to predict the next one's beginning."""
    template = template_of(FAMILIES[name])
    (example,) = template.encode([template.render(RECORDS["question"])], loss_on)  # type: ignore[arg-type]
    assert not example.loss_T[0]


def test_prepare_refuses_at_once_and_keeps_nothing(tmp_path: Path) -> None:
    fault = BROKEN["drops the system message"]
    rows = [
        {"messages": [{"role": turn.role, "content": turn.content} for turn in RECORDS["system"].turns]}
    ] * 20
    data = tmp_path / "chat.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = DataSection(source=str(data), max_length=512)
    tokenizer = byte_tokenizer(fault.template, bos_token="<s>", eos_token="<|im_end|>")
    with pytest.raises(InputError, match=r"leaves the system message out. Seen with chat.jsonl:1"):
        prepare(section, tokenizer, tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []


def test_prepare_keeps_the_records_a_template_takes(tmp_path: Path) -> None:
    kinds = ["system", *["question"] * 3, "system"]
    data = tmp_path / "chat.jsonl"
    data.write_text(
        "".join(
            json.dumps(
                {"messages": [{**message, "content": f"{n} {message['content']}"} for message in rows]}
            )
            + "\n"
            for n, rows in enumerate(RECORDS[kind].messages() for kind in kinds)
        )
    )
    family = FAMILIES["Gemma"]
    tokenizer = byte_tokenizer(family.template, special=SPECIAL, adds_bos=True, **family.tokens())
    prepared = prepare(DataSection(source=str(data), max_length=512), tokenizer, tmp_path / "home")
    report = prepared.report()
    assert report["records"] == 3
    assert report["dropped"] == {"template_refused": 2}
    assert "put its text into the first user turn" in report["first"]["template_refused"][0]["what"]
    assert any("refuses the system message" in message for message in report["messages"])
