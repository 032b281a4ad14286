"""From a model to a quantised folder, whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trueup.recipe.models import TuneSection
from trueup.schema import InputError
from trueup.schema.quality import QUALITY_FILE
from trueup.schema.quantization import (
    BITS,
    FACTS_FILE,
    CalibrationFacts,
    Owner,
    OwnerBytes,
    QuantizationFacts,
    StoredWeight,
)

from .builtin import MANIFEST, ResolvedModel
from .compressed_tensors import PACKED, SCALE, SHAPE, VALUES, pack, quantization_config
from .folder import INDEX_FILE, SINGLE_FILE, config_of, digest_of, weight_files
from .load import LoadedModel, load_model
from .quantize import (
    Quantised,
    Say,
    Wanted,
    head_name,
    is_tied,
    planned,
    require_numbers,
    require_quantisable,
    rounded,
)
from .quantize_gptq import by_gptq, require_calibration
from .quantized import FORMAT, QuantizedWeight
from .staging import require_empty, staged_folder

COPIED = ("*.json", "*.model", "*.txt", "*.jinja")
NOT_COPIED = {"config.json", INDEX_FILE, MANIFEST, FACTS_FILE, QUALITY_FILE}


@dataclass(frozen=True)
class Calibration:
    """Rows of tokens (R, T) that a method looks at, and where they are from."""

    rows_RT: torch.Tensor
    source: str

    @property
    def facts(self) -> CalibrationFacts:
        rows, length = self.rows_RT.shape
        return CalibrationFacts(source=self.source, rows=rows, length=length)


def quantise_to(
    out: Path,
    resolved: ResolvedModel,
    wanted: Wanted,
    calibration: Calibration | None,
    say: Say,
    *,
    finish: Callable[[Path, QuantizationFacts], None] | None = None,
) -> QuantizationFacts:
    """Writes the folder `out` and gives what is in it. `finish` sees the folder, whole, before it has its
    name, and may add to it.

    Raises InputError for what cannot be quantised (`quantize.py` says which), calibration data that are too
    few, and an `out` that holds anything; StorageError for a full disk.
    """
    require_empty(out)
    require_quantisable(resolved)
    say(f"loading {resolved.name}")
    loaded = load_model(resolved, TuneSection(method="full"))
    loaded.module.eval()
    base = loaded.base
    require_numbers(base, resolved.name)
    plan = planned(base, wanted, resolved.name)
    say(f"{wanted.method}: {len(plan)} matrices to {wanted.scheme}")
    if wanted.method == "gptq":
        rows_RT = None if calibration is None else calibration.rows_RT
        require_calibration(rows_RT, base, plan)
        assert rows_RT is not None
        made = by_gptq(base, plan, wanted, rows_RT, say)
    else:
        calibration = None
        made = rounded(base, plan, wanted)
    facts, tensors = _described(loaded, wanted, plan, made, calibration)
    say(f"writing {out}")
    with staged_folder(out, "writing the quantised model") as staging:
        _write(staging, resolved, base, facts, tensors)
        if finish is not None:
            finish(staging, facts)
    return facts


def tensors_of(name: str, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
    """What is stored of one matrix."""
    scales = {f"{name}.{SCALE}": weight.scales_OG.float().contiguous()}
    if weight.scheme == "fp8":
        return {f"{name}.{VALUES}": weight.values_OI.contiguous(), **scales}
    return {
        f"{name}.{PACKED}": pack(weight.values_OI, BITS[weight.scheme]),
        f"{name}.{SHAPE}": torch.tensor(weight.values_OI.shape, dtype=torch.int64),
        **scales,
    }


def _described(
    loaded: LoadedModel,
    wanted: Wanted,
    plan: dict[str, StoredWeight],
    made: Quantised,
    calibration: Calibration | None,
) -> tuple[QuantizationFacts, dict[str, torch.Tensor]]:
    from trueup import __version__

    base, folder = loaded.base, loaded.resolved.folder
    before = _stored_types(folder)
    parameters = {name: p.detach() for name, p in base.named_parameters()}  # a tied head once
    tensors: dict[str, torch.Tensor] = {}
    kept = []
    sizes: dict[Owner, list[int]] = {}
    for name, parameter in parameters.items():
        dtype = before.get(name, parameter.dtype)
        matrix = name.removesuffix(".weight")
        if matrix in plan:
            stored = tensors_of(matrix, made.weights[matrix])
        else:
            stored = {name: parameter.to(dtype).contiguous()}
            kept.append(name)
        tensors.update(stored)
        size = sizes.setdefault(_owner(name, base), [0, 0, 0])
        size[0] += parameter.numel()
        size[1] += parameter.numel() * dtype.itemsize
        size[2] += sum(one.nbytes for one in stored.values())
    facts = QuantizationFacts(
        format=FORMAT,
        trueup_version=__version__,
        original=loaded.resolved.name,
        original_digest=digest_of(folder),
        scheme=wanted.scheme,
        method=wanted.method,
        group=wanted.group,
        tied_head=is_tied(base),
        weights=plan,
        kept=tuple(kept),
        owners=tuple(
            OwnerBytes(owner=owner, parameters=count, before=was, after=now)
            for owner, (count, was, now) in sizes.items()
        ),
        calibration=None if calibration is None else calibration.facts,
        ranges=tuple(made.ranges),
        errors=tuple(made.errors),
    )
    return facts, tensors


def _owner(name: str, base: Any) -> Owner:
    if ".embed_tokens." in name:
        return "embedding and head" if is_tied(base) else "embedding"
    if name.startswith("lm_head."):
        return "head"
    parts: dict[str, Owner] = {".self_attn.": "attention", ".mlp.": "mlp", "norm.": "norms"}
    return next((owner for part, owner in parts.items() if part in name), "other")


def _stored_types(folder: Path) -> dict[str, torch.dtype]:
    """The type of each tensor in the original's files."""
    from safetensors import safe_open

    names = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
    found: dict[str, torch.dtype] = {}
    for path in weight_files(folder):
        opened: Any = safe_open(path, framework="pt")
        with opened as tensors:
            for name in tensors.keys():  # noqa: SIM118  # not a mapping
                found[name] = names.get(tensors.get_slice(name).get_dtype(), torch.float32)
    return found


def _write(
    folder: Path,
    resolved: ResolvedModel,
    base: Any,
    facts: QuantizationFacts,
    tensors: dict[str, torch.Tensor],
) -> None:
    from safetensors.torch import save_file

    for path in _small_files(resolved.folder):
        shutil.copyfile(path, folder / path.name)
    config = config_of(resolved.folder)
    config["quantization_config"] = quantization_config(
        facts.weights,
        _kept_linear(base, facts),
        embedding=facts.tied_head and head_name(base) in facts.weights,
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_file(tensors, folder / SINGLE_FILE, metadata={"format": "pt"})
    (folder / FACTS_FILE).write_text(facts.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _small_files(folder: Path) -> Iterable[Path]:
    found = {path for pattern in COPIED for path in folder.glob(pattern)}
    return sorted(path for path in found if path.is_file() and path.name not in NOT_COPIED)


def _kept_linear(base: Any, facts: QuantizationFacts) -> list[str]:
    """Linear layers stored as they were; a tied head is one to readers that know it by its own name."""
    linear = [name for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)]
    return [name for name in linear if name not in facts.weights]


def require_room(out: Path) -> None:
    """Raises InputError where `out` is taken, before hours of work."""
    require_empty(out)
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; make it, or name another place for the output")
