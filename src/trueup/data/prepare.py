"""From records to prepared data: read, render, tokenise, split, write; or find what an earlier call wrote."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trueup.recipe.models import DataSection
from trueup.schema import DatasetFacts, InputError

from . import lengths
from .arrow_folder import FORMAT, FolderWriter, read_manifest
from .check import checked
from .records import Record, RowError, Tally, excerpt
from .sources import Source, open_source
from .splits import SPLITS, assign
from .table import ExampleFile, TokenTable
from .template import ChatTemplate, Encoded, Rendered
from .vocabulary import Pad, Tokenizer, check_vocabulary, choose_pad, tokenizer_digest

ENCODE_RECORDS = 256  # tokenised together


@dataclass(frozen=True)
class Prepared:
    """A prepared data set. `messages` are for a person: a rebuilt cache, the default template, a moved
    record."""

    folder: Path
    manifest: dict[str, Any]
    cache_hit: bool
    messages: tuple[str, ...]
    source: str
    _file: ExampleFile = field(repr=False)

    @property
    def digest(self) -> str:
        return str(self.manifest["digest"])

    @property
    def pad(self) -> Pad:
        return Pad(**self.manifest["pad"])

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens at which an answer is over."""
        return frozenset(self.manifest["end_ids"])

    @property
    def template(self) -> str:
        """The chat template used: the tokenizer's own, or the default to save with an exported tokenizer."""
        return str(self.manifest["template"]["text"])

    @property
    def facts(self) -> DatasetFacts:
        found = self.manifest
        return DatasetFacts(
            digest=self.digest,
            source=self.source,
            records=found["records"],
            splits=found["splits"],
            dropped=found["dropped"],
            tokens=found["tokens"],
            length_histogram=[(start, stop, count) for start, stop, count in found["length_histogram"]],
        )

    def split(self, name: str) -> TokenTable:
        """The examples of 'train', 'validation' or 'test'."""
        return TokenTable(self._file, SPLITS.index(name))

    def report(self) -> dict[str, Any]:
        """What `trueup prepare --json` prints. `redacted` stays empty until redaction exists."""
        found = self.manifest
        return {
            "dataset": self.digest,
            "source": self.source,
            "folder": str(self.folder),
            "records": found["records"],
            "records_read": found["records_read"],
            "splits": found["splits"],
            "dropped": found["dropped"],
            "changed": found["changed"],
            "first": found["first"],
            "redacted": {},
            "tokens": found["tokens"],
            "supervised_tokens": found["supervised_tokens"],
            "length_histogram": found["length_histogram"],
            "format": found["format_found"],
            "template": {key: found["template"][key] for key in ("kind", "sha256")},
            "pad": found["pad"],
            "end_ids": found["end_ids"],
            "settings": found["settings"],
            "messages": list(self.messages),
            "cache_hit": self.cache_hit,
        }


def prepare(
    section: DataSection, tokenizer: Tokenizer, data_home: Path, *, vocab_size: int | None = None
) -> Prepared:
    """Prepare the data a section names under `data_home`/DIGEST, or reuse it when the same source content,
    tokenizer, template and settings were prepared before. `vocab_size` is the model's number of embedding
    rows.

    Raises InputError for what the person can mend (missing, unreadable or empty source, unknown format,
    strict mode's first bad row, nothing left after drops, a vocabulary larger than the model's, a read-only
    home) and StorageError when the disk is full; nothing half-written stays behind."""
    if vocab_size is not None:
        check_vocabulary(tokenizer, vocab_size)
    source = open_source(section)
    template = ChatTemplate(tokenizer)
    inputs = _inputs(section, source, template, vocab_size)
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    folder = data_home / digest
    manifest, damage = read_manifest(folder)
    messages = [f"the prepared data in {folder} was damaged ({damage}); prepared again"] if damage else []
    cache_hit = manifest is not None
    if manifest is None:
        with FolderWriter(folder) as writer:
            manifest = _build(section, source, template, writer, digest, inputs, vocab_size)
            writer.commit(manifest)
    return Prepared(
        folder=folder,
        manifest=manifest,
        cache_hit=cache_hit,
        messages=(*messages, *manifest["notes"]),
        source=section.source,
        _file=ExampleFile(folder),
    )


def _inputs(
    section: DataSection, source: Source, template: ChatTemplate, vocab_size: int | None
) -> dict[str, Any]:
    """Everything the result depends on. The source counts by content, not by its name."""
    return {
        "format": FORMAT,
        "source": source.digest,
        "tokenizer": tokenizer_digest(template.tokenizer),
        "template": hashlib.sha256(template.text.encode()).hexdigest(),
        "settings": section.model_dump(mode="json", exclude={"source"}),
        "vocab_size": vocab_size,
    }


