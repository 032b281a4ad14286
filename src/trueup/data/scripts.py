"""The writing systems of records: a rough answer to which languages a data set holds.

Letters are counted by Unicode block and a record goes under the script that most of its letters have.
Chinese and Japanese share characters: a record with kana in at least one of twenty letters of either is
Japanese. Languages of one script (English, Czech) are not told apart."""

from __future__ import annotations

import re

from .records import Record

_BLOCKS = {
    "Latin": "A-Za-zªºÀ-ÖØ-öø-ʯḀ-ỿ",
    "Greek": "Ͱ-Ͽἀ-῿",
    "Cyrillic": "Ѐ-ԯ",
    "Armenian": "\u0530-\u058f",
    "Hebrew": "\u0590-\u05ff",
    "Arabic": "\u0600-\u06ff\u0750-\u077f",
    "Indic": "\u0900-\u0dff",
    "Thai": "\u0e00-\u0e7f",
    "Georgian": "\u10a0-\u10ff",
    "Hangul": "\u1100-\u11ff\uac00-\ud7af",
    "Kana": "\u3040-\u30ff",
    "Han": "\u3400-\u4dbf\u4e00-\u9fff",
}
SCRIPTS = (*(name for name in _BLOCKS if name != "Kana"), "Japanese", "none")
_LETTERS = {name: re.compile(f"[{block}]+") for name, block in _BLOCKS.items()}
_KANA_SHARE = 0.05
_READ_CHARACTERS = 20_000


def script_of(record: Record) -> str:
    """One of SCRIPTS; 'none' for a record without letters of any of them."""
    text = "\n".join(turn.content for turn in record.turns)[:_READ_CHARACTERS]
    if text.isascii():
        return "Latin" if _LETTERS["Latin"].search(text) else "none"
    counts = {name: sum(map(len, letters.findall(text))) for name, letters in _LETTERS.items()}
    kana, han = counts.pop("Kana"), counts["Han"]
    if kana and kana >= _KANA_SHARE * (kana + han):
        counts["Japanese"] = kana + counts.pop("Han")
    script = max(counts, key=lambda name: counts[name])
    return script if counts[script] else "none"
