"""From a source to a prepared folder: shards of the work, then what needs all records at once, then the
files.

Shapes: N records, E examples (one a record, more where it was split)."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trueup.recipe.models import DataSection
from trueup.schema import InputError

from . import lengths
from .arrow_folder import FORMAT, FolderWriter
from .check import checked
from .clusters import Duplicates, find_duplicates
from .gathered import Gathered
from .records import Tally
from .shard_work import masked_by
from .shards import ShardTally
from .sources import Source
from .splits import SPLITS, TRAIN, assign, uniform
from .template import ChatTemplate
from .vocabulary import choose_pad
from .workers import make_shards

# Beside raising data.max_length, by data.overlong: what may still give an example.
_SHORTEN = "shorten what stands before the answers"
_OTHERWISE = {
    "drop": "set data.overlong to truncate or to split-sentence",
    "truncate": f"{_SHORTEN}: what is within the limit holds no part of one",
    "split-sentence": f"{_SHORTEN}: it leaves them less than a quarter of the limit",
    "split-token": f"{_SHORTEN}: it leaves them less than a quarter of the limit",
}

# By what most records were dropped for.
_ADVICE = {
    "personal_data": "Set data.redact.action to replace, or look for fewer kinds in data.redact.kinds.",
    "invalid_text": "Save the data as UTF-8.",
    "wrong_type": "Write numbers, lists and objects out as the text that is meant.",
    "role_order": "Let each conversation be an optional system turn, then user and assistant in turn.",
    "special_token_in_text": "Take the special tokens out of the texts: the chat template puts them in.",
    "unlearned_answer": "Nothing is marked to be learned.",
    "empty_question": "Give the records questions; answers to nothing are plain text, in the format text.",
    "": "Give the records answers in the fields of their format, or name another with data.format.",
}


def build(
    section: DataSection,
    source: Source,
    template: ChatTemplate,
    work: Path,
    target: Path,
    inputs: dict[str, Any],
    *,
    vocab_size: int | None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Prepare into `target` by way of `work`, going on from shards that are there; returns the manifest."""
    tally = Tally(masked=masked_by(section))
    records = checked(template, itertools.islice(source.records(tally), section.limit))
    count = make_shards(records, work, section, template.tokenizer, workers)
    gathered = Gathered(work, count, tally)
    if not len(gathered):
        raise InputError(_nothing_left(section, source, gathered.tally))
    duplicates = find_duplicates(gathered, section)
    codes_N, notes = _assign(gathered, duplicates, section)
    with FolderWriter(work / "folder", target) as writer:
        _copy_kept(gathered, duplicates.kept_N, writer)
        kept_N = duplicates.kept_N
        codes_E = np.repeat(codes_N[kept_N], gathered.examples_N[kept_N])
        manifest = {
            "format": FORMAT,
            "digest": target.name,
            "inputs": inputs,
            "settings": section.model_dump(mode="json", exclude={"source"}),
            "source_name": source.name,
            "format_found": source.found(),
            **_template_facts(template, inputs, vocab_size),
            "records_read": source.rows_read,
            "records": int(kept_N.sum()),
            **_counts(gathered.tally),
            "duplicates": duplicates.summary,
            "scripts": gathered.scripts(kept_N),
            **_statistics(writer, codes_E, section),
            "notes": [*source.notes, *template.notes, *notes, *duplicates.notes],
            "files": writer.finish(codes_E),
        }
        writer.commit(manifest)
    return manifest


def _assign(
    gathered: Gathered, duplicates: Duplicates, section: DataSection
) -> tuple[NDArray[np.int8], list[str]]:
    """Split codes of all records; the small-data rule looks at those that are kept."""
    points_N = uniform(gathered.hashes_N16)[duplicates.key_N]
    codes_N = np.full(len(points_N), TRAIN, dtype=np.int8)
    codes_N[duplicates.kept_N], notes = assign(points_N[duplicates.kept_N], section.split)
    return codes_N, notes


def _copy_kept(gathered: Gathered, kept_N: NDArray[np.bool_], writer: FolderWriter) -> None:
    at = 0
    for shard in gathered.shards():
        stop = at + shard.records.num_rows
        rows = np.repeat(kept_N[at:stop], gathered.examples_N[at:stop])
        writer.write(shard.examples if rows.all() else shard.examples.filter(pa.array(rows)))
        at = stop


def _template_facts(template: ChatTemplate, inputs: dict[str, Any], vocab_size: int | None) -> dict[str, Any]:
    return {
        "template": {
            "kind": "default" if template.is_default else "tokenizer",
            "sha256": inputs["template"],
            "text": template.text,
        },
        "end_ids": sorted(template.end_ids),
        "pad": asdict(choose_pad(template.tokenizer, template.end_ids, vocab_size)),
    }


def _counts(tally: ShardTally) -> dict[str, Any]:
    return {
        "dropped": dict(sorted(tally.dropped.items())),
        "changed": dict(sorted(tally.changed.items())),
        "first": dict(sorted(tally.first.items())),
        "redacted": dict(sorted(tally.redacted.items())),
    }


def _statistics(writer: FolderWriter, codes_E: NDArray[np.int8], section: DataSection) -> dict[str, Any]:
    lengths_E = np.asarray(writer.lengths, dtype=np.int32)
    supervised_E = np.asarray(writer.supervised, dtype=np.int32)
    supervised, total = int(supervised_E.sum(dtype=np.int64)), int(lengths_E.sum(dtype=np.int64))
    return {
        "examples": len(lengths_E),
        "splits": {name: int(np.sum(codes_E == code)) for code, name in enumerate(SPLITS)},
        "tokens": lengths.summary(lengths_E),
        "tokens_by_part": lengths.by_part(lengths_E, supervised_E) if section.loss_on == "answer" else None,
        "supervised_tokens": supervised,
        "supervised_share": round(supervised / total, 6),
        "length_histogram": [list(bin_) for bin_ in lengths.histogram(lengths_E)],
        "padding": lengths.padding(lengths_E[codes_E == TRAIN], section.max_length),
    }


def _nothing_left(section: DataSection, source: Source, tally: ShardTally) -> str:
    """Why a source gave no example at all, and what to change."""
    text = f"{section.source}: none of its {source.rows_read} records can be used ({tally.summary()})."
    if tally.dropped["too_long"] or tally.dropped["no_supervised_tokens"]:
        text += (
            f" The longest has {tally.longest} tokens, data.max_length is {section.max_length}: raise it "
            f"(and shapes.tokens_per_microbatch with it), or {_OTHERWISE[section.overlong]}."
        )
    else:
        most = next((reason for reason, _ in tally.dropped.most_common(1)), "")
        text += f" {_ADVICE.get(most, _ADVICE[''])}"
    shown = [f"{item['where']}: {item['what']}" for items in tally.first.values() for item in items[:1]]
    return " ".join([text, *(f"First: {line}." for line in shown[:3])])
