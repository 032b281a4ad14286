"""`trueup cache list|export|import|prune`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trueup.home import find_home
from trueup.schema import InputError, StorageError
from trueup.schema.counting import counted

from .output import JSON_OPTION, print_json, print_rich, say

if TYPE_CHECKING:
    from trueup.cache import CacheEntry

app = typer.Typer(help="Compiled code kept between runs: list, carry, remove.", no_args_is_help=True)


@app.command("list")
def list_caches(as_json: bool = JSON_OPTION) -> None:
    """List the compile caches of this home, the last used first."""
    entries = _entries()
    if as_json:
        print_json([_document(entry) for entry in entries])
    elif not entries:
        say("no compile caches yet; a training run that compiles makes one")
    else:
        from trueup.report.caches import caches_table

        print_rich(caches_table(entries, datetime.now(UTC)))


@app.command("export")
def export_cache(
    key: str = typer.Argument(help="Key of a cache, or a unique prefix of it.", metavar="KEY"),
    out: Path | None = typer.Option(None, "-o", "--output", help="The file to write; default KEY.zip."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Write one compile cache as a zip that another trueup can import."""
    from trueup.cache import archive

    key = _resolve(key)
    path = out or Path(f"{key}.zip")
    manifest = archive.export_cache(find_home().path, key, path)
    size = path.stat().st_size
    if as_json:
        print_json({"key": key, "path": str(path), "files": len(manifest.files), "bytes": size})
    else:
        say(f"wrote {path}: compile cache {key}, {counted(len(manifest.files), 'file')}")


@app.command("import")
def import_cache(
    path: Path = typer.Argument(help="A zip that `trueup cache export` wrote.", metavar="FILE"),
    trust: bool = typer.Option(
        False, "--trust-cache", help="Take compiled code that another home signed: you trust who made it."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Check a compile cache, sign it for this home and add it."""
    from trueup.cache import archive

    manifest = archive.import_cache(find_home().for_writing().path, path, trust=trust)
    if as_json:
        print_json({"key": manifest.key, "files": len(manifest.files), "bytes": manifest.size_bytes})
    else:
        say(f"compile cache {manifest.key} imported: {counted(len(manifest.files), 'file')}")


@app.command()
def prune(
    older_than: float | None = typer.Option(
        None, "--older-than", min=0, help="Remove caches not used for this many days.", metavar="DAYS"
    ),
    everything: bool = typer.Option(False, "--all", help="Remove all of them."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be removed, and remove nothing."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Remove compile caches. Runs that are going on keep what they have."""
    from trueup.cache import CacheStore

    if everything == (older_than is not None):
        raise InputError("say what to remove: --older-than DAYS, or --all")
    store = CacheStore(find_home().path)
    before = datetime.now(UTC) - timedelta(days=older_than or 0)
    try:
        removed = store.prune(before if older_than is not None else None, dry_run=dry_run)
    except OSError as error:
        raise StorageError(f"{store.folder} could not be changed: {error.strerror or error}") from None
    if as_json:
        print_json({"removed": removed, "dry_run": dry_run})
    else:
        verb = "would be removed" if dry_run else "removed"
        say(f"{counted(len(removed), 'compile cache')} {verb}{': ' if removed else ''}{', '.join(removed)}")


def _entries() -> list[CacheEntry]:
    from trueup.cache import CacheStore

    store = CacheStore(find_home().path)
    try:
        return store.entries()
    except OSError as error:
        raise StorageError(f"{store.folder} cannot be read: {error.strerror or error}") from None


def _resolve(asked: str) -> str:
    keys = [entry.key for entry in _entries()]
    found = [asked] if asked in keys else [key for key in keys if asked and key.startswith(asked)]
    if len(found) != 1:
        what = f"{len(found)} compile caches begin" if found else "no compile cache of this home begins"
        raise InputError(f"{what} with {asked!r}; `trueup cache list` shows their keys")
    return found[0]


def _document(entry: CacheEntry) -> dict[str, object]:
    manifest = entry.manifest
    return {
        "key": entry.key,
        "usable": entry.problem is None,
        "problem": entry.problem,
        "created": _iso(manifest.created) if manifest else None,
        "last_used": _iso(entry.last_used),
        "files": len(manifest.files) if manifest else None,
        "bytes": manifest.size_bytes if manifest else None,
        "facts": manifest.facts if manifest else None,
    }


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
