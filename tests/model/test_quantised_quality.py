"""The quality gate over models: what it measures is right, and what is planted in a quantised folder is
caught and named."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from docstring_rows import HELD_OUT, rows
from safetensors.torch import load_file, save_file

from trueup.analysis.quality_gate import Judged, judge
from trueup.model.builtin import ResolvedModel
from trueup.model.load import load_base, load_tokenizer
from trueup.model.quality import HeldOut, compare, observe
from trueup.model.quality_file import (
    RefusedQualityError,
    judged_digest,
    read_quality,
    require_accepted,
    write_quality,
)
from trueup.model.quality_measure import greedy
from trueup.model.quality_tasks import Item, Task, read_task, right_answers
from trueup.model.quantize import Wanted
from trueup.model.quantize_folder import quantise_to
from trueup.model.quantized_load import load_dequantised
from trueup.recipe.quality import QualitySection
from trueup.schema import InputError
from trueup.schema.quality import QUALITY_FORMAT, Observed, QualityLimits, QualityRecord

SECTION = QualitySection(short=64, long=256, tokens=1024, answers=3, answer_tokens=12)
HELD = HeldOut(rows(16, 64, start=HELD_OUT), rows(4, 256, start=HELD_OUT), "docstrings")
SHORT_ONLY = HeldOut(rows(8, 64, start=HELD_OUT), None, "docstrings", "not in this test")
CULPRIT = "model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def original(learnt: ResolvedModel) -> Any:
    base = load_base(learnt)
    base.eval()
    return base


@pytest.fixture(scope="module")
def int8(learnt: ResolvedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed: copy it."""
    out = tmp_path_factory.mktemp("int8") / "out"
    quantise_to(out, learnt, Wanted("int8", group=16, head="int8"), None, lambda text: None)
    return out


@pytest.fixture(scope="module")
def observed(learnt: ResolvedModel, int8: Path) -> Observed:
    return observe(learnt, int8, HELD, SECTION)


def loaded(folder: Path) -> Any:
    base = load_dequantised(folder)[0]
    base.eval()
    return base


def judged(original: Any, quantised: Any) -> Judged:
    return judge(compare(original, quantised, SHORT_ONLY, SECTION), QualityLimits())


# --- what is measured -------------------------------------------------------------------------------------


def test_the_original_beside_itself_is_the_same_in_every_figure(original: Any) -> None:
    (facts,) = compare(original, original, SHORT_ONLY, SECTION).contexts
    assert facts.nll_quantised == facts.nll_original
    assert max(map(abs, facts.kl)) < 1e-9
    assert set(facts.top_k_overlap) == set(facts.same_choice) == {1.0}
    assert facts.greedy_match == (12, 12, 12)
    assert facts.not_finite == 0


def test_int8_of_a_model_that_has_learnt_is_accepted(observed: Observed) -> None:
    found = judge(observed, QualityLimits())
    assert found.verdict == "accepted", found.reasons
    assert [facts.context for facts in observed.contexts] == ["short", "long"]


def test_its_perplexity_is_that_of_transformers_own_loss(original: Any, observed: Observed) -> None:
    for facts, rows_RT in zip(observed.contexts, (HELD.short_RT, HELD.long_RT), strict=True):
        assert rows_RT is not None
        with torch.no_grad():
            expected = float(original(input_ids=rows_RT, labels=rows_RT).loss)
        assert math.fsum(facts.nll_original) / len(facts.nll_original) == pytest.approx(expected, rel=1e-5)


def test_tokens_are_those_that_were_predicted(observed: Observed) -> None:
    assert [facts.tokens for facts in observed.contexts] == [16 * 63, 4 * 255]


def test_divergence_is_torchs_own(original: Any, int8: Path, observed: Observed) -> None:
    with torch.no_grad():
        was, now = (
            model(input_ids=HELD.short_RT).logits[0, :-1].log_softmax(-1)
            for model in (original, loaded(int8))
        )
    expected = torch.nn.functional.kl_div(now, was, log_target=True, reduction="batchmean")
    assert observed.contexts[0].kl[0] == pytest.approx(float(expected), rel=1e-3)


