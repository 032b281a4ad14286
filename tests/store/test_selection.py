"""Which runs a person means by a name, a pattern or conditions, and many of them read at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_records import make_record, make_step, write_folder

from trueup.schema import Evaluation, InputError, Measurement, RunRecord
from trueup.store import Store
from trueup.store.selection import conditions_of


def add(home: Path, run_id: str, name: str, started: str, **recipe: Any) -> None:
    header = {
        "started_at": f"2026-11-{started}T10:00:00+00:00",
        "recipe": {"name": name, "model": {"path": "smollm2-135m"}, **recipe},
        "environment": {"device": {"kind": "cpu", "name": "some CPU"}, "world": {"size": 1}},
    }
    write_folder(home, *make_record(run_id, name, **header))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Four runs, the newest first in the alphabet."""
    add(tmp_path, "dddd0000", "demo", "01", tune={"rank": 4}, data={"source": "stdlib-docs"})
    add(tmp_path, "cccc0000", "demo-2", "02", tune={"rank": 16}, train={"stop": {"usd": None}})
    add(tmp_path, "bbbb0000", "Demo-3", "03", tune={"rank": 16, "dropout": 0.5})
    add(tmp_path, "aaaa0000", "x=1,[odd]*", "04", tune={"targets": ["q_proj", "k_proj"]})
    with Store.open(tmp_path) as opened:
        assert opened.sync() == []
        yield opened


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("last", ["aaaa0000"]),
        ("cccc0000", ["cccc0000"]),
        ("bb", ["bbbb0000"]),
        ("demo-2", ["cccc0000"]),
        ("demo*", ["dddd0000", "cccc0000"]),
        ("?emo-3", ["bbbb0000"]),
        ("x=1,[odd]*", ["aaaa0000"]),
        ("tune.rank=16", ["cccc0000", "bbbb0000"]),
        ("recipe.tune.rank=16", ["cccc0000", "bbbb0000"]),
        ("tune.rank>=4", ["dddd0000", "cccc0000", "bbbb0000"]),
        ("tune.rank=16,name~demo-2", ["cccc0000"]),
        ("name~demo", ["dddd0000", "cccc0000", "bbbb0000"]),
        ("name~*-3", ["bbbb0000"]),
        ("tune.rank!=16", ["dddd0000", "aaaa0000"]),
        ("tune.rank=none", ["aaaa0000"]),
        ("tune.targets=q_proj,k_proj", ["aaaa0000"]),
        ("tune.dropout=0.50", ["bbbb0000"]),
        ("platform=some CPU, tune.rank = 4", ["dddd0000"]),
        ("choices.device=cpu,started_at>2026-11-03", ["bbbb0000", "aaaa0000"]),
        ("environment.world.size=1,state=finished,tune.rank<16", ["dddd0000"]),
        ("price.usd_per_hour<1,data.source=stdlib-docs", ["dddd0000"]),
        ("data.source!=~/elsewhere,tune.rank=4", ["dddd0000"]),
    ],
)
def test_what_is_meant(store: Store, text: str, meant: list[str]) -> None:
    """Oldest first, whatever the ids' order."""
    assert store.meant_by(text) == meant


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("demi-*", r"no run has a name like 'demi-\*'"),
        ("tune.rank=99", "no run meets 'tune.rank=99'"),
        ("tune.rnk=16", "tune.rnk=16: no run has 'tune.rnk'; a key is one of id, kind, name"),
        ("dmeo", "there is no run 'dmeo'; did you mean demo"),
        ("tune.rank<<3", r"there is no operator '<<'; did you mean tune.rank<3\?"),
        ("tune.rank==16", r"there is no operator '=='; did you mean tune.rank=16\?"),
        ("name=demo,tune.rank>>=4", r"there is no operator '>>='; did you mean tune.rank>4\?"),
        ("tune.rank=>4", r"there is no operator '=>'; did you mean tune.rank>=4\?"),
        ("name=~demo", r"there is no operator '=~'; did you mean name~demo\?"),
        ("tune.rank<", "a value is expected after '<'"),
    ],
)
def test_what_means_no_run_is_refused(store: Store, text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        store.meant_by(text)


def test_a_name_of_several_runs_means_all_of_them(store: Store, tmp_path: Path) -> None:
    add(tmp_path, "eeee0000", "demo", "05")
    store.sync()
    assert store.meant_by("demo") == ["dddd0000", "eeee0000"]


def test_a_value_may_hold_commas_and_signs() -> None:
    (first, second) = conditions_of("data.source=a,b=c d.csv, tune.rank=4")[::2]
    assert str(first) == "data.source=a"
    assert str(second) == "tune.rank=4"
    assert conditions_of("a plain name, with a comma") == []


def test_the_list_can_be_of_some_runs_and_of_the_newest(store: Store) -> None:
    assert [run.id for run in store.runs(newest=2)] == ["aaaa0000", "bbbb0000"]
    assert [run.id for run in store.runs(among={"dddd0000", "cccc0000"}, newest=1)] == ["cccc0000"]
    assert store.runs(newest=1)[0].useful_tokens == 1000.0


def test_a_brief_has_what_was_asked_for_and_what_is_not_known(store: Store) -> None:
    (one,) = store.briefs(["cccc0000"], {"useful_tokens"}, known={"useful_tokens", "energy_j"})
    full = store.record("cccc0000")
    assert one.record.header == full.header
    assert one.record.evaluations == full.evaluations
    assert set(one.record.measurements) == set(full.measurements) - {"energy_j"}
    assert (one.record.steps, one.record.spans) == ((), ())


def test_briefs_come_in_the_order_asked_for(store: Store) -> None:
    ids = ["cccc0000", "aaaa0000", "dddd0000"]
    assert [one.record.header.id for one in store.briefs(ids, set(), set())] == ids


def evaluation(step: int) -> Evaluation:
    return Evaluation(
        step=step, at_s=1.0, split="validation", loss=1.0, perplexity=2.7, tokens=9, seconds=1.0, best=False
    )


def with_steps(numbers: list[int], *, skipped: int | None = None) -> RunRecord:
    record, _ = make_record()
    steps = tuple(make_step(number, skipped=index == skipped) for index, number in enumerate(numbers))
    return record.model_copy(update={"steps": steps, "evaluations": tuple(map(evaluation, (0, 2, 4)))})


@pytest.mark.parametrize(
    ("numbers", "skipped", "after"),
    [
        ([1, 2, 3, 4], None, {0: 0, 2: 1000, 4: 2000}),
        ([1, 2, 3, 2, 3, 4], None, {0: 0, 2: 1000, 4: 2000}),
        ([1, 2, 3, 4], 1, {0: 0, 2: 500, 4: 1500}),
        ([1, 2, 3], None, {0: 0, 2: 1000}),
    ],
    ids=["straight on", "back to a checkpoint", "a step left out", "not so far"],
)
def test_useful_tokens_are_known_at_each_evaluation(
    tmp_path: Path, numbers: list[int], skipped: int | None, after: dict[int, int]
) -> None:
    record = with_steps(numbers, skipped=skipped)
    write_folder(tmp_path, record, make_record()[1])
    with Store.open(tmp_path) as store:
        store.sync()
        (one,) = store.briefs([record.header.id], set(), set())
    assert one.tokens_after == after


def test_a_measurement_of_many_runs_is_each_its_own(tmp_path: Path) -> None:
    ids = [f"{number:08x}" for number in range(700)]
    record, segments = make_record(ids[0])
    with Store.open(tmp_path) as store:
        for number in (0, 699):
            mine = Measurement(value=float(number + 1), unit="tokens", kind="measured")
            write_folder(
                tmp_path,
                record.model_copy(
                    update={
                        "header": record.header.model_copy(update={"id": ids[number]}),
                        "measurements": {"useful_tokens": mine},
                    }
                ),
                segments,
            )
        store.sync()
        found = store.briefs([ids[699], ids[0]], {"useful_tokens"}, set())
    assert [one.record.measurements["useful_tokens"].value for one in found] == [700.0, 1.0]
