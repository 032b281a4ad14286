"""What holds of every prepared data set, whatever is in it."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_samples import TOKENIZER, prepared, row

from trueup.data import JobData, Planner, Prepared, prepare
from trueup.data.records import Record, Turn
from trueup.data.scripts import SCRIPTS, script_of
from trueup.data.splits import SPLITS
from trueup.recipe.models import DataSection, ShapesSection

END = "<|im_end|>"
# No half surrogates, no NUL, and no '<', which could spell a special token.
TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0<"), min_size=1, max_size=60
).filter(lambda text: bool(text.strip()))
CONVERSATIONS = st.lists(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3), min_size=1, max_size=12)
SETTINGS = st.fixed_dictionaries(
    {
        "max_length": st.sampled_from([40, 100, 4000]),
        "overlong": st.sampled_from(["drop", "truncate", "split-sentence", "split-token"]),
        "duplicates": st.fixed_dictionaries(
            {"exact": st.sampled_from(["keep", "drop"]), "near": st.sampled_from(["keep", "ignore"])}
        ),
    }
)


def messages(conversation: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "messages": [
            {"role": role, "content": text}
            for pair in conversation
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
    }


def prepared_from(folder: Path, conversations: list[list[tuple[str, str]]], **settings: Any) -> Prepared:
    source = folder / "in.jsonl"
    filler = [[(f"Fill {n}", f"in {n}")] for n in range(3)]  # so that something is left after drops
    lines = [json.dumps(messages(one)) for one in [*filler, *conversations]]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return prepare(DataSection(source=str(source), **settings), TOKENIZER, folder / "data")


def examples(found: Prepared) -> list[tuple[np.ndarray, np.ndarray]]:
    tables = [found.split(name) for name in SPLITS]
    return [table.example(i) for table in tables for i in range(len(table))]


@settings(max_examples=25, deadline=None)
@given(CONVERSATIONS, SETTINGS)
def test_the_counts_are_those_of_a_recount(
    conversations: list[list[tuple[str, str]]], how: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = prepared_from(Path(folder), conversations, **how)
        report, all_of_them = found.report(), examples(found)
        lengths = [len(tokens) for tokens, _ in all_of_them]
        assert report["examples"] == len(all_of_them) == sum(report["splits"].values())
        assert report["records"] + sum(report["dropped"].values()) == report["records_read"]
        assert report["tokens"]["total"] == sum(lengths)
        assert report["tokens"]["max"] == max(lengths) <= how["max_length"]
        learned = sum(int(loss.sum()) for _, loss in all_of_them)
        assert report["supervised_tokens"] == report["tokens_by_part"]["answer"]["total"] == learned
        assert report["tokens_by_part"]["prompt"]["total"] == sum(lengths) - learned
        assert report["supervised_share"] == pytest.approx(learned / sum(lengths), abs=1e-6)
        assert sum(report["scripts"].values()) == report["records"]
        assert sum(count for *_, count in report["length_histogram"]) == len(lengths)


@settings(max_examples=25, deadline=None)
@given(CONVERSATIONS, SETTINGS)
def test_what_is_learned_is_the_answers_and_nothing_else(
    conversations: list[list[tuple[str, str]]], how: dict[str, Any]
) -> None:
    """Whole records decode to their answers; pieces to pieces of them, and all pieces together to all."""
    with tempfile.TemporaryDirectory() as folder:
        found = prepared_from(Path(folder), conversations, **how)
        whole = Counter("".join(answer + END for _, answer in one) for one in conversations)
        whole.update(f"in {n}{END}" for n in range(3))
        ids = [[int(token) for token in tokens[loss]] for tokens, loss in examples(found)]
        assert all(ids)
        cut = found.report()["changed"].keys() & {"truncated", "split_piece"}
        for learned in ids:
            text = TOKENIZER.decode(learned)
            if not cut:
                assert text in whole
            parts = [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in whole]
            assert any(contains(part, learned) for part in parts)


def contains(whole: list[int], part: list[int]) -> bool:
    """Whether `part` stands in `whole` in one piece."""
    return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))


@settings(max_examples=10, deadline=None)
@given(CONVERSATIONS, SETTINGS)
def test_the_same_data_gives_the_same_bytes(
    conversations: list[list[tuple[str, str]]], how: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first, second = (prepared_from(Path(folder), conversations, **how) for folder in (one, other))
        for path in first.folder.iterdir():
            assert path.read_bytes() == (second.folder / path.name).read_bytes()


def test_the_padding_is_that_of_the_plans(tmp_path: Path) -> None:
    found = prepared(tmp_path, [row(n, words=n % 30 + 1) for n in range(300)], max_length=256)
    padding = found.report()["padding"]
    lengths = found.split("train").lengths
    plan = Planner(
        JobData(lengths, lengths, lengths[:0]),
        ShapesSection(tokens_per_microbatch=256),
        tokens_per_step=256,
        job_tokens=sum(lengths),
        chunk_rows=1,
    ).plan()
    shares = {one.strategy: one.padding_share for one in plan.alternatives}
    for strategy in ("pack", "bucket"):
        assert padding[strategy] == pytest.approx(shares[strategy], abs=1e-6)
    assert (padding["examples"], padding["tokens_per_microbatch"]) == (len(lengths), 256)
    assert 0 < padding["pack"] < padding["bucket"]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("A naïve café", "Latin"),
        ("Všechno je v pořádku", "Latin"),
        ("Всё хорошо", "Cyrillic"),
        ("请把报告交给财务部门", "Han"),
        ("報告を経理部に出してください", "Japanese"),
        ("カタカナ", "Japanese"),
        ("모두 괜찮아요", "Hangul"),
        ("كل شيء على ما يرام", "Arabic"),
        ("הכל בסדר", "Hebrew"),
        ("सब ठीक है", "Indic"),
        ("ทุกอย่างเรียบร้อย", "Thai"),
        ("1 + 1 = 2", "none"),
        ("🙂 → ±", "none"),
        ("Use `pip install` 请先安装依赖项目然后运行程序并检查输出结果是否正确", "Han"),
    ],
)
def test_the_script_is_that_of_most_letters(text: str, script: str) -> None:
    assert script in SCRIPTS
    assert script_of(Record((Turn("text", text),), "made up")) == script