def test_a_greedy_match_ends_where_the_two_answers_part(original: Any, learnt: ResolvedModel) -> None:
    """The gate shows the quantised model the original's answer; here it answers by itself."""
    shaken = load_base(learnt)
    shaken.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in shaken.parameters():
            parameter.mul_(1 + torch.randn(parameter.shape, generator=generator))
    prompts_RT = HELD.short_RT[:6]
    section = SECTION.model_copy(update={"answers": 6})
    (facts,) = compare(original, shaken, SHORT_ONLY, section).contexts
    answers = [greedy(model, prompts_RT, 12) for model in (original, shaken)]
    parted = (answers[0] == answers[1]).long().cumprod(dim=1).sum(1).tolist()
    assert list(facts.greedy_match) == parted
    assert len(set(parted)) > 1


def test_greedy_answers_are_those_of_generate(original: Any) -> None:
    prompts_RT = HELD.short_RT[:2]
    expected = original.generate(
        prompts_RT,
        attention_mask=torch.ones_like(prompts_RT),
        max_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
    )[:, 64:]
    assert torch.equal(greedy(original, prompts_RT, 8)[:, : expected.shape[1]], expected)


def test_a_layers_error_is_of_that_layer_alone(original: Any, int8: Path) -> None:
    """An earlier layer that is off does not spoil the figures of those after it."""
    quantised = loaded(int8)
    before = {one.name: one.error for one in compare(original, quantised, SHORT_ONLY, SECTION).layers}
    quantised.get_submodule("model.layers.0.self_attn.v_proj").weight.data *= 2
    after = {one.name: one.error for one in compare(original, quantised, SHORT_ONLY, SECTION).layers}
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"model.layers.0.self_attn.v_proj"}
    assert after["model.layers.0.self_attn.v_proj"] == pytest.approx(1, abs=0.05)


# --- planted faults ---------------------------------------------------------------------------------------


