"""The house stands on its floors: imports go down only, and nothing heavy is loaded where it must not be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "trueup"

# Each room (a folder, or a module beside them) and the rooms it may import from. The order is that of the
# floors of docs/architecture.md.
ALLOWED = {
    "schema": set(),
    "files": set(),
    "cache": {"schema", "files"},
    "checkpoint": {"schema", "files"},
    "recipe": {"schema"},
    "catalog": {"schema"},
    "device": {"schema", "catalog"},
    "analysis": {"schema", "catalog"},
    "store": {"schema", "files"},
    "telemetry": {"schema", "files", "catalog", "device"},
    "model": {"schema", "files", "checkpoint", "recipe", "catalog", "device"},
    "data": {"schema", "files", "recipe", "catalog", "device"},
    "train": {
        *("schema", "cache", "checkpoint", "recipe", "catalog", "device", "analysis", "telemetry"),
        *("model", "data"),
    },
    "serve": {"schema", "files", "recipe", "catalog", "device", "analysis", "telemetry", "model"},
    "load": {"schema", "files", "catalog", "analysis", "telemetry"},
    "report": {"schema", "files", "catalog", "analysis"},
    "home": {"schema", "files"},
    "api": {"schema", "catalog", "analysis", "store", "home"},
    "cli": {
        *("schema", "files", "cache", "checkpoint", "recipe", "catalog", "device", "analysis", "store"),
        *("telemetry", "model", "data", "train", "serve", "load", "report", "home"),
    },
}
ENTRANCES = {"__init__": {"api"}, "__main__": {"cli"}}
HEAVY = {"torch", "transformers", "peft"}
NEVER_IN_LIGHT_COMMANDS = HEAVY | {"pyarrow", "scipy", "numpy"}
WITHOUT_TORCH = {
    *("schema", "files", "cache", "checkpoint", "recipe", "catalog", "store", "analysis", "report"),
    *("home", "api", "load"),
}
VENDOR = ("pynvml", "torch.cuda", "torch_neuronx", "torch.neuron")
SCHEMA_MAY_USE = {"pydantic", "trueup"}


def modules(room: str) -> list[Path]:
    folder = SOURCE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [SOURCE / f"{room}.py"]


def imports(path: Path, *, typing_only: bool = False) -> Iterator[str]:
    """Absolute names of everything a file imports, inside functions too, `if TYPE_CHECKING` left out."""
    package = ("trueup", *path.relative_to(SOURCE).parts[:-1])
    tree = ast.parse(path.read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in hidden and not typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join((*base, *([node.module] if node.module else [])))
            if node.module in (None, "trueup"):
                yield from (".".join((*base, alias.name)) for alias in node.names)


def test_every_room_is_known() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.stem for path in SOURCE.glob("*.py")}
    assert folders | files == set(ALLOWED) | set(ENTRANCES)


@pytest.mark.parametrize("room", [*ALLOWED, *ENTRANCES])
def test_imports_go_down_only(room: str) -> None:
    allowed = {**ALLOWED, **ENTRANCES}[room] | {room}
    for path in modules(room):
        for name in imports(path, typing_only=True):
            parts = name.split(".")
            if parts[0] == "trueup" and len(parts) > 1 and parts[1] in ALLOWED:
                assert parts[1] in allowed, f"{path.relative_to(SOURCE)} imports {name}"


@pytest.mark.parametrize("room", sorted(WITHOUT_TORCH))
def test_rooms_without_torch_never_name_it(room: str) -> None:
    for path in modules(room):
        assert not {name.split(".")[0] for name in imports(path)} & HEAVY, path


def test_schema_needs_only_pydantic() -> None:
    for path in modules("schema"):
        roots = {name.split(".")[0] for name in imports(path)}
        assert roots <= SCHEMA_MAY_USE | set(sys.stdlib_module_names), path


def test_files_needs_only_the_standard_library() -> None:
    for path in modules("files"):
        assert {name.split(".")[0] for name in imports(path)} <= set(sys.stdlib_module_names), path


def test_vendor_modules_are_named_in_device_alone() -> None:
    for path in SOURCE.rglob("*.py"):
        if "device" in path.relative_to(SOURCE).parts[:1]:
            continue
        tree = ast.parse(path.read_text())
        dotted = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for name in dotted | set(imports(path)):
            assert not name.startswith(VENDOR), f"{path.relative_to(SOURCE)} names {name}"


@pytest.mark.parametrize(
    "command", [["--help"], ["runs", "list"], ["bill", "--help"], ["recipe", "check", "recipes/demo.yaml"]]
)
def test_light_commands_load_nothing_heavy(command: list[str], tmp_path: Path) -> None:
    probe = (
        "import sys\n"
        "from trueup.cli import main\n"
        f"sys.argv = ['trueup', *{command!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"loaded = [name for name in {sorted(NEVER_IN_LIGHT_COMMANDS)!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env={"TRUEUP_HOME": str(tmp_path), "PATH": ""},
        cwd=SOURCE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_importing_trueup_loads_nothing_else() -> None:
    probe = (
        "import sys\nimport trueup\n"
        "loaded = [n for n in sys.modules if n.startswith('trueup.') or n in ('pydantic', 'sqlalchemy')]\n"
        "assert not loaded, loaded\n"
        "assert trueup.runs.__module__ == 'trueup.api'\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_folder_has_a_name_that_says_nothing() -> None:
    names = {path.name for path in SOURCE.rglob("*") if path.is_dir()} | {
        p.stem for p in SOURCE.rglob("*.py")
    }
    assert not names & {"utils", "util", "common", "core", "helpers", "misc", "experiments"}
