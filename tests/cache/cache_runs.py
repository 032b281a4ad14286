"""Runs with a stand-in for the compiler: files appear in the folder that a variable names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trueup.cache import CacheStore, CompileCache, key_of, opened

VARIABLE = "A_COMPILERS_CACHE"
FACTS = {"device": "cpu", "torch": "2.13.0", "shapes": [[4, 128]]}
KEY = key_of(FACTS)
FILES = {"ab/kernel.o": b"\x7fELF code", "fxgraph/x/entry": b"a graph", "ab/kernel.cpp": b"int main();"}


@dataclass
class Run:
    """What a run found when it began, and what was said to the person at the terminal."""

    found: dict[str, bytes] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        return "\n".join(self.said)


def run(home: Path, adds: dict[str, bytes] | None = None, *, trust: bool = False) -> Run:
    """A run that compiles `adds`."""
    one = Run()
    with opened(home, FACTS, variables=[VARIABLE], trust=trust, say=one.said.append) as cache:
        one.found = contents(cache)
        compile_files(cache, adds or {})
    return one


def compile_files(cache: CompileCache, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = Path(cache.environment[VARIABLE], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def contents(cache: CompileCache) -> dict[str, bytes]:
    folder = Path(cache.environment[VARIABLE])
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def blob(home: Path, name: str) -> Path:
    """Where the store has the content of a compiled file."""
    store = CacheStore(home)
    manifest = store.read(KEY)
    assert manifest is not None
    return store.folder / KEY / "files" / manifest.files[f"{VARIABLE}/{name}"].sha256
