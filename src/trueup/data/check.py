"""A chat template held against a few conversations before all of the data goes through it.

Every record is checked as it is rendered, and a record the template spoils is dropped with its reason
(template.py). Where the template itself is at fault that would drop the whole data set, or all records of one
kind, one by one. So it is first held against made-up conversations, one for each fault, and against the first
SAMPLE_RECORDS records:

- what it does to one plain question and answer is refused at once: changing either (escaping, reordering,
  leaving parts out), putting the question where the answer is learned, leaving the end-of-turn token out
  after the last answer, writing BOS twice inside the text;
- what it does to system messages or to several turns is refused where the sample holds such records, and
  said otherwise: they are then dropped one by one;
- a template that refuses a system message by itself (raise_exception) is no fault: such records are dropped,
  the others kept;
- white space lost around an answer is no fault either: such records are counted as
  `answer_whitespace_trimmed`.

What the tokens alone can show (BOS twice at the start, which is repaired; a tokenizer that adds BOS where
the template has none; text that does not survive tokenising) is said and not refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trueup.schema import InputError

from .records import Record, RowError, Turn
from .template import MEND, ChatTemplate
from .vocabulary import name_of

SAMPLE_RECORDS = 8
_WINDOW_CHARACTERS = 120  # shown on each side of a fault

_PLAIN = Record(
    (
        Turn("user", 'Is 1 < 2 & "3" > 2? Ünïcode: 漢字 🙂'),
        Turn("assistant", "Yes, 1 < 2 &\n    \"3\" > '2'.\n\n| é 漢字 🙂 |  Ready?  OK."),
    ),
    "a question and an answer made up for this check",
)
_SPACES = Record(
    (Turn("user", "  Print it indented. "), Turn("assistant", "\n    indented, then an empty line\n\n")),
    "an answer with spaces around it, made up for this check",
)
_SYSTEM = Record(
    (
        Turn("system", "Speak as Zarathustra."),
        Turn("user", "How far is it?"),
        Turn("assistant", "Six miles."),
    ),
    "a conversation with a system message, made up for this check",
)
_TURNS = Record(
    (
        Turn("user", "First, name a river."),
        Turn("assistant", "The Danube."),
        Turn("user", "Second, name a peak."),
        Turn("assistant", "Triglav."),
    ),
    "a conversation of two turns, made up for this check",
)

_FAULTS = {
    "template_drops_system": "leaves the system message out",
    "template_changes_question": "changes or leaves out what the user says",
    "template_changes_answer": "changes the answer",
    "template_omits_end": "leaves the end-of-turn token out, so the model would not learn to stop",
    "template_not_incremental": "writes turns in another order, or otherwise once more turns follow, so that "
    "what a served model is shown is not what it was trained on",
    "loss_on_question": "puts the question where the answer is learned, so the loss would be on the question",
    "template_doubles_bos": "writes the BOS token twice in a row",
}

_MADE_UP = (_PLAIN, _SPACES, _SYSTEM, _TURNS)


@dataclass(frozen=True)
class Fault:
    """What a template does wrong with one record. `reason` is the name such records are dropped under."""

    reason: str
    record: Record
    detail: str
    shown: str  # the rendered text around the fault

    def message(self, template: ChatTemplate) -> str:
        what = _FAULTS.get(self.reason, "cannot be used")
        return (
            f"{name_of(template.tokenizer)}: the chat template {what}. Seen with {self.record.origin}: "
            f"{self.detail}. Rendered: {self.shown}. {MEND}"
        )


def checked(template: ChatTemplate, records: Iterable[Record]) -> Iterator[Record]:
    """The same records, in order, after the template was held against the first of them (`check_template`).
    What is to be said to a person is added to `template.notes`."""
    stream = iter(records)
    sample = list(itertools.islice(stream, SAMPLE_RECORDS))
    template.notes.extend(check_template(template, sample))
    yield from itertools.chain(sample, stream)


def check_template(template: ChatTemplate, records: Sequence[Record]) -> tuple[str, ...]:
    """Refuse a template that would spoil the data, by the rules above; returns what a person should know of
    it. Raises InputError, which shows the rendered text around the fault."""
    sample = [record for record in records if not record.is_text]
    if records and not sample:  # plain text goes through no template
        return ()
    notes: list[str] = []
    for fault in (find_fault(template, _PLAIN), find_fault(template, _SPACES), _end_left_out(template)):
        if fault is not None and fault.reason in _FAULTS:
            raise InputError(fault.message(template))
    fault = find_fault(template, _TURNS)
    if fault is not None and fault.reason in _FAULTS:
        if any(_answers(record) > 1 for record in sample):
            raise InputError(fault.message(template))
        notes.append(_said(fault, "several turns"))
    notes += _system(template, sample)
    found = [find_fault(template, record) for record in sample]
    faults = [fault for fault in found if fault is not None and fault.reason in _FAULTS]
    if faults and len(faults) == len(sample):
        raise InputError(faults[0].message(template))
    return (*notes, *_served_otherwise(template), *_token_notes(template))


def find_fault(template: ChatTemplate, record: Record) -> Fault | None:
    """What the template does wrong with this record; None where it is rendered as it should be, or its own
    text is why it cannot be used."""
    try:
        text = template.render(record).text
    except RowError as error:
        if error.reason not in (*_FAULTS, "template_refused"):
            return None
        return Fault(error.reason, record, str(error), _around_fault(template, record))
    repeated = _learned_question(template, record) if record in _MADE_UP else None
    if repeated is not None:
        return repeated
    bos = template.tokenizer.bos_token
    at = text.find(bos + bos, 1) if bos else -1  # at the very start it is repaired
    if at < 0:
        return None
    return Fault("template_doubles_bos", record, f"{bos + bos} stands in the text", _window(text, at))


def _learned_question(template: ChatTemplate, record: Record) -> Fault | None:
    """A template that writes a question a second time, where the answer is learned. Told by made-up records
    only: real answers may well repeat their question."""
    rendered = template.render(record)
    for start, end in rendered.spans:
        for turn in record.turns:
            at = rendered.text.find(turn.content.strip(), start, end)
            if turn.role != "assistant" and at >= 0:
                detail = f"the {turn.role} message stands again where the answer is learned"
                return Fault("loss_on_question", record, detail, _window(rendered.text, at))
    return None


def _system(template: ChatTemplate, sample: Sequence[Record]) -> Iterator[str]:
    with_system = [record for record in sample if any(turn.role == "system" for turn in record.turns)]
    fault = find_fault(template, _SYSTEM)
    if fault is None:
        return
    if fault.reason == "template_refused":
        if with_system:
            yield f"{fault.detail}. Records with a system message are dropped as template_refused"
        return
    if with_system:
        seen = next(filter(None, (find_fault(template, one) for one in with_system)), fault)
        raise InputError(seen.message(template))
    yield _said(fault, "a system message")


def _said(fault: Fault, kind: str) -> str:
    return (
        f"the chat template {_FAULTS[fault.reason]}: {fault.detail}. None of the first {SAMPLE_RECORDS} "
        f"records has {kind}; those that do are dropped as {fault.reason}"
    )


def _end_left_out(template: ChatTemplate) -> Fault | None:
    """A template that ends earlier answers with a token and leaves it out after the last: EOS would be put
    there, another end than the one it is served with."""
    if template.end_of_turn is not None:
        return None
    try:
        text = template.apply(_TURNS.messages())
    except RowError:
        return None
    question, answer, again, _ = (turn.content for turn in _TURNS.turns)
    opening = text[: text.find(question)].removeprefix(template.tokenizer.bos_token or "")
    between = text[text.find(answer) + len(answer) : text.find(again)]
    ending = between.removesuffix(opening).strip()
    if not ending or not any(ending.startswith(token) for token in template.special):
        return None
    last = text[text.rfind(_TURNS.turns[-1].content[-1]) + 1 :]
    detail = f"earlier answers end with {ending!r}, the last one with {last!r}"
    return Fault("template_omits_end", _TURNS, detail, _window(text, len(text)))


def _served_otherwise(template: ChatTemplate) -> Iterator[str]:
    """The answer's header that a server writes, where the whole conversation has another, or where the
    template has it in a whole conversation only: it is then a part of what is learned."""
    question = _PLAIN.messages()[:1]
    try:
        text = template.apply(_PLAIN.messages())
        before = template.apply(question)
        served = template.apply(question, generation_prompt=True)
    except RowError:
        return
    if not (text.startswith(before) and served.startswith(before)):
        return
    header = text[len(before) : text.find(_PLAIN.turns[-1].content, len(before))]
    if served == before and header.strip():
        yield (
            "the chat template writes nothing where an answer is asked for (it does not look at "
            f"add_generation_prompt), so {header!r} before an answer is learned with it: a served model "
            "writes it itself, at the start of what it says"
        )
    elif not text.startswith(served):
        yield (
            f"the chat template begins an answer with {header!r} in a whole conversation and with "
            f"{served[len(before) :]!r} where one is asked for: examples have the first, a server sends the "
            "second"
        )


def _token_notes(template: ChatTemplate) -> Iterator[str]:
    """What only the tokens show, on the plain conversation."""
    tokenizer = template.tokenizer
    try:
        (example,) = template.encode([template.render(_PLAIN)], "answer")
    except RowError:  # the template or its special tokens rule out this very text
        return
    if "second_bos_removed" in example.changes:
        yield (
            "the chat template writes BOS twice at the start; one is removed here, but whoever serves this "
            "template sends both: mend the template"
        )
    bos = tokenizer.bos_token_id
    if bos is not None and example.tokens_T[0] != bos and tokenizer("a")["input_ids"][:1] == [bos]:
        yield (
            f"the tokenizer begins texts with {tokenizer.bos_token!r} and the chat template does not; "
            "examples begin as the template does"
        )
    learned = tokenizer.decode(example.tokens_T[example.loss_T], clean_up_tokenization_spaces=False)
    answer = _PLAIN.turns[-1].content
    if "".join(answer.split()) not in "".join(learned.split()):
        yield f"the tokenizer does not give every text back: {answer!r} comes back as {learned!r}"


def _around_fault(template: ChatTemplate, record: Record) -> str:
    """The rendered text where the first turn that is not in its place should be."""
    try:
        text = template.apply(record.messages())
    except RowError:
        return "nothing"
    at = 0
    for turn in record.turns:
        begin = text.find(turn.content.strip(), at)
        if begin < 0:
            break
        at = begin + len(turn.content.strip())
    return _window(text, at)


def _window(text: str, at: int) -> str:
    """Text around a place, quoted, control characters escaped."""
    start, stop = max(0, at - _WINDOW_CHARACTERS), at + _WINDOW_CHARACTERS
    return ("…" if start else "") + repr(text[start:stop]) + ("…" if stop < len(text) else "")


def _answers(record: Record) -> int:
    return sum(turn.role == "assistant" for turn in record.turns)
