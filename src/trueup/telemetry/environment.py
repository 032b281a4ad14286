"""Everything around a run that could explain it, collected once at its start. Secrets never."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import psutil

import trueup
from trueup.device import Device

from .host_load import HostLoad
from .instance import instance
from .origin import process_origin
from .scrub import scrub_arguments, variables_that_matter

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "safetensors",
    "accelerate",
    "numpy",
    "pyarrow",
    "pydantic",
    "psutil",
    "triton",
    "nvidia-ml-py",
    "torch-neuronx",
    "neuronx-cc",
)
LOOK_S = 0.25  # how long others' load is watched; the tick of the kernel's counters is 0.01 s
GIT_WITHIN_S = 2.0


def collect(device: Device, *, metadata: bool) -> dict[str, Any]:
    """The environment as a JSON-able dictionary of sections: host, process, versions, commit, device,
    missing_sensors, variables, load, instance. Takes about 0.3 s.

    `metadata` asks the cloud's metadata service, for 2 s at most.
    """
    return {
        **identity(),
        "versions": _versions(),
        "commit": commit_of(Path(trueup.__file__).resolve()),
        "device": device.describe(),
        "missing_sensors": device.missing(),
        "variables": variables_that_matter(os.environ),
        "load": _load(),
        "instance": instance(metadata=metadata),
    }


def identity() -> dict[str, Any]:
    """The sections by which it can be told whether the process still lives: host and process. Takes no
    time."""
    return {"host": _host(), "process": _process()}


def _host() -> dict[str, Any]:
    return {
        "hostname": socket.gethostname(),
        "os": platform.platform(),
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "python_implementation": platform.python_implementation(),
        "cpus_logical": psutil.cpu_count(),
        "cpus_physical": psutil.cpu_count(logical=False),
        "memory_bytes": psutil.virtual_memory().total,
        "booted_at": _iso(psutil.boot_time()),
    }


def _process() -> dict[str, Any]:
    return {"pid": os.getpid(), "argv": scrub_arguments(sys.argv), "started_at": process_origin()[1]}


def _versions() -> dict[str, str]:
    versions = {"trueup": trueup.__version__}
    for name in PACKAGES:
        try:
            versions[name] = packages.version(name)
        except packages.PackageNotFoundError:
            continue
    return versions


def commit_of(file: Path) -> dict[str, Any]:
    """Commit of the checkout that `file` belongs to, and whether it was changed since; else a reason.

    An installed copy below somebody else's repository is not part of it, so git must know the file.
    """
    try:
        if _git(file.parent, "ls-files", "--", file.name) != file.name:
            return {"reason": "trueup runs from an installed copy, not from a checkout"}
        commit = _git(file.parent, "rev-parse", "HEAD")
        changed = _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError) as error:
        return {"reason": f"no git commit: {type(error).__name__}"}
    return {"commit": commit, "dirty": bool(changed)}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=GIT_WITHIN_S,
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # a look must not write the index
    )
    return done.stdout.strip()


def _load() -> dict[str, Any]:
    host = HostLoad()
    time.sleep(LOOK_S)
    values = host.read()
    averages = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
    return {
        "load_averages": averages,
        "others_cpu_share": values.get("others_cpu_share"),
        "looked_s": LOOK_S,
        "memory_available_bytes": int(values["host_available_bytes"]),
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
