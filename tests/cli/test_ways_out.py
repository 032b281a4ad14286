"""What leaves by the command line: models with a card, tables of runs."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from in_process import Main, files_of, refused
from trueup.schema import Evaluation


def documented(main: Main, *arguments: str | Path) -> Any:
    done = main(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_every_export_is_read_back_and_has_a_card(main: Main, finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    ways: dict[str, tuple[str, list[str]]] = {
        "--adapter": ("a", []), "--merged": ("m", []), "--gguf": ("g.gguf", ["--type", "f32"])
    }  # fmt: skip
    for option, (name, more) in ways.items():
        out = tmp_path / "out" / name
        document = documented(main, "export", "last", option, out, *more)
        assert document["path"] == str(out)
        assert document["type"] == "f32"
        check = document["check"]
        assert 0 <= check["max_abs_difference"] <= check["tolerance"] == 1e-3
        card = Path(document["card"])
        assert card == (out / "README.md" if out.is_dir() else tmp_path / "out" / "g.README.md")
        text = card.read_text()
        assert f"run `{document['run']}`" in text
        assert str(finished) not in text
        assert str(tmp_path) not in text
    done = main("export", "last", "--adapter", tmp_path / "said")
    assert "read back by peft: logits of 128 tokens differ from the run's own by at most" in done.err


def test_reading_back_can_be_left_out(main: Main, finished: Path, tmp_path: Path) -> None:
    document = documented(main, "export", "last", "--adapter", tmp_path / "a", "--no-verify")
    assert document["check"] is None
    assert "not read back" in (tmp_path / "a" / "README.md").read_text()


def test_an_export_that_is_not_the_model_ends_with_1_and_leaves_nothing(
    main: Main, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trueup.model import export

    write = export._save_tensors
    monkeypatch.setattr(
        export, "_save_tensors", lambda tensors, path: write({k: t + 1 for k, t in tensors.items()}, path)
    )
    refused(main("export", "last", "--adapter", tmp_path / "out" / "a"), 1, "not the run's model", "removed")
    assert files_of(tmp_path / "out") == set()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "give one of"),
        (["--adapter", "a", "--gguf", "g"], "give one of"),
        (["--merged", "m", "--type", "f16"], "--type is of a GGUF file"),
    ],
)
def test_targets_that_do_not_fit_are_refused(main: Main, arguments: list[str], part: str) -> None:
    refused(main("export", "last", *arguments), 2, part)


def test_tables_of_runs(main: Main, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.csv"
    document = documented(main, "runs", "export", "--format", "csv", "-o", out)
    assert document["what"] == "measurements"
    assert document["bytes"] == out.stat().st_size
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert document["rows"] == len(rows) > 60
    shown = documented(main, "runs", "show", "last")["measurements"]
    assert {row["measurement"] for row in rows} == set(shown)
    for row in rows:
        assert row["run"] == document["runs"][0]
        assert row["kind"] == shown[row["measurement"]]["kind"]
        assert (float(row["value"]) if row["value"] else None) == shown[row["measurement"]]["value"]
    steps = documented(
        main, "runs", "export", "tiny", "--format", "json", "--what", "steps", "-o", tmp_path / "s"
    )
    assert steps["rows"] == 4
    assert [one["step"] for one in json.loads((tmp_path / "s").read_text())] == [1, 2, 3, 4]


def test_a_zip_is_of_one_run_and_has_no_rows(main: Main, finished: Path, tmp_path: Path) -> None:
    refused(main("runs", "export", "-o", tmp_path / "x"), 2, "a zip holds one run, not 0")
    refused(main("runs", "export", "last", "tiny", "-o", tmp_path / "x"), 2, "not 2")
    refused(main("runs", "export", "last", "--what", "steps", "-o", tmp_path / "x"), 2, "--what chooses")
    assert set(documented(main, "runs", "export", "last", "-o", tmp_path / "x")) == {"run", "path", "bytes"}


def test_a_loss_that_is_not_a_number_can_be_shown(main: Main, finished: Path) -> None:
    """JSON has no NaN: the documents say "NaN", as docs/json.md promises."""
    (folder,) = (finished / "runs").iterdir()
    diverged = Evaluation(
        step=9, at_s=1.0, split="validation", loss=math.nan, perplexity=math.inf, tokens=5, seconds=0.1,
        best=False,
    )  # fmt: skip
    with (folder / "evaluations.jsonl").open("a") as file:
        file.write(diverged.model_dump_json() + "\n")
    (folder / "events.jsonl").touch()  # the folder has changed: it is read again
    (*_, last) = documented(main, "runs", "show", "last")["evaluations"]
    assert (last["loss"], last["perplexity"]) == ("NaN", "Infinity")