def _build(
    section: DataSection,
    source: Source,
    template: ChatTemplate,
    writer: FolderWriter,
    digest: str,
    inputs: dict[str, Any],
    vocab_size: int | None,
) -> dict[str, Any]:
    tally = Tally()
    longest = 0
    for record, example in _examples(section, source, template, tally):
        longest = max(longest, len(example.tokens_T))
        kept = _fit(example, record, section, tally)
        if kept is not None:
            writer.add(kept.tokens_T, kept.loss_T, record.content_hash())
    if not writer.lengths:
        raise InputError(_nothing_left(section, source, tally, longest))
    codes_N, notes = assign(writer.hashes, section.split)
    lengths_N = np.asarray(writer.lengths, dtype=np.int32)
    return {
        "format": FORMAT,
        "digest": digest,
        "inputs": inputs,
        "settings": section.model_dump(mode="json", exclude={"source"}),
        "source_name": source.name,
        "format_found": source.found(),
        "template": {
            "kind": "default" if template.is_default else "tokenizer",
            "sha256": inputs["template"],
            "text": template.text,
        },
        "end_ids": sorted(template.end_ids),
        "pad": asdict(choose_pad(template.tokenizer, template.end_ids, vocab_size)),
        "records_read": source.rows_read,
        "records": len(lengths_N),
        "splits": {name: int(np.sum(codes_N == code)) for code, name in enumerate(SPLITS)},
        "dropped": dict(sorted(tally.dropped.items())),
        "changed": dict(sorted(tally.changed.items())),
        "first": tally.first,
        "tokens": lengths.summary(lengths_N),
        "supervised_tokens": sum(writer.supervised),
        "length_histogram": [list(bin_) for bin_ in lengths.histogram(lengths_N)],
        "notes": [*source.notes, *template.notes, *notes],
        "files": writer.finish(codes_N),
    }


def _examples(
    section: DataSection, source: Source, template: ChatTemplate, tally: Tally
) -> Iterator[tuple[Record, Encoded]]:
    records = itertools.islice(source.records(tally), section.limit)
    for batch in _batched(checked(template, records), ENCODE_RECORDS):
        usable: list[Record] = []
        rendered: list[Rendered] = []
        for record in batch:
            try:
                rendered.append(template.render(record))
                usable.append(record)
            except RowError as error:
                tally.drop(error.reason, record.origin, str(error))
        yield from zip(usable, template.encode(rendered, section.loss_on), strict=True)


def _fit(example: Encoded, record: Record, section: DataSection, tally: Tally) -> Encoded | None:
    """The example within max_length, or None where it is dropped; both counted."""
    tokens_T, loss_T = example.tokens_T, example.loss_T
    over = len(tokens_T) > section.max_length
    size = f"{len(tokens_T)} tokens, the limit is {section.max_length}"
    if over and section.overlong == "drop":
        tally.drop("too_long", record.origin, f"{size}: {excerpt(record.turns[0].content)}")
        return None
    if over:
        tokens_T, loss_T = tokens_T[: section.max_length], loss_T[: section.max_length]
    if not loss_T.any():
        tally.drop("no_supervised_tokens", record.origin, f"no part of an answer is within the limit: {size}")
        return None
    if over:
        tally.change("truncated", record.origin, size)
    for change in example.changes:
        tally.change(change, record.origin, excerpt(record.turns[-1].content))
    return Encoded(tokens_T, loss_T, example.changes)


def _nothing_left(section: DataSection, source: Source, tally: Tally, longest: int) -> str:
    """Why a source gave no example at all, and what to change."""
    text = f"{section.source}: none of its {source.rows_read} records can be used ({tally.summary()})."
    if tally.dropped["too_long"] or tally.dropped["no_supervised_tokens"]:
        text += (
            f" The longest has {longest} tokens, data.max_length is {section.max_length}: raise it (and "
            "shapes.tokens_per_microbatch with it), or set data.overlong to truncate."
        )
    else:
        text += " Give the records answers in the fields of their format, or name another with data.format."
    shown = [f"{item['where']}: {item['what']}" for items in tally.first.values() for item in items[:1]]
    return " ".join([text, *(f"First: {line}." for line in shown[:3])])


def _batched(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    stream = iter(records)
    while batch := list(itertools.islice(stream, size)):
        yield batch
