"""`trueup quantize MODEL -o FOLDER --scheme int8|int4|fp8`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from trueup.schema import InputError

from .output import JSON_OPTION, print_json, print_rich, say, stdout_reserved
from .recipe import SET_OPTION

if TYPE_CHECKING:
    from trueup.model.builtin import ResolvedModel
    from trueup.model.quality import HeldOut
    from trueup.model.quality_tasks import Task
    from trueup.model.quantize import Wanted
    from trueup.model.quantize_folder import Calibration
    from trueup.recipe import Recipe
    from trueup.recipe.quality import QualitySection
    from trueup.schema.quality import QualityRecord
    from trueup.schema.quantization import QuantizationFacts

SchemeName = Literal["int8", "int4", "fp8"]
HeadName = Literal["int8", "int4", "fp8", "keep"]
MethodName = Literal["rtn", "gptq"]
SOURCE = "stdlib-docs"
CALIBRATION_LENGTH = 512  # tokens of a calibration row, at most


@dataclass(frozen=True)
class Job:
    """All that one call does, read and checked."""

    resolved: ResolvedModel
    out: Path
    wanted: Wanted
    calibration: Calibration
    held: HeldOut
    tasks: tuple[Task, ...]
    section: QualitySection
    gguf: Path | None


def quantize(
    model: str = typer.Argument(help="A folder, a built-in, or a hub name.", metavar="MODEL"),
    out: Path = typer.Option(..., "-o", "--output", help="New folder for the quantised model."),
    scheme: SchemeName = typer.Option(..., "--scheme", help="How a layer's weights are stored."),
    method: MethodName = typer.Option(
        "rtn", "--method", help="Round each weight to the nearest, or make up for it in others (GPTQ)."
    ),
    group: int | None = typer.Option(
        None, "--group", min=0, help="Inputs that share a scale; 0: one scale an output; int4's default 32."
    ),
    per_tensor: bool = typer.Option(False, "--per-tensor", help="fp8: one scale for a whole matrix."),
    head: HeadName | None = typer.Option(
        None, "--head", help="How the head is stored, a tied embedding with it; default int8, of fp8 fp8."
    ),
    calibration: str | None = typer.Option(
        None, "--calibration", metavar="DATA", help=f"Data, as data.source of a recipe; default {SOURCE}."
    ),
    calibration_tokens: int = typer.Option(
        16384, "--calibration-tokens", min=1, help="Tokens of its training split for GPTQ to look at."
    ),
    recipe: str | None = typer.Option(
        None, "--recipe", help="Take data and the gate's limits from this recipe."
    ),
    overrides: list[str] = SET_OPTION,
    gguf: Path | None = typer.Option(
        None, "--gguf", help="Also a GGUF file, exact; of int8 in groups of 32. Needs the extra gguf."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Store a model's weights in few bits and judge the result by the original; exit code 1, and the folder
    is kept aside, where it is too far off."""
    asked = _Asked(scheme, method, group, per_tensor, head)
    with stdout_reserved():
        say("loading PyTorch")
        job = _job(model, out, asked, calibration, calibration_tokens, (recipe, overrides), gguf)
        facts, record, folder = _done(job)
        written = None if gguf is None or record.verdict == "refused" else _gguf(job, facts)
    if as_json:
        print_json(_document(facts, record, folder, written))
    else:
        from trueup.report.quality import quantize_text

        print_rich(quantize_text(facts, record))
        say(f"wrote {folder}" + (f" and {written['path']}" if written else ""))
    if record.verdict == "refused":
        say(f"the quality gate refused it: kept aside in {folder}, and `trueup serve` will not take it")
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Asked:
    scheme: SchemeName
    method: MethodName
    group: int | None
    per_tensor: bool
    head: HeadName | None

    def wanted(self) -> Wanted:
        from trueup.model.quantize import Wanted
        from trueup.schema.quantization import DEFAULT_GROUP, DEFAULT_HEAD

        group = DEFAULT_GROUP[self.scheme] if self.group is None else self.group or None
        head = DEFAULT_HEAD[self.scheme] if self.head is None else self.head
        return Wanted(
            scheme=self.scheme,
            method=self.method,
            group=group,
            head=None if head == "keep" else head,
            per_tensor=self.per_tensor,
        )


def _job(
    model: str,
    out: Path,
    asked: _Asked,
    calibration: str | None,
    calibration_tokens: int,
    settings: tuple[str | None, list[str]],
    gguf: Path | None,
) -> Job:
    from trueup.home import find_home
    from trueup.model.builtin import resolve_model
    from trueup.model.quality_tasks import read_task
    from trueup.model.quantize import require_quantisable
    from trueup.model.quantize_folder import require_room
    from trueup.model.quantize_gguf import require_gguf_possible

    recipe = _recipe(model, calibration, *settings)
    wanted = asked.wanted()
    require_room(out)
    if gguf is not None:
        require_gguf_possible(wanted, gguf)
    resolved = resolve_model(model, find_home().path, say=say)
    require_quantisable(resolved)
    section = recipe.quality
    tasks = tuple(read_task(Path(path), section.task_items) for path in section.tasks)
    rows, held = _data(recipe, section, calibration_tokens)
    return Job(resolved, out, wanted, rows, held, tasks, section, gguf)


