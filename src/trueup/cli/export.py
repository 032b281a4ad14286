"""`trueup export RUN --adapter DIR | --merged DIR | --gguf FILE | --onnx DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from .output import JSON_OPTION, print_json, say, stdout_reserved
from .records import RUN_ARGUMENT, records_of

if TYPE_CHECKING:
    from trueup.model.card import ExportKind
    from trueup.model.run_export import Exported, RunWeights
    from trueup.model.verify import LogitCheck
    from trueup.schema import RunRecord

GgufKind = Literal["f32", "f16", "q8_0"]
WORDS = {"adapter": "adapter", "merged": "merged model", "gguf": "GGUF file", "onnx": "ONNX graph"}


def export(
    ref: str = RUN_ARGUMENT,
    adapter: Path | None = typer.Option(
        None, "--adapter", help="Folder for the LoRA adapter, as peft reads it."
    ),
    merged: Path | None = typer.Option(
        None, "--merged", help="Folder for the whole model, adapters merged in."
    ),
    gguf: Path | None = typer.Option(
        None, "--gguf", help="File for the whole model, as llama.cpp reads it; needs the extra gguf."
    ),
    onnx: Path | None = typer.Option(
        None, "--onnx", help="Folder for the whole model as an ONNX graph; needs the extra onnx."
    ),
    kind: GgufKind | None = typer.Option(
        None, "--type", help="How the GGUF file keeps the weights; default f16."
    ),
    no_verify: bool = typer.Option(
        False, "--no-verify", help="Do not read the export back to compare its logits with the run's own."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Write a run's weights for other programs, with a model card: the best by evaluation, else the last."""
    from trueup.schema import InputError

    given: dict[ExportKind, Path | None] = {
        "adapter": adapter,
        "merged": merged,
        "gguf": gguf,
        "onnx": onnx,
    }
    targets = [(form, path) for form, path in given.items() if path is not None]
    if len(targets) != 1:
        raise InputError("give one of --adapter DIR, --merged DIR, --gguf FILE and --onnx DIR")
    ((form, out),) = targets
    if kind is not None and form != "gguf":
        raise InputError("--type is of a GGUF file; give --gguf FILE with it")
    with stdout_reserved():
        document, checked = _export(ref, form, out, kind or "f16", verify=not no_verify)
    if as_json:
        print_json(document)
        return
    say(f"wrote {document['path']}: {document['kind']} of run {document['run']}, {document['weights']}")
    say(f"{checked}; its card is {document['card']}")
    if form == "adapter":
        say(f"its base model is the folder {document['base']}")


def _export(
    ref: str, form: ExportKind, out: Path, kind: GgufKind, *, verify: bool
) -> tuple[dict[str, object], str]:
    """What `--json` prints, and what reading the export back found, in words."""
    from trueup.checkpoint.choose import chosen
    from trueup.home import find_home
    from trueup.model.builtin import resolve_model
    from trueup.model.run_export import RunWeights
    from trueup.recipe import Recipe

    home = find_home()
    (record,) = records_of([ref])
    run_id = record.header.id
    checkpoint, manifest, word = chosen(home.runs / run_id, "", say)
    recipe = Recipe.model_validate(record.header.recipe)
    resolved = resolve_model(recipe.model.path, home.path, say=say)
    step = manifest.step
    which = f"{word}, step {step}"
    run = RunWeights(checkpoint, resolved, recipe.tune)
    done = _write(record, home.path, run, which, form, out, kind, verify=verify)
    document: dict[str, object] = {
        "run": run_id,
        "path": str(done.path),
        "kind": WORDS[form],
        "type": kind if form == "gguf" else "f32",
        "weights": which,
        "step": step,
        "base": str(resolved.folder),
        "card": str(done.card),
        "check": done.check.document() if done.check else None,
    }
    return document, str(done.check) if done.check else "not read back (--no-verify)"


def _write(
    record: RunRecord,
    home: Path,
    run: RunWeights,
    which: str,
    form: ExportKind,
    out: Path,
    kind: GgufKind,
    *,
    verify: bool,
) -> Exported:
    from trueup.model import card, run_export
    from trueup.schema import RunRecord
    from trueup.store.scrub import Scrubber

    # A card is for publishing: no absolute path of this machine in it.
    public = RunRecord.model_validate(Scrubber(home).value(record.model_dump()))

    def text(check: LogitCheck | None) -> str:
        stored = kind if form == "gguf" else "f32"
        return card.model_card(public, run.resolved, form, which, check, stored=stored)

    if form == "gguf":
        name = f"{run.resolved.name} {record.header.name}"
        return run_export.export_gguf_from_run(run, out, text, kind=kind, name=name, verify=verify)
    if form == "onnx":
        return run_export.export_onnx_from_run(run, out, text, verify=verify)
    if form == "merged":
        return run_export.export_merged_from_run(run, out, text, verify=verify)
    return run_export.export_adapter_from_run(run, out, text, verify=verify)
