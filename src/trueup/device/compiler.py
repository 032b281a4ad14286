"""Whether torch's own compiler, Inductor, can work on this machine. Found out without importing it."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

INDUCTOR = "inductor"
INDUCTOR_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def inductor_for_cpu() -> tuple[str | None, str]:
    """Inductor writes C++ against Python's headers: it needs a compiler (CXX, else the system's) and them."""
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    found = shutil.which(wanted)
    if found is None:
        return None, f"there is no C++ compiler here ({wanted} is not on the PATH; CXX may name another)"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return None, f"Python's headers are not installed ({header} is missing), and compiled code needs them"
    return INDUCTOR, f"Inductor, with {Path(found).name}"


def inductor_for_cuda(capability: tuple[int, int]) -> tuple[str | None, str]:
    """Inductor writes Triton kernels, whose launchers need a C compiler and Python's headers."""
    if capability < (7, 0):
        return (
            None,
            f"compute capability {capability[0]}.{capability[1]} is below 7.0, the least Triton takes",
        )
    if find_spec("triton") is None:
        return None, "the package triton is not installed"
    names = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang", "cc"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        return None, f"there is no C compiler here ({', '.join(names)}), and Triton needs one"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return None, f"Python's headers are not installed ({header} is missing), and Triton needs them"
    return INDUCTOR, f"Inductor, with Triton and {Path(found).name}"