def _recipe(model: str, calibration: str | None, path: str | None, overrides: list[str]) -> Recipe:
    from trueup.recipe import Recipe, load_recipe
    from trueup.recipe.models import DataSection, ModelSection

    if path is None:
        if overrides:
            raise InputError("--set changes a recipe's values; give --recipe RECIPE with it")
        data = DataSection(source=calibration or SOURCE)
        return Recipe(model=ModelSection(path=model), data=data)
    recipe = load_recipe(path, overrides).recipe
    data = recipe.data if calibration is None else DataSection(source=calibration)
    return recipe.model_copy(update={"model": ModelSection(path=model), "data": data})


def _data(recipe: Recipe, section: QualitySection, calibration_tokens: int) -> tuple[Calibration, HeldOut]:
    """Calibration rows of the training split; rows to judge on of the splits that no method looks at."""
    import torch

    from trueup.data.token_rows import token_rows, tokens_in
    from trueup.model.dims import most_positions
    from trueup.model.quality import HeldOut
    from trueup.model.quantize_folder import Calibration

    from .prepare import prepare_data_of

    say(f"data to calibrate and to judge on: {recipe.data.source}, prepared once")
    prepared, _, config = prepare_data_of(recipe)
    positions = most_positions(config) or section.long + section.answer_tokens
    length = min(CALIBRATION_LENGTH, positions)
    train = prepared.split("train")
    length = min(length, max(1, tokens_in([train])))
    rows_RT = token_rows([train], length=length, tokens=calibration_tokens)
    outside = [prepared.split("test"), prepared.split("validation")]
    room = positions - section.answer_tokens
    short, long = min(section.short, room), min(section.long, room)
    have = tokens_in(outside)
    if have < short:
        raise InputError(
            f"the data's test and validation splits have {have:,} tokens, and a short context {short:,}; "
            "give more --calibration data, or a smaller quality.short in a --recipe"
        )
    short_RT = token_rows(outside, length=short, tokens=section.tokens)
    long_RT = token_rows(outside, length=long, tokens=section.tokens)
    why = f"the held-out data has {have:,} tokens, and a long context {long:,}"
    if long <= short:
        why = f"the model takes {positions:,} positions: its long contexts are its short ones"
    source = f"test and validation splits of data {prepared.digest[:12]}"
    usable = long > short and len(long_RT) > 0
    held = HeldOut(
        torch.from_numpy(short_RT),
        torch.from_numpy(long_RT) if usable else None,
        source,
        "" if usable else why,
    )
    return Calibration(torch.from_numpy(rows_RT), f"training split of data {prepared.digest[:12]}"), held


def _done(job: Job) -> tuple[QuantizationFacts, QualityRecord, Path]:
    """What was written, what the gate said, and where the folder is."""
    from trueup.model.quality_file import kept_aside, write_quality
    from trueup.model.quantize_folder import quantise_to

    records: list[QualityRecord] = []

    def finish(folder: Path, facts: QuantizationFacts) -> None:
        records.append(_judged(job, folder, facts))
        write_quality(folder, records[0])

    facts = quantise_to(job.out, job.resolved, job.wanted, job.calibration, say, finish=finish)
    (record,) = records
    return facts, record, kept_aside(job.out) if record.verdict == "refused" else job.out


def _judged(job: Job, folder: Path, facts: QuantizationFacts) -> QualityRecord:
    from trueup import __version__
    from trueup.analysis.quality_gate import judge
    from trueup.model.quality import observe
    from trueup.model.quality_file import judged_digest
    from trueup.schema.quality import QUALITY_FORMAT, QualityRecord

    observed = observe(job.resolved, folder, job.held, job.section, job.tasks, say)
    judged = judge(observed, job.section.limits)
    return QualityRecord(
        format=QUALITY_FORMAT,
        trueup_version=__version__,
        original=facts.original,
        scheme=facts.scheme,
        method=facts.method,
        weights_digest=judged_digest(folder),
        verdict=judged.verdict,
        reasons=judged.reasons,
        held_out=observed.held_out,
        limits=job.section.limits,
        checks=judged.checks,
        worst_layers=judged.worst_layers,
        measurements=judged.measurements,
        missing=observed.missing,
        tasks=judged.tasks,
    )


def _gguf(job: Job, facts: QuantizationFacts) -> dict[str, Any]:
    from trueup.model.quantize_gguf import write_quantised_gguf

    assert job.gguf is not None
    tensors = write_quantised_gguf(job.out, job.gguf, facts)
    return {"path": str(job.gguf), "bytes": job.gguf.stat().st_size, "tensors_equal": tensors}


def _document(
    facts: QuantizationFacts, record: QualityRecord, folder: Path, gguf: dict[str, Any] | None
) -> dict[str, Any]:
    import json

    quality = json.loads(record.model_dump_json(exclude={"format"}))
    stored = json.loads(facts.model_dump_json(exclude={"format", "weights", "trueup_version"}))
    sizes = {
        "bytes_before": facts.bytes_before,
        "bytes_after": facts.bytes_after,
        "bits_per_weight": facts.bits_per_weight,
    }
    return {"folder": str(folder), **stored, **sizes, **quality, "gguf": gguf}
