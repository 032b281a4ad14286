"""A quantised folder as a GGUF file of the same numbers: int8 in groups of 32 is what GGUF calls Q8_0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trueup.files.whole import replacing_file
from trueup.recipe.models import TuneSection
from trueup.schema import InputError, TrueupError
from trueup.schema.quantization import QuantizationFacts

from .builtin import ResolvedModel
from .gguf_export import named_tensors, require_gguf, write_gguf
from .load import LoadedModel, load_model, load_tokenizer
from .quantize import Wanted
from .quantize_round import GGUF_GROUP
from .staging import storage_errors


def require_gguf_possible(wanted: Wanted, out: Path) -> None:
    """Before anything is made. Raises InputError for a scheme that GGUF would round again or a file that
    exists, MissingExtraError without the package gguf."""
    exact = wanted.scheme == "int8" and wanted.head == "int8" and wanted.group == GGUF_GROUP
    if not exact or wanted.method != "rtn":
        raise InputError(
            f"a GGUF file keeps int8 in groups of {GGUF_GROUP} as it is (Q8_0), and would round anything "
            f"else again; give --scheme int8 --group {GGUF_GROUP} --method rtn, or leave out --gguf"
        )
    require_gguf()
    if out.exists() or out.is_symlink():
        raise InputError(f"{out}: exists; name a new file or remove this one")


def write_quantised_gguf(folder: Path, out: Path, facts: QuantizationFacts) -> int:
    """Writes `out`, reads it back, and gives how many tensors are in it. Raises TrueupError, leaving nothing,
    where any number in it is another than the folder's."""
    resolved = ResolvedModel(folder, f"{facts.original} {facts.scheme}", "quantised")
    loaded = load_model(resolved, TuneSection(method="full"))
    loaded.module.eval()
    with storage_errors("writing the GGUF file", out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(out) as part:
            write_gguf(loaded, load_tokenizer(resolved), part, "q8_0", name=resolved.name)
            return _same(part, loaded)


def _same(path: Path, loaded: LoadedModel) -> int:
    import gguf

    reader: Any = gguf.GGUFReader(path)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    expected = dict(named_tensors(loaded))
    for name, tensor in expected.items():
        found = torch.tensor(gguf.dequantize(stored[name].data, stored[name].tensor_type))
        if not torch.equal(found.view(tensor.shape), tensor.detach().float()):
            raise TrueupError(f"{name} in the GGUF file is not the folder's; the file was removed")
    return len(expected)