def on_disk(int8: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A copy of the folder with something done to its tensors."""
    shutil.copytree(int8, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def doubled(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{CULPRIT}.weight_scale"] *= 2


def swapped(tensors: dict[str, torch.Tensor]) -> None:
    name = f"{CULPRIT}.weight_packed"
    tensors[name] = torch.cat([tensors[name][:, 4:8], tensors[name][:, :4], tensors[name][:, 8:]], dim=1)


def zeroed(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{CULPRIT}.weight_scale"] *= 0


def next_outputs(tensors: dict[str, torch.Tensor]) -> None:
    name = f"{CULPRIT}.weight_scale"
    tensors[name] = tensors[name].roll(1, dims=0) * 3


@pytest.mark.parametrize("fault", [doubled, swapped, zeroed, next_outputs])
def test_a_layer_quantised_wrongly_is_refused_and_named(
    fault: Callable[[dict[str, torch.Tensor]], None], learnt: ResolvedModel, int8: Path, tmp_path: Path
) -> None:
    folder = on_disk(int8, tmp_path / "broken", fault)
    found = judge(observe(learnt, folder, SHORT_ONLY, SECTION), QualityLimits())
    assert found.verdict == "refused"
    assert found.worst_layers[0].name == CULPRIT
    assert any(CULPRIT in reason for reason in found.reasons)


def test_output_that_is_all_zero_is_refused_as_one_token_everywhere(original: Any, int8: Path) -> None:
    quantised = loaded(int8)
    quantised.model.norm.weight.data.zero_()
    found = judged(original, quantised)
    assert found.verdict == "refused"
    assert any("token 0 at 100% of positions" in reason for reason in found.reasons)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused_with_the_part_they_come_from(
    value: float, original: Any, int8: Path
) -> None:
    """vllm#14126, vllm#13035: all "!", since argmax of such logits is token 0."""
    quantised = loaded(int8)
    quantised.get_submodule(CULPRIT).weight.data[3] = value
    found = judged(original, quantised)
    assert found.verdict == "refused"
    assert "argmax gives token 0" in found.reasons[0]
    assert CULPRIT in found.reasons[0]
    assert found.worst_layers[0].name == CULPRIT
    assert found.measurements["quality_perplexity_ratio_short"].kind == "unavailable"


def test_an_overflow_at_a_few_positions_only_is_refused(original: Any, int8: Path) -> None:
    quantised = loaded(int8)
    spoiled = int(HELD.short_RT[0, 20])
    quantised.lm_head.weight.data[spoiled] = float("inf")
    found = judged(original, quantised)
    assert found.verdict == "refused"
    assert found.checks[0].value is not None
    assert found.checks[0].value > 0


def test_an_original_that_is_broken_itself_is_no_yardstick(learnt: ResolvedModel, int8: Path) -> None:
    broken = load_base(learnt)
    broken.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(InputError, match="original's own logits"):
        compare(broken, loaded(int8), SHORT_ONLY, SECTION)


def test_nothing_held_out_is_refused(learnt: ResolvedModel, int8: Path) -> None:
    empty = HeldOut(torch.zeros(0, 64, dtype=torch.int64), None, "nothing")
    with pytest.raises(InputError, match="no held-out tokens"):
        observe(learnt, int8, empty, SECTION)


# --- tasks ------------------------------------------------------------------------------------------------


def test_an_answer_is_the_likeliest_choice_by_its_length(original: Any, learnt: ResolvedModel) -> None:
    """Against each choice scored alone, without another row beside it."""
    tokenizer = load_tokenizer(learnt)
    choices = ("the value of the key", "zq", "Return a new list of the items", "xxxxxxxxxxxxxxxxxxxxxxxx")
    scores = []
    for choice in choices:
        ids = list(f"What? {choice}".encode())
        with torch.no_grad():
            logs = original(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        score = sum(float(logs[at - 1, ids[at]]) for at in range(len("What?"), len(ids)))
        scores.append(score / len(choice))
    best = max(range(4), key=scores.__getitem__)
    items = tuple(Item("What?", choices, right) for right in range(4))
    assert right_answers(original, tokenizer, Task("t", items)) == tuple(n == best for n in range(4))


def test_a_length_is_in_characters_not_bytes(learnt: ResolvedModel) -> None:
    """To a model that finds all tokens alike, of two choices of as many tokens."""

    def even(input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 300))

    even.config = SimpleNamespace()  # type: ignore[attr-defined]
    task = Task("t", (Item("?", ("\u00e9", "ab"), 1),))
    assert right_answers(even, load_tokenizer(learnt), task) == (True,)


def test_a_model_that_lost_a_task_is_refused(original: Any, learnt: ResolvedModel, int8: Path) -> None:
    tokenizer = load_tokenizer(learnt)
    items = tuple(Item("the", (" name", "\x01\x02", "\x03"), 0) for _ in range(10))
    quantised = loaded(int8)
    quantised.lm_head.weight = torch.nn.Parameter(-quantised.lm_head.weight.detach())
    found = compare(original, quantised, SHORT_ONLY, SECTION, [Task("names", items)], tokenizer)
    assert found.tasks[0].original == (True,) * 10
    result = judge(found, QualityLimits())
    assert any(reason.startswith("task drop") and "names" in reason for reason in result.reasons)


def test_both_kinds_of_task_file_are_read(tmp_path: Path) -> None:
    rows_of = [
        {"question": "2 + 2?", "choices": ["3", "4"], "answer": 1, "subject": "sums"},
        {"query": "A man", "choices": ["sits.", "flies."], "label": 0},
    ]
    file = tmp_path / "mixed.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows_of))
    assert read_task(file, 10) == Task(
        "mixed", (Item("2 + 2?", ("3", "4"), 1), Item("A man", ("sits.", "flies."), 0))
    )
    assert len(read_task(file, 1).items) == 1


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"question": "q"}', '{"question": "q", "choices": ["a"], "answer": 1}', '{"choices": []}'],
)
def test_a_line_that_is_no_item_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    file = tmp_path / "task.jsonl"
    file.write_text('{"question": "q", "choices": ["a", "b"], "answer": 1}\n' + line + "\n")
    with pytest.raises(InputError, match=r"task\.jsonl:2: not an item"):
        read_task(file, 10)


