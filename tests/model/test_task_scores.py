"""Published questions through the quality gate: both models' scores with intervals, and what int8 loses."""

from __future__ import annotations

from pathlib import Path

import pytest
from docstring_rows import HELD_OUT, rows

from demo_model import demo_model
from trueup.analysis.quality_gate import Judged, judge
from trueup.model.builtin import ResolvedModel
from trueup.model.quality import HeldOut, observe
from trueup.model.quality_tasks import Task, read_task
from trueup.model.quantize import Wanted
from trueup.model.quantize_folder import quantise_to
from trueup.recipe.quality import QualitySection
from trueup.schema.quality import QualityLimits

SAMPLES = ("mmlu_sample", "hellaswag_sample")
SECTION = QualitySection(short=64, tokens=128, answers=1, answer_tokens=4)


def sample(name: str, items: int) -> Task:
    """So many, spread over the file: MMLU's are by subject."""
    file = Path(__file__).parents[3] / "shared" / "data" / f"{name}.jsonl"
    if not file.is_file():
        pytest.skip(f"{file.name} is not beside this checkout")
    task = read_task(file, 1000)
    return Task(task.name, task.items[:: len(task.items) // items][:items])


def gate(resolved: ResolvedModel, folder: Path, items: int) -> Judged:
    """Of the model in int8, with the tasks."""
    tasks = tuple(sample(name, items) for name in SAMPLES)
    held = HeldOut(rows(2, 64, start=HELD_OUT), None, "docstrings", "not in this test")
    quantise_to(folder, resolved, Wanted("int8", head="int8"), None, lambda text: None)
    observed = observe(resolved, folder, held, SECTION, tasks, lambda text: None)
    return judge(observed, QualityLimits())


def test_scores_of_published_questions_stand_with_their_intervals(
    learnt: ResolvedModel, tmp_path: Path
) -> None:
    found = gate(learnt, tmp_path / "int8", items=4)
    for figures, items in ((found.measurements, 8), *((of, 4) for of in found.tasks.values())):
        for name in ("quality_task_accuracy_share", "quality_task_accuracy_original_share"):
            figure = figures[name]
            assert figure.n == items
            assert figure.value is not None
            assert figure.ci is not None
            assert 0 <= figure.ci[0] <= figure.value <= figure.ci[1] <= 1
    assert set(found.tasks) == set(SAMPLES)
    assert {check.says.split("(")[1] for check in found.checks if check.name == "task drop"} == {
        f"on {name})" for name in SAMPLES
    }


@pytest.mark.slow
def test_int8_of_the_demo_model_answers_published_questions_like_the_original(tmp_path: Path) -> None:
    resolved = demo_model(tmp_path)
    found = gate(resolved, tmp_path / "int8", items=20)
    drop = found.measurements["quality_task_drop_share"]
    assert drop.n == 40
    assert drop.value is not None
    assert abs(drop.value) <= 0.1  # of thirty items one was answered otherwise when this was written
