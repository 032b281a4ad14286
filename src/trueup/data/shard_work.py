"""The work on one stretch of records: redact, render, tokenise, fit to the limit, and sign.

It depends on nothing but the section, the tokenizer and the records, so that it is the same in whichever
process it is done."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trueup.recipe.models import DataSection

from .arrow_folder import example_batch
from .duplicates import signature, word_pairs
from .overlong import Frame, Piece, sentence_ends, split_example
from .records import Record, RowError, Turn, excerpt
from .scripts import script_of
from .shards import RECORDS, Shard, ShardTally
from .template import ChatTemplate, Encoded, Rendered
from .vocabulary import Tokenizer

if TYPE_CHECKING:
    from .redact import Redactor

_LINE_PIECE = re.compile(r"(the line ends:|it begins:)")  # what containers.py says before it quotes a line
_NOT_SHOWN = "(not shown, since personal data could be in it)"
_SHOWN_BEFORE = 60  # characters before the first piece of personal data that was replaced


def masked_by(section: DataSection) -> Callable[[str], str]:
    """What a message about a row that was never redacted goes through before it is kept: rows that cannot be
    read hold personal data too. A piece of a row is not repeated, since half a card number or the end of a
    key is not found in it; nor is a line that is not JSON, where escapes hide what it says."""
    if not section.redact.kinds:
        return str
    from .redact import Kind, Redactor

    redactor = Redactor(frozenset(Kind(kind) for kind in section.redact.kinds))
    return lambda message: redactor.redact(_without_pieces(message)).text


def _without_pieces(message: str) -> str:
    line = _LINE_PIECE.search(message)
    if line:
        return f"{message[: line.end()]} {_NOT_SHOWN}"
    if "…" not in message:
        return message
    said, colon, _ = message.partition(": ")
    return f"{said}: {_NOT_SHOWN}" if colon and "…" not in said else _NOT_SHOWN


class ShardMaker:
    """Makes shards with one section and tokenizer. Raises InputError as ChatTemplate does."""

    def __init__(self, section: DataSection, tokenizer: Tokenizer) -> None:
        self._section = section
        self._template = ChatTemplate(tokenizer)
        self._redactor: Redactor | None = None
        if section.redact.kinds:
            from .redact import Kind, Redactor

            self._redactor = Redactor(frozenset(Kind(kind) for kind in section.redact.kinds))
        self._sentence_end: Callable[[NDArray[np.int32], int], bool] | None = None
        if section.overlong == "split-sentence":
            self._sentence_end = sentence_ends(
                lambda ids: str(
                    tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
                )
            )

    def make(self, records: Sequence[Record]) -> Shard:
        tally = ShardTally()
        kept: list[Record] = []
        pieces: list[list[Piece]] = []
        for record, rendered, example in self._encoded(records, tally):
            tally.longest = max(tally.longest, len(example.tokens_T))
            try:
                fitting = self._fit(record, rendered, example, tally)
            except RowError as error:
                tally.drop(error.reason, record.origin, str(error))
                continue
            for change in example.changes:
                tally.change(change, record.origin, excerpt(record.turns[-1].content))
            kept.append(record)
            pieces.append(fitting)
        hashes = [record.content_hash() for record in kept]
        rows = [
            (tokens_T, loss_T, content_hash)
            for content_hash, several in zip(hashes, pieces, strict=True)
            for tokens_T, loss_T in several
        ]
        return Shard(example_batch(rows), self._record_batch(kept, hashes, pieces), tally.as_dict())

    def _encoded(
        self, records: Sequence[Record], tally: ShardTally
    ) -> list[tuple[Record, Rendered, Encoded]]:
        usable: list[Record] = []
        rendered: list[Rendered] = []
        for record in records:
            try:
                clean = record if self._redactor is None else self._redacted(record, self._redactor, tally)
                rendered.append(self._template.render(clean))
                usable.append(clean)
            except RowError as error:
                tally.drop(error.reason, record.origin, str(error))
        encoded = self._template.encode(rendered, self._section.loss_on)
        return list(zip(usable, rendered, encoded, strict=True))

    def _redacted(self, record: Record, redactor: Redactor, tally: ShardTally) -> Record:
        """The record with its personal data replaced; every find of it is shown, masked. Raises RowError
        (personal_data) where such records are dropped."""
        turns: list[Turn] = []
        finds: list[str] = []
        around = ""
        for turn in record.turns:
            result = redactor.redact(turn.content)
            turns.append(Turn(turn.role, result.text))
            tally.redacted.update(str(found.kind) for found in result.found)
            if result.found and not finds:
                around = excerpt(result.text[max(0, result.found[0].start - _SHOWN_BEFORE) :])
            finds += [found.shown for found in result.found]
        if not finds:
            return record
        shown = f"{excerpt(', '.join(finds))}: {around}"
        if self._section.redact.action == "drop":
            raise RowError("personal_data", shown)
        tally.change("personal_data_replaced", record.origin, shown)
        return Record(tuple(turns), record.origin)

    def _fit(self, record: Record, rendered: Rendered, example: Encoded, tally: ShardTally) -> list[Piece]:
        """What is kept of an example within max_length. Raises RowError where that is nothing."""
        limit, how = self._section.max_length, self._section.overlong
        tokens_T, loss_T = example.tokens_T, example.loss_T
        size = f"{len(tokens_T)} tokens, the limit is {limit}"
        if len(tokens_T) > limit and how in ("split-sentence", "split-token"):
            return self._split(record, rendered, example, tally)
        if len(tokens_T) > limit and how == "drop":
            raise RowError("too_long", f"{size}: {excerpt(record.turns[0].content)}")
        if not loss_T[:limit].any():
            raise RowError("no_supervised_tokens", f"no part of an answer is within the limit: {size}")
        if len(tokens_T) > limit:
            tally.change("truncated", record.origin, size)
        return [(tokens_T[:limit], loss_T[:limit])]

    def _split(self, record: Record, rendered: Rendered, example: Encoded, tally: ShardTally) -> list[Piece]:
        limit = self._section.max_length
        if record.is_text:
            frame: Frame | None = Frame.of_text(limit)
        else:
            answers = example
            if self._section.loss_on == "all":
                (answers,) = self._template.encode([rendered], "answer")
            frame = Frame.of_answer(answers.loss_T, limit)
        if frame is None:
            raise RowError(
                "too_long",
                f"{len(example.tokens_T)} tokens, and what is before the last answer leaves less than a "
                f"quarter of the limit of {limit}: {excerpt(record.turns[0].content)}",
            )
        pieces = split_example(example.tokens_T, example.loss_T, frame, self._sentence_end)
        for n, (tokens_T, _) in enumerate(pieces, start=1):
            tally.change("split_piece", record.origin, f"piece {n} of {len(pieces)}: {len(tokens_T)} tokens")
        return pieces

    def _record_batch(
        self, records: Sequence[Record], hashes: Sequence[bytes], pieces: Sequence[Sequence[Piece]]
    ) -> pa.RecordBatch:
        pairs: list[Any] = [np.zeros(0, dtype=np.uint32)] * len(records)
        signatures = pairs
        if self._section.duplicates.near != "ignore":
            pairs = [word_pairs(record) for record in records]
            signatures = [signature(pairs_W) for pairs_W in pairs]
        columns = [
            pa.array(hashes, pa.binary(16)),
            pa.array([record.origin for record in records], pa.string()),
            pa.array([excerpt(record.turns[0].content) for record in records], pa.string()),
            pa.array([len(several) for several in pieces], pa.int32()),
            pa.array([script_of(record) for record in records], pa.string()),
            pa.array(pairs, pa.list_(pa.uint32())),
            pa.array(signatures, pa.list_(pa.uint32())),
        ]
        return pa.record_batch(columns, schema=RECORDS)
