"""Conversations to tokens and a loss mask, exactly.

The tokens of an example are those of the rendered template text, tokenised once, without the special tokens a
tokenizer would add by itself: the template writes its own BOS, so there is never a second one. Where the
answers are in that text is found by rendering the conversation up to each answer with the generation prompt:
what follows that prefix, up to and including the end-of-turn token, is what the model must produce, and it
alone carries loss. Text after the end-of-turn token (ChatML's newline) is kept and not supervised: a served
model stops before it.

Where the text before an answer has other tokens by itself than in one pass with the answer (a prompt that
ends in a space, an answer that starts with a newline), the text is cut there and the pieces tokenised apart,
so that the model trains on the prompt tokens it is served; counted as `boundary_split`.

Plain text goes through no template: it is between the tokenizer's own BOS, where it puts one before a text,
and its EOS, and all of it carries loss.

A tokenizer without a template gets DEFAULT_TEMPLATE; one whose template writes no end-of-turn token gets its
EOS token right after the last answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trueup.schema import InputError

from .records import Record, RowError, Turn, excerpt
from .vocabulary import Tokenizer, name_of, special_tokens

DEFAULT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ ('' if loop.first else '\n\n') + '### ' + message['role'].capitalize() + '\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n\n### Assistant\n' }}{% endif %}"
)
_PROBE = Record((Turn("user", "How many?"), Turn("assistant", "Seven.")), "a question and an answer")
MEND = "Mend chat_template in the tokenizer's folder, or delete it there: then trueup's own is used"
_KEPT_PIECE_CHARACTERS, _KEPT_PIECES = 64, 1024

LossOn = Literal["answer", "all"]


@dataclass(frozen=True)
class Rendered:
    """Template text, and the character spans [start, end) that carry loss, one per answer, in order."""

    text: str
    spans: tuple[tuple[int, int], ...]
    changes: tuple[str, ...] = ()
    is_text: bool = False


@dataclass(frozen=True, eq=False)
class Encoded:
    """One example. `loss_T[t]` says that token t itself is learned as a target; never true of the first
    token."""

    tokens_T: NDArray[np.int32]
    loss_T: NDArray[np.bool_]
    changes: tuple[str, ...] = ()


class ChatTemplate:
    """A tokenizer's template, probed once. Raises InputError where it cannot render a question and an answer,
    or the tokenizer has no token to end a turn with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.notes: list[str] = []
        bos: Any = tokenizer.bos_token_id
        self._adds_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [bos] != self._ids("a")[:1]
        self.is_default = not getattr(tokenizer, "chat_template", None)
        self.text: str = self._default_text() if self.is_default else tokenizer.get_chat_template()
        self.end_of_turn: str | None = None
        self.special = special_tokens(tokenizer)
        self._control: re.Pattern[str] | None = None
        self._piece_ids: dict[str, list[int]] = {}
        self._probe()

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens at which an answer is over: EOS and the template's end-of-turn token."""
        ids = {self.tokenizer.eos_token_id}
        if self.end_of_turn is not None:
            ids.add(self.tokenizer.convert_tokens_to_ids(self.end_of_turn))
        return frozenset(index for index in ids if index is not None)

    def render(self, record: Record) -> Rendered:
        """Raises RowError: special_token_in_text, template_refused, template_drops_system,
        template_changes_question, template_not_incremental, template_changes_answer, template_omits_end,
        loss_on_question."""
        if self._control is not None:
            for turn in record.turns:
                hit = self._control.search(turn.content)
                if hit:
                    raise RowError("special_token_in_text", f"the {turn.role} text contains {hit.group()!r}")
        if record.is_text:
            text = record.turns[0].content
            return Rendered(text, ((0, len(text)),), is_text=True)
        messages = record.messages()
        text = self._whole_text(record)
        spans: list[tuple[int, int]] = []
        changes: list[str] = []
        for k, turn in enumerate(record.turns):
            if turn.role != "assistant":
                continue
            start, is_prompt = self._answer_start(messages, k, text, after=spans[-1][1] if spans else 0)
            begin, end, trimmed = self._locate(text, start, turn.content)
            if trimmed:
                changes.append("answer_whitespace_trimmed")
            spans.append((start if is_prompt else begin, end))
        _check_places(record, text, spans)
        if self.end_of_turn is None:
            text = text[: spans[-1][1]]
        return Rendered(text, tuple(spans), tuple(dict.fromkeys(changes)))

    def encode(self, batch: Sequence[Rendered], loss_on: LossOn) -> list[Encoded]:
        """Tokens and masks of a batch, in order."""
        if not batch:
            return []
        if not getattr(self.tokenizer, "is_fast", False):
            return [self._finish(item, *self._pieces(item), loss_on) for item in batch]
        texts = [item.text for item in batch]
        coded = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        return [
            self._encode_one(item, ids, offsets, loss_on)
            for item, ids, offsets in zip(batch, coded["input_ids"], coded["offset_mapping"], strict=True)
        ]

    def _encode_one(
        self, item: Rendered, ids: list[int], offsets: list[tuple[int, int]], loss_on: LossOn
    ) -> Encoded:
        offsets_T2 = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
        starts_T = offsets_T2[:, 0]
        loss_T = np.zeros(len(ids), dtype=np.bool_)
        for start, end in item.spans:
            prompt = self._prompt_ids(item.text[:start])
            at = int(np.searchsorted(starts_T, start))
            if ids[max(0, at - len(prompt)) : at] != prompt:
                return self._finish(item, *self._pieces(item), loss_on)
            loss_T |= (starts_T >= start) & (starts_T < end)
        return self._finish(item, ids, loss_T, False, loss_on)

    def _prompt_ids(self, before: str) -> list[int]:
        """Ids of the text before an answer from its last special token on, tokenised by itself. Nothing
        merges across a special token, and what follows the last one is mostly the same few words."""
        hits = self._control.finditer(before) if self._control else ()
        last = max((hit.start() for hit in hits), default=0)
        piece = before[last:]
        if len(piece) > _KEPT_PIECE_CHARACTERS:
            return self._ids(piece)
        if piece not in self._piece_ids and len(self._piece_ids) < _KEPT_PIECES:
            self._piece_ids[piece] = self._ids(piece)
        return self._piece_ids[piece] if piece in self._piece_ids else self._ids(piece)

    def _pieces(self, item: Rendered) -> tuple[list[int], NDArray[np.bool_], bool]:
        """Tokenise each side of every answer apart; the last value says whether the ids differ from one
        pass."""
        cuts = [0, *(cut for span in item.spans for cut in span), len(item.text)]
        ids: list[int] = []
        loss: list[bool] = []
        for n, (start, end) in enumerate(pairwise(cuts)):
            piece = self._ids(item.text[start:end])
            ids += piece
            loss += [n % 2 == 1] * len(piece)
        return ids, np.asarray(loss, dtype=np.bool_), ids != self._ids(item.text)

    def _finish(
        self, item: Rendered, ids: list[int], loss_T: NDArray[np.bool_], split: bool, loss_on: LossOn
    ) -> Encoded:
        changes = [*item.changes, *(["boundary_split"] if split else [])]
        end = self.tokenizer.eos_token_id
        if self.end_of_turn is None or (item.is_text and end is not None):
            ids, loss_T = [*ids, end], np.append(loss_T, True)
        bos = self.tokenizer.bos_token_id
        if item.is_text and self._adds_bos:
            ids, loss_T = [bos, *ids], np.insert(loss_T, 0, False)
        if bos is not None and ids[:2] == [bos, bos]:
            ids, loss_T = ids[1:], loss_T[1:]
            changes.append("second_bos_removed")
        if loss_on == "all":
            loss_T = np.ones(len(ids), dtype=np.bool_)
        loss_T[:1] = False  # nothing comes before it to predict it from
        return Encoded(np.asarray(ids, dtype=np.int32), loss_T, tuple(changes))

    def _whole_text(self, record: Record) -> str:
        """The whole conversation rendered, with every system and user turn in it, but for white space around
        them."""
        try:
            text = self.apply(record.messages())
        except RowError as error:
            raise self._without_system(record, error) from error
        for turn in record.turns:
            if turn.role != "assistant" and turn.content.strip() not in text:
                reason = "template_drops_system" if turn.role == "system" else "template_changes_question"
                message = f"the rendered text does not hold the {turn.role} message"
                raise RowError(reason, f"{message}: {excerpt(turn.content)}")
        return text

    def _without_system(self, record: Record, error: RowError) -> RowError:
        """What a refusal is about, where it is about the system message."""
        others = tuple(turn for turn in record.turns if turn.role != "system")
        if len(others) == len(record.turns) or not others:
            return error
        try:
            self.apply(Record(others, record.origin).messages())
        except RowError:
            return error
        advice = "put its text into the first user turn, or use a template with a system role"
        return RowError(error.reason, f"the chat template refuses the system message ({error}); {advice}")

    def _answer_start(
        self, messages: list[dict[str, str]], k: int, text: str, *, after: int
    ) -> tuple[int, bool]:
        """Where answer k begins, by rendering what comes before it: with the generation prompt (True), or
        where the full text departs from that (some templates write the answer's header otherwise), without
        (False)."""
        for generation_prompt in (True, False):
            try:
                prefix = self.apply(messages[:k], generation_prompt=generation_prompt)
            except RowError:
                continue
            if len(prefix) >= after and text.startswith(prefix):
                return len(prefix), generation_prompt
        raise RowError(
            "template_not_incremental",
            f"turn {k + 1}: the template writes earlier turns differently once more turns follow",
        )

    def _locate(self, text: str, start: int, answer: str) -> tuple[int, int, bool]:
        """Start of the answer's own text, end of its end-of-turn token, and whether the template trimmed
        it."""
        ending = self.end_of_turn
        limit = len(text) if ending is None else text.find(ending, start)
        for candidate in dict.fromkeys((answer, answer.strip())) if limit >= 0 else ():
            if ending is None:  # nothing marks the end, so the answer must stand right at the start
                begin = text.find(candidate, start)
                found = begin >= 0 and not text[start:begin].strip()
                end = begin + len(candidate)
            else:  # a header may stand before it (an empty thought), only white space after it
                begin = text.rfind(candidate, start, limit)
                found = begin >= 0 and not text[begin + len(candidate) : limit].strip()
                end = limit + len(ending)
            if found:
                return begin, end, candidate != answer
        if ending is not None and text.find(answer.strip(), start) >= 0:
            raise RowError("template_omits_end", f"no {ending!r} follows the answer: {excerpt(answer)}")
        raise RowError(
            "template_changes_answer", f"the rendered text does not hold the answer: {excerpt(answer)}"
        )

    def apply(self, messages: list[dict[str, str]], *, generation_prompt: bool = False) -> str:
        """The template's text. Raises RowError (template_refused) where the template raises anything."""
        try:
            text = self.tokenizer.apply_chat_template(
                messages, chat_template=self.text, tokenize=False, add_generation_prompt=generation_prompt
            )
        except Exception as error:  # a template is a program; it may raise anything
            raise RowError("template_refused", f"{type(error).__name__}: {error}") from error
        return str(text)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def _default_text(self) -> str:
        """DEFAULT_TEMPLATE, with a BOS token where this tokenizer begins its texts with one."""
        if self.tokenizer.eos_token_id is None:
            raise InputError(
                f"{name_of(self.tokenizer)}: the tokenizer has neither a chat template nor an EOS token, so "
                "nothing can end an answer; set its eos_token"
            )
        self.notes.append("the tokenizer has no chat template; trueup's default is used")
        return "{{ bos_token }}" + DEFAULT_TEMPLATE if self._adds_bos else DEFAULT_TEMPLATE

    def _probe(self) -> None:
        """Find the end-of-turn token, and the special tokens the template builds with."""
        try:
            text = self.apply(_PROBE.messages())
        except RowError as error:
            raise InputError(
                f"{name_of(self.tokenizer)}: the chat template cannot render {_PROBE.origin}: {error}. {MEND}"
            ) from error
        answer = _PROBE.turns[-1].content
        if answer not in text:
            raise InputError(
                f"{name_of(self.tokenizer)}: the chat template leaves the answer out or changes it: of "
                f"{_PROBE.turns[0].content!r} and {answer!r} it makes {text!r}. {MEND}"
            )
        tail = text[text.rindex(answer) + len(answer) :].lstrip()
        self.end_of_turn = max(
            (token for token in self.special if tail.startswith(token)), key=len, default=None
        )
        if self.end_of_turn is None:
            if self.tokenizer.eos_token_id is None:
                raise InputError(
                    "the chat template writes no end-of-turn token and the tokenizer has no EOS token"
                )
            ending = f" (with {excerpt(tail)!r}, which is none)" if tail.strip() else ""
            self.notes.append(
                f"the chat template ends answers without a token{ending}; EOS is put after the last answer"
            )
        own = (self.tokenizer.bos_token, self.tokenizer.eos_token, self.tokenizer.pad_token)
        control = {token for token in self.special if token in own or token in text}
        if control:
            self._control = re.compile("|".join(re.escape(token) for token in sorted(control)))


def _check_places(record: Record, text: str, spans: Sequence[tuple[int, int]]) -> None:
    """Every system and user turn stands, in order, before the part of its answer that carries loss."""
    at, answer = 0, 0
    for turn in record.turns:
        if turn.role == "assistant":
            at = spans[answer][1]
            answer += 1
            continue
        content = turn.content.strip()
        begin = text.find(content, at)
        at = begin + len(content)
        if begin < 0 or at > spans[answer][0]:
            raise RowError(
                "loss_on_question",
                f"the template writes the {turn.role} message where the answer is learned, not before it: "
                f"{excerpt(turn.content)}",
            )