def test_a_task_file_without_items_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task.jsonl").write_text("\n")
    with pytest.raises(InputError, match="no items"):
        read_task(tmp_path / "task.jsonl", 10)
    with pytest.raises(InputError, match="cannot be read"):
        read_task(tmp_path / "none.jsonl", 10)


@pytest.mark.parametrize("name", ["mmlu_sample", "hellaswag_sample"])
def test_published_questions_are_read(name: str) -> None:
    file = Path(__file__).parents[3] / "shared" / "data" / f"{name}.jsonl"
    if not file.is_file():
        pytest.skip(f"{file.name} is not beside this checkout")
    task = read_task(file, 100)
    assert len(task.items) == 100
    assert {len(item.choices) for item in task.items} == {4}


# --- before it is served ----------------------------------------------------------------------------------


def record(folder: Path, observed: Observed, limits: QualityLimits) -> QualityRecord:
    found = judge(observed, limits)
    return QualityRecord(
        format=QUALITY_FORMAT,
        trueup_version="0",
        original="learnt",
        scheme="int8",
        method="rtn",
        weights_digest=judged_digest(folder),
        verdict=found.verdict,
        reasons=found.reasons,
        held_out=observed.held_out,
        limits=limits,
        checks=found.checks,
        worst_layers=found.worst_layers,
        measurements=found.measurements,
    )


@pytest.fixture
def folder(int8: Path, tmp_path: Path) -> Path:
    shutil.copytree(int8, tmp_path / "served")
    return tmp_path / "served"


def test_an_accepted_folder_may_be_served(folder: Path, observed: Observed) -> None:
    written = record(folder, observed, QualityLimits())
    write_quality(folder, written)
    assert require_accepted(folder) == written


def test_a_refused_folder_may_not_and_says_why(folder: Path, observed: Observed) -> None:
    write_quality(folder, record(folder, observed, QualityLimits(kl_nats=1e-12)))
    with pytest.raises(RefusedQualityError, match=r"refused this model:\n  KL divergence"):
        require_accepted(folder)


def test_a_folder_that_was_never_judged_may_not(folder: Path) -> None:
    with pytest.raises(RefusedQualityError, match=r"no quality\.json"):
        require_accepted(folder)


def test_a_verdict_on_other_weights_is_none(folder: Path, observed: Observed) -> None:
    write_quality(folder, record(folder, observed, QualityLimits()))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[f"{CULPRIT}.weight_scale"] *= 2
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(RefusedQualityError, match="not those that"):
        require_accepted(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "trueup_quantization.json"])
def test_a_byte_that_flipped_anywhere_since_the_verdict_is_found(
    folder: Path, observed: Observed, file: str
) -> None:
    write_quality(folder, record(folder, observed, QualityLimits()))
    content = bytearray((folder / file).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / file).write_bytes(content)
    with pytest.raises(RefusedQualityError, match="not those that"):
        require_accepted(folder)


@pytest.mark.parametrize("content", ['{"format": 1}', "[", "{}"])
def test_a_verdict_that_cannot_be_read_is_an_error(folder: Path, content: str) -> None:
    (folder / "quality.json").write_text(content)
    with pytest.raises(InputError, match=r"quality\.json: cannot be read"):
        read_quality(folder)


@pytest.mark.parametrize("change", [{"verdict": "accepted"}, {"checksum": ""}, {"checksum": None}])
def test_a_verdict_that_was_edited_is_none(
    folder: Path, observed: Observed, change: dict[str, str | None]
) -> None:
    write_quality(folder, record(folder, observed, QualityLimits(kl_nats=1e-12)))
    file = folder / "quality.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(InputError, match="it was edited"):
        require_accepted(folder)


def test_a_figure_that_is_no_number_survives_the_file(folder: Path, original: Any, int8: Path) -> None:
    quantised = loaded(int8)
    quantised.get_submodule(CULPRIT).weight.data[3] = float("nan")
    written = record(folder, compare(original, quantised, SHORT_ONLY, SECTION), QualityLimits())
    write_quality(folder, written)
    json.loads((folder / "quality.json").read_text(), parse_constant=pytest.fail)
    again = read_quality(folder)
    assert again is not None
    assert again.verdict == "refused"
    assert math.isnan(again.worst_layers[0].error)
