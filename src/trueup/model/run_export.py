"""A run that has ended leaves as an adapter, a merged model, a GGUF file or an ONNX graph: written, read
back, compared with the run's own logits, given its card, and only then put in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trueup.checkpoint.folder import load_tensors
from trueup.checkpoint.manifest import WEIGHTS
from trueup.files.whole import replacing_file
from trueup.recipe.models import TuneSection
from trueup.schema import InputError

from .builtin import ResolvedModel
from .export import save_adapter, save_merged
from .gguf_export import GgufType, require_gguf, write_gguf
from .load import LoadedModel, load_model, load_tokenizer, put_weights
from .onnx_export import require_onnx, write_onnx
from .staging import require_empty, staged_folder, storage_errors
from .verify import LogitCheck, check_adapter, check_gguf, check_merged, check_onnx, own_logits

CARD_FILE = "README.md"
Card = Callable[[LogitCheck | None], str]  # the model card's text, from what reading back found


@dataclass(frozen=True)
class RunWeights:
    """What an export starts from: the folder of a whole checkpoint (`checkpoint.choose` has read every byte
    of it), the base model, how it was tuned."""

    checkpoint: Path
    resolved: ResolvedModel
    section: TuneSection


@dataclass(frozen=True)
class Exported:
    """Where an export is, where its card is, and what reading it back found (None: not asked for)."""

    path: Path
    card: Path
    check: LogitCheck | None


def export_adapter_from_run(run: RunWeights, out: Path, card: Card, *, verify: bool = True) -> Exported:
    """The run's LoRA adapter as a folder for peft. Raises InputError after full fine-tuning, which has no
    adapter, and where `out` is not empty; StorageError for a full disk; TrueupError, leaving nothing, where
    what was written is not the run's model."""
    if run.section.method != "lora":
        raise InputError(
            "this run trained every parameter, so there is no adapter; export the merged model instead"
        )
    require_empty(out)
    loaded = _restored(run)
    own = own_logits(loaded, load_tokenizer(run.resolved)) if verify else None
    found: list[LogitCheck] = []

    def finish(folder: Path) -> None:
        if own is not None:
            found.append(check_adapter(own, run.resolved.folder, folder))
        (folder / CARD_FILE).write_text(card(_only(found)), encoding="utf-8")

    save_adapter(loaded, out, finish=finish)
    return Exported(out, out / CARD_FILE, _only(found))


def export_merged_from_run(run: RunWeights, out: Path, card: Card, *, verify: bool = True) -> Exported:
    """The whole model, adapters merged in, as a folder for transformers. Errors as for the adapter."""
    require_empty(out)
    loaded, tokenizer = _restored(run), load_tokenizer(run.resolved)
    own = own_logits(loaded, tokenizer) if verify else None
    found: list[LogitCheck] = []

    def finish(folder: Path) -> None:
        if own is not None:
            found.append(check_merged(own, folder, tokenizer))
        (folder / CARD_FILE).write_text(card(_only(found)), encoding="utf-8")

    save_merged(loaded, out, tokenizer, finish=finish)
    return Exported(out, out / CARD_FILE, _only(found))


def export_onnx_from_run(run: RunWeights, out: Path, card: Card, *, verify: bool = True) -> Exported:
    """The whole model, adapters merged in, as a folder with an ONNX graph. Errors as for the adapter;
    MissingExtraError without the packages that write and run one."""
    require_onnx()
    require_empty(out)
    loaded, tokenizer = _restored(run), load_tokenizer(run.resolved)
    own = own_logits(loaded, tokenizer) if verify else None
    found: list[LogitCheck] = []
    with staged_folder(out, "exporting the ONNX model") as folder:
        write_onnx(loaded, tokenizer, folder)
        if own is not None:
            found.append(check_onnx(own, folder, tokenizer))
        (folder / CARD_FILE).write_text(card(_only(found)), encoding="utf-8")
    return Exported(out, out / CARD_FILE, _only(found))


def export_gguf_from_run(
    run: RunWeights, out: Path, card: Card, *, kind: GgufType, name: str, verify: bool = True
) -> Exported:
    """The whole model as one GGUF file named `name` inside; its card is STEM.README.md beside it.

    Errors as for the adapter; InputError also where either file is there already, and for a model or
    tokenizer that a GGUF file cannot hold; MissingExtraError without the package gguf.
    """
    require_gguf()
    card_file = out.with_name(f"{out.stem}.{CARD_FILE}")
    for path in (out, card_file):
        if path.exists() or path.is_symlink():
            raise InputError(f"{path}: exists; name a new file or remove this one")
    loaded, tokenizer = _restored(run), load_tokenizer(run.resolved)
    own = own_logits(loaded, tokenizer) if verify else None
    found: list[LogitCheck] = []
    with storage_errors("exporting the GGUF file", out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(card_file) as card_part, replacing_file(out) as part:
            write_gguf(loaded, tokenizer, part, kind, name=name)
            if own is not None:
                rope = dict(loaded.base.config.rope_parameters)
                found.append(check_gguf(own, part, kind, tokenizer, rope))
            card_part.write_text(card(_only(found)), encoding="utf-8")
    return Exported(out, card_file, _only(found))


def _only(found: list[LogitCheck]) -> LogitCheck | None:
    return found[0] if found else None


def _restored(run: RunWeights) -> LoadedModel:
    loaded = load_model(run.resolved, run.section)
    put_weights(loaded, load_tensors(run.checkpoint, WEIGHTS))
    loaded.module.eval()
    return loaded
