"""From records to prepared data: read, render, tokenise, split, write; or find what an earlier call wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trueup.recipe.models import DataSection
from trueup.schema import DatasetFacts

from .arrow_folder import FORMAT, read_manifest
from .building import build
from .held_out import doubts_of
from .sources import Source, open_source
from .splits import SPLITS, VALIDATION
from .table import ExampleFile, TokenTable
from .template import ChatTemplate
from .vocabulary import Pad, Tokenizer, check_vocabulary, tokenizer_digest
from .work_folder import sweep, work_folder


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
        """What `trueup prepare --json` prints."""
        found = self.manifest
        return {
            "dataset": self.digest,
            "source": self.source,
            "folder": str(self.folder),
            "records": found["records"],
            "examples": found["examples"],
            "records_read": found["records_read"],
            "splits": found["splits"],
            "dropped": found["dropped"],
            "changed": found["changed"],
            "first": found["first"],
            "redacted": found["redacted"],
            "duplicates": found["duplicates"],
            "scripts": found["scripts"],
            "tokens": found["tokens"],
            "tokens_by_part": found["tokens_by_part"],
            "supervised_tokens": found["supervised_tokens"],
            "supervised_share": found["supervised_share"],
            "padding": found["padding"],
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
    section: DataSection,
    tokenizer: Tokenizer,
    data_home: Path,
    *,
    vocab_size: int | None = None,
    workers: int | None = None,
) -> Prepared:
    """Prepare the data a section names under `data_home`/DIGEST, or reuse it when the same source content,
    tokenizer, template and settings were prepared before. What a killed call had finished is gone on from,
    and a call that finds another at the same work waits for it. `vocab_size` is the model's number of
    embedding rows; `workers` the number of processes (None: what the machine and the data call for).

    Raises InputError for what the person can mend (missing, unreadable or empty source, unknown format,
    strict mode's first bad row, nothing left after drops, a vocabulary larger than the model's, a read-only
    home) and StorageError when the disk is full; nothing stays behind then."""
    if vocab_size is not None:
        check_vocabulary(tokenizer, vocab_size)
    source = open_source(section)
    template = ChatTemplate(tokenizer)
    inputs = _inputs(section, source, template, vocab_size)
    folder = data_home / _digest_of(inputs)
    manifest, damage = read_manifest(folder)
    messages = [f"the prepared data in {folder} was damaged ({damage}); prepared again"] if damage else []
    cache_hit = manifest is not None
    if manifest is None:
        with work_folder(folder) as work:
            manifest, _ = read_manifest(folder)  # another process may have put it there meanwhile
            cache_hit = manifest is not None
            if manifest is None:
                manifest = build(
                    *(section, source, template, work, folder, inputs), vocab_size=vocab_size, workers=workers
                )
        sweep(data_home)
    file = ExampleFile(folder)
    return Prepared(
        folder=folder,
        manifest=manifest,
        cache_hit=cache_hit,
        messages=(*messages, *manifest["notes"], *_doubts(manifest, file, section)),
        source=section.source,
        _file=file,
    )


def _doubts(manifest: dict[str, Any], file: ExampleFile, section: DataSection) -> Iterator[str]:
    supervised = TokenTable(file, VALIDATION).supervised
    return doubts_of(manifest["splits"], int(supervised.sum(dtype="int64")), section.split)


def find_prepared(
    section: DataSection, tokenizer: Tokenizer, data_home: Path, *, vocab_size: int | None = None
) -> Prepared | None:
    """The data as an earlier call prepared it; None where none has, and nothing is prepared. Raises as
    `prepare` does for a source that cannot be read."""
    source = open_source(section)
    inputs = _inputs(section, source, ChatTemplate(tokenizer), vocab_size)
    folder = data_home / _digest_of(inputs)
    manifest, _ = read_manifest(folder)
    if manifest is None:
        return None
    return Prepared(folder, manifest, True, (), section.source, ExampleFile(folder))


def digest_now(section: DataSection, tokenizer: Tokenizer, *, vocab_size: int | None = None) -> str:
    """The digest that the data would have if they were prepared now; nothing is prepared. Raises as
    `prepare` does for a source that cannot be read."""
    return _digest_of(_inputs(section, open_source(section), ChatTemplate(tokenizer), vocab_size))


def _digest_of(inputs: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def _inputs(
    section: DataSection, source: Source, template: ChatTemplate, vocab_size: int | None
) -> dict[str, Any]:
    """Everything the result depends on. The source counts by content, not by its name."""
    inputs = {
        "format": FORMAT,
        "source": source.digest,
        "tokenizer": tokenizer_digest(template.tokenizer),
        "template": hashlib.sha256(template.text.encode()).hexdigest(),
        "settings": section.model_dump(mode="json", exclude={"source"}),
        "vocab_size": vocab_size,
    }
    if section.redact.kinds:
        from . import redact

        inputs["redaction"] = redact.rules_digest()
    return inputs
