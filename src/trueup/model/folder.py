"""What a model folder must hold before anything is loaded from it. Reads headers and JSON; imports no
torch."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from trueup.files.whole import read_json_object
from trueup.schema import InputError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel")
_SAMPLE_BYTES = 1 << 20
UNREADABLE = "its safetensors header cannot be read"
MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit


def check_folder(folder: Path) -> None:
    """Raises InputError unless `folder` holds a causal language model in safetensors with its tokenizer."""
    config = config_of(folder)
    _check_causal(folder, config)
    for path in weight_files(folder):
        try:
            safetensors_header(path)
        except ValueError as error:
            raise InputError(f"{path}: {error}. Download or copy this file again.") from None
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            f"{folder}: no tokenizer (looked for {', '.join(TOKENIZER_FILES)}); "
            f"copy the model's tokenizer files here"
        )


def digest_of(folder: Path) -> str:
    """Tells one base model from another in a moment, however large: the SHA-256 of config.json and of the
    sizes, headers and last MiB of the weight files. It does not prove that they are whole."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weight_files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


def config_of(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises InputError where it is missing or not a JSON object."""
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder}: no config.json; a Hugging Face model folder was expected")
    try:
        return read_json_object(path)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a readable JSON object ({error})") from None


def _check_causal(folder: Path, config: dict[str, Any]) -> None:
    architectures = config.get("architectures") or []
    if not architectures:
        raise InputError(
            f"{folder}/config.json: no 'architectures', so the kind of model is unknown; "
            f'a causal language model says for example "architectures": ["LlamaForCausalLM"]'
        )
    if not any(str(name).endswith(CAUSAL_ENDINGS) for name in architectures):
        raise InputError(
            f"{folder}: {', '.join(map(str, architectures))} is not a causal language model; "
            f"one whose architecture ends in 'ForCausalLM' was expected"
        )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: the single file, or every shard that the index names.

    Raises InputError where there are none, where a shard is missing, or where only pickled weights are there.
    """
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        return [single]
    if index.is_file():
        return _shards(folder, index)
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise InputError(
            f"{folder}: weights only in pickled files ({', '.join(pickles[:3])}). Unpickling runs whatever "
            f"code is inside, so it is refused; save the model as safetensors (save_pretrained does)"
        )
    raise InputError(f"{folder}: no weights; expected {SINGLE_FILE} or {INDEX_FILE}")


def _shards(folder: Path, index: Path) -> list[Path]:
    try:
        names = sorted(set(read_json_object(index)["weight_map"].values()))
    except (ValueError, OSError, KeyError, AttributeError, TypeError):
        raise InputError(f"{index}: not a readable safetensors index with a 'weight_map'") from None
    outside = [name for name in names if Path(str(name)).name != name]
    if outside or not names:
        raise InputError(f"{index}: must name files of this folder, not {outside[:3]}")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder}: {len(missing)} of {len(names)} weight files missing, first {missing[0]}")
    return [folder / name for name in names]


def safetensors_header(path: Path) -> str:
    """Hex SHA-256 of a safetensors file's header, which names every tensor, its type, shape and place.

    Raises ValueError where the header is not one or the file is not as long as the header says.
    """
    return hashlib.sha256(_header(path)[0]).hexdigest()


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Of each tensor of a safetensors file. Raises ValueError as `safetensors_header` does."""
    entries = _header(path)[1]
    try:
        return {name: tuple(map(int, one["shape"])) for name, one in entries.items()}
    except (ValueError, KeyError, TypeError):
        raise ValueError(UNREADABLE) from None


def _header(path: Path) -> tuple[bytes, dict[str, Any]]:
    """As it is in the file, and the tensors that it names."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        prefix = handle.read(8)
        if prefix == b"version ":
            raise ValueError("a Git LFS pointer, not the weights themselves")
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER_BYTES + 1
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise ValueError("not a safetensors file, or cut off in its header")
        header = handle.read(length)
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        ends = [entry["data_offsets"][1] for entry in entries.values()]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ValueError(UNREADABLE) from None
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise ValueError(f"{size} bytes long where its header says {expected}: cut off or damaged")
    return header, entries
