"""Harvest the standard library's docstrings. Run as a script, in an interpreter of its own; prints one JSON
document.

The parent starts it as `python -I -S -B stdlib_harvest.py` with an empty environment, so what the parent
imported, its site packages and its variables cannot change the result, and importing a hundred modules leaves
no trace in the parent. Inside, standard streams go to the null device and an audit hook refuses the network,
other processes, and every write to a file. Standard library only: this file must not import trueup.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

# Not imported, and why.
SKIPPED: dict[str, str] = {
    "antigravity": "opens a web browser",
    "this": "prints a poem",
    "idlelib": "a desktop program",
    "tkinter": "needs a window system, absent from many builds",
    "turtle": "needs a window system",
    "turtledemo": "opens windows",
    "test": "the test suite, absent from many builds",
    "lib2to3": "warns on import, gone in Python 3.13",
    "distutils": "gone in Python 3.12; replaced in part by setuptools where that is installed",
    "ensurepip": "an installer",
    "site": "changes sys.path and builtins when run",
    "pydoc_data": "one table of text, no objects",
    "genericpath": "the inside of os.path",
    "posixpath": "read as os.path, its public name",
    "ntpath": "read as os.path, its public name",
    "posix": "read as os, its public name",
    "nt": "read as os, its public name",
}

# Left out on every version, so that Python 3.11 to 3.14 give nearly the same records.
REMOVED_LATER = frozenset(
    {
        "aifc",
        "asynchat",
        "asyncore",
        "audioop",
        "cgi",
        "cgitb",
        "chunk",
        "crypt",
        "imghdr",
        "imp",
        "mailcap",
        "msilib",
        "nis",
        "nntplib",
        "nturl2path",
        "ossaudiodev",
        "pipes",
        "smtpd",
        "sndhdr",
        "spwd",
        "sre_compile",
        "sre_constants",
        "sre_parse",
        "sunau",
        "telnetlib",
        "uu",
        "xdrlib",
    }
)

# Public modules that live one level down and are what people import.
INNER = (
    "collections.abc",
    "concurrent.futures",
    "importlib.metadata",
    "importlib.resources",
    "os.path",
    "unittest.mock",
    "urllib.parse",
    "urllib.request",
    "xml.etree.ElementTree",
)

MIN_CHARACTERS = 34  # below this a docstring says little more than the name ("Return the name.")

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")  # changes from process to process
_SIGNATURE = re.compile(r"\w+\(.*\)")  # what dataclass and namedtuple write for themselves

_REFUSED_EVENTS = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "os.system",
        "pty.spawn",
        "subprocess.Popen",
        "webbrowser.open",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.link",
        "os.symlink",
        "os.truncate",
        "os.chmod",
        "os.chown",
        "shutil.copyfile",
        "shutil.move",
        "shutil.rmtree",
        "tempfile.mkdtemp",
        "tempfile.mkstemp",
    }
)
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def refuse_side_effects(event: str, args: tuple[Any, ...]) -> None:
    """Audit hook: what an import must not do here fails inside that import."""
    if event in _REFUSED_EVENTS or (event.startswith("socket.") and event != "socket.gethostname"):
        raise PermissionError(f"{event} is refused while reading docstrings")
    if event == "open":
        mode, flags = args[1], args[2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (
            isinstance(flags, int) and flags & _WRITE_FLAGS
        ):
            raise PermissionError(f"writing to {args[0]!r} is refused while reading docstrings")


def module_names() -> list[str]:
    """The modules to read, in a fixed order."""
    left_out = REMOVED_LATER | SKIPPED.keys()
    top = (name for name in sys.stdlib_module_names if not name.startswith("_") and name not in left_out)
    return sorted([*top, *INNER])


def import_modules(names: list[str]) -> tuple[dict[str, types.ModuleType], dict[str, str]]:
    """What could be imported, and why the rest could not (another system's modules, optional builds)."""
    loaded: dict[str, types.ModuleType] = {}
    failed: dict[str, str] = {}
    for name in names:
        try:
            loaded[name] = importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return loaded, failed


def docstring(thing: Any, holder: dict[str, Any] | None = None) -> str:
    """The object's own docstring, cleaned; empty where it is missing, too short, or not the same every
    time."""
    raw = holder.get("__doc__") if holder is not None else getattr(thing, "__doc__", None)
    if not isinstance(raw, str):
        return ""
    text = inspect.cleandoc(raw).strip()
    text = "\n".join(line.rstrip() for line in text.splitlines())
    if len(text) < MIN_CHARACTERS or _ADDRESS.search(text) or _SIGNATURE.fullmatch(text):
        return ""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return ""
    return text


def public_members(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name in vars(module) if not name.startswith("_")]
    for name in sorted(set(names)):
        if name.startswith("_"):
            continue
        try:
            yield name, getattr(module, name)
        except BaseException:  # a lazy or deprecated attribute that refuses
            continue


def lives_here(thing: Any, name: str, harvested: set[str]) -> bool:
    """Whether `name` is the module to read `thing` from: it was made there, or in a place that is not itself
    read (the private C module behind a public one), not borrowed from another public module."""
    home = getattr(thing, "__module__", None)
    return not isinstance(home, str) or home == name or home not in harvested


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods the class defines itself. Properties are left out: their docstrings rarely say more than
    their names."""
    for name in sorted(vars(cls)):
        if name.startswith("_"):
            continue
        member = vars(cls)[name]
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if not isinstance(function, type) and inspect.isroutine(function):
            yield name, function


def harvest() -> dict[str, Any]:
    """Every docstring once: an object reachable by several names is read under the first, and so is a text.

    A method name is read once too. Methods that share a name are mostly near-copies (`str.split`,
    `bytes.split`, `bytearray.split`; every override of `close`), and a near-copy on the other side of a split
    flatters the held-out figures."""
    loaded, failed = import_modules(module_names())
    # os.path is posixpath or ntpath by another name
    harvested = {*loaded, *(module.__name__ for module in loaded.values())}
    found: list[tuple[str, str, str]] = []
    objects: dict[int, Any] = {}
    texts: set[str] = set()
    method_names: set[str] = set()

    def keep(name: str, kind: str, thing: Any, text: str) -> None:
        if not text or id(thing) in objects or text in texts:
            return
        if kind == "method":
            last = name.rpartition(".")[2]
            if last in method_names:
                return
            method_names.add(last)
        objects[id(thing)] = thing  # held, so that its id is not used again
        texts.add(text)
        found.append((name.removeprefix("builtins."), kind, text))

    for module_name, module in loaded.items():
        keep(module_name, "module", module, docstring(module))
        for name, thing in public_members(module):
            if not lives_here(thing, module.__name__, harvested):
                continue
            path = f"{module_name}.{name}"
            if isinstance(thing, type):
                keep(path, "class", thing, docstring(thing, dict(vars(thing))))
                for method, function in methods(thing):
                    keep(f"{path}.{method}", "method", function, docstring(function))
            elif inspect.isroutine(thing):
                keep(path, "function", thing, docstring(thing))
    return {"docs": found, "not_imported": failed}


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    warnings.simplefilter("ignore")
    sys.addaudithook(refuse_side_effects)
    json.dump(harvest(), out)
    out.flush()
    os._exit(0)  # no exit handlers of the modules that were imported


if __name__ == "__main__":
    main()
