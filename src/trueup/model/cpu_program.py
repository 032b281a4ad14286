"""The program by which serving computes on a CPU: whole decode steps (`decode`) and the attention of
prefill steps (`prefill`). It is compiled for the processor at hand, within seconds, when the first model is
loaded; where no C++ compiler is found, torch's operators take all steps.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

SOURCES = tuple(Path(__file__).with_name(name) for name in ("decode_step.cpp", "prefill_attention.cpp"))
COMPILE_S = 300.0
MULTIPLE = 16  # inputs of every matrix, and numbers of a head, are multiples of this
MOST_ROWS = 32  # up to which a step waits for the weights; above, torch's products are faster
OPTIONS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared", f"-DMOST_ROWS={MOST_ROWS}")

ADDRESS, COUNT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


def fields_of(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Fields of a structure of the program's: of one kind, by their names."""
    return [(name, kind) for name in names.split()]


@lru_cache(maxsize=1)
def cpu_program() -> ctypes.CDLL | str:
    """The program, compiled once in a process; or why it cannot be."""
    wanted = os.environ.get("CXX") or "g++"
    compiler = shutil.which(wanted)
    if compiler is None:
        return f"there is no C++ compiler {wanted}"
    with tempfile.TemporaryDirectory(prefix="trueup-program-") as folder:
        made = Path(folder) / "program.so"
        command = [compiler, *OPTIONS, *map(str, SOURCES), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_S)
            found = ctypes.CDLL(str(made))
            found.decode.restype = found.attend_prefill.restype = None
            found.scratch_of.restype = COUNT
            return found
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            return f"{wanted} failed: {said[0] if said else f'exit code {error.returncode}'}"
        except (OSError, subprocess.SubprocessError) as error:
            return f"{wanted} failed: {error}"


def address_of(tensor: torch.Tensor | None) -> int | None:
    """Of its first number, for the program; the tensor is contiguous and outlives the call."""
    return None if tensor is None else tensor.data_ptr()
