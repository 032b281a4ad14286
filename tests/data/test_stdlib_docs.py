"""The built-in source: as many records as promised, the same every time, no trace of the harvest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trueup.data import stdlib_docs, stdlib_harvest
from trueup.schema import TrueupError


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    return {record.turns[0].content: record.turns[1].content for record in stdlib_docs.records()}


def test_about_3100_records_each_question_and_answer_once(answers: dict[str, str]) -> None:
    records = stdlib_docs.records()
    assert 2800 <= len(records) <= 3500
    assert len(answers) == len(records)
    assert len(set(answers.values())) == len(records)


def test_known_entries(answers: dict[str, str]) -> None:
    assert answers["What does `itertools.chain.from_iterable` do?"].startswith(
        "Alternative chain() constructor"
    )
    assert answers["What is the module `json` for?"].startswith("JSON (JavaScript Object Notation)")
    assert answers["What does `itertools.groupby` do?"].startswith(
        "make an iterator that returns consecutive keys"
    )
    assert answers["What does `os.path.join` do?"].startswith("Join two or more pathname components")
    assert answers["What does `heapq.heappush` do?"] == "Push item onto heap, maintaining the heap invariant."
    assert "What does `len` do?" in answers


def test_nothing_private_skipped_or_changing_is_read(answers: dict[str, str]) -> None:
    names = [question.split("`")[1] for question in answers]
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]
    left_out = stdlib_harvest.SKIPPED.keys() | stdlib_harvest.REMOVED_LATER
    assert not [name for name in names if name.split(".")[0] in left_out]
    assert not [text for text in answers.values() if " at 0x" in text]


def test_the_same_whatever_the_parent_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = stdlib_docs.records()
    modules = set(sys.modules)
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHASHSEED": "7",
        "PYTHONOPTIMIZE": "2",
        "LANG": "C",
    }.items():
        monkeypatch.setenv(name, value)
    assert stdlib_docs.records() == before
    assert set(sys.modules) - modules == set()
    assert sorted(os.listdir(tmp_path)) == ["json.py"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "attempt",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "open('left-behind', 'w')",
        "import os; os.open('left-behind', os.O_CREAT | os.O_WRONLY)",
        "import os; os.mkdir('left-behind')",
    ],
)
def test_an_import_with_side_effects_is_refused(attempt: str, tmp_path: Path) -> None:
    folder = Path(stdlib_harvest.__file__).parent
    script = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "import stdlib_harvest\nsys.addaudithook(stdlib_harvest.refuse_side_effects)\n"
        f"try:\n    {attempt}\nexcept PermissionError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert "refused while reading docstrings" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_module_that_exits_or_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "leaves_at_once.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded, failed = stdlib_harvest.import_modules(["json", "leaves_at_once", "no_such_module"])
    assert list(loaded) == ["json"]
    assert failed["leaves_at_once"] == "SystemExit: 3"
    assert failed["no_such_module"].startswith("ModuleNotFoundError")


def test_a_child_that_fails_is_an_error_that_says_how_to_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "harvest.py"
    broken.write_text("print('no json')")
    monkeypatch.setattr(stdlib_docs, "_HARVEST", broken)
    with pytest.raises(TrueupError, match=r"To see why, run: .*harvest\.py"):
        stdlib_docs.records()
