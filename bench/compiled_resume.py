"""A compiled run of the demo's recipe is interrupted after a checkpoint, and goes on from what that carries.

    python bench/compiled_resume.py [--recipe FILE] [--set KEY=VALUE ...]

Cold: a home without compiled code, and the compiler's own cache folders empty. Once a checkpoint is whole the
run is interrupted. Then the home's compile cache goes, the compiler's folders are empty again, and a fresh
process resumes: all it finds is `compile-cache.zip` in the checkpoint. What was found in the cache and what
was not is by PyTorch's counters in each process; what went past the cache counts as not found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from repeat import DEMO, HOME

COUNTED = "counted"
TARGET_SHARE = 0.25
SETTINGS = (
    *("compile.mode=layer", "train.stop.usd=null", "train.max_steps=100"),
    *("evaluate.every=null", "evaluate.max_tokens=512", "checkpoint.every=2"),
)
MORE_STEPS = 2
PATIENCE_S = 1800
CACHE_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class Process(NamedTuple):
    """What one process of the run compiled."""

    found: int
    not_found: int
    compiles: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipe", default=str(DEMO))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    asked = parser.parse_args()
    settings = [part for one in (*SETTINGS, *asked.set) for part in ("--set", one)]
    folder = Path(tempfile.mkdtemp(prefix="trueup-bench-"))
    try:
        home = _home(folder, asked.recipe, settings)
        cold = _interrupted(folder, home, asked.recipe, settings)
        _print("cold", cold)
        shutil.rmtree(home / "compile-cache")
        resumed = _resumed(folder, home, asked.recipe, settings)
        _print("resumed", resumed)
        _print_verdicts(cold, resumed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _home(folder: Path, recipe: str, settings: list[str]) -> Path:
    """A home without runs and compiled code; model and data are the benchmarks' own."""
    command = [sys.executable, "-m", "trueup", "prepare", recipe, *settings]
    environment = {**os.environ, "TRUEUP_HOME": str(HOME)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    home = folder / "home"
    home.mkdir()
    for name in ("models", "data"):
        (home / name).symlink_to(HOME / name, target_is_directory=True)
    return home


def _started(folder: Path, home: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
    """`trueup train` in a process whose compiler has empty folders, and where it will leave its counters."""
    caches = Path(tempfile.mkdtemp(dir=folder))
    environment = {**os.environ, "TRUEUP_HOME": str(home)}
    environment |= {name: str(caches / name.lower()) for name in CACHE_FOLDERS}
    counters = caches / "counters.json"
    command = [sys.executable, __file__, COUNTED, str(counters), "train", *arguments]
    with (folder / "train.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log), counters


def _interrupted(folder: Path, home: Path, recipe: str, settings: list[str]) -> Process:
    process, counters = _started(folder, home, recipe, *settings)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not list(home.glob("runs/*/checkpoints/*[0-9]/manifest.json")):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the run made no checkpoint:\n{(folder / 'train.log').read_text()}")
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    finally:
        process.kill()
    return _process(counters, _compiles(home))


def _resumed(folder: Path, home: Path, recipe: str, settings: list[str]) -> Process:
    (run,) = (home / "runs").iterdir()
    before = _compiles(home)
    done = max(int(path.name) for path in (run / "checkpoints").glob("*[0-9]"))
    more = ("--set", f"train.max_steps={done + MORE_STEPS}", "--allow-change", "train.max_steps")
    process, counters = _started(folder, home, recipe, *settings, *more, "--resume", run.name)
    try:
        if process.wait(PATIENCE_S):
            sys.exit(f"the run did not go on:\n{(folder / 'train.log').read_text()}")
    finally:
        process.kill()
    return _process(counters, _compiles(home)[len(before) :])


def _compiles(home: Path) -> list[dict[str, Any]]:
    """The run's compile events, of all its processes in the order they were told."""
    (file,) = home.glob("runs/*/events.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    return [event["data"] for event in events if event["kind"] == "compile"]


def _process(counters: Path, compiles: list[dict[str, Any]]) -> Process:
    counted = json.loads(counters.read_text())
    not_found = sum(counted[name] for name in counted if name.endswith(("_miss", "_bypass")))
    found = sum(counted[name] for name in counted if name.endswith("_hit"))
    return Process(found, not_found, len(compiles), sum(one["seconds"] for one in compiles))


def _print(name: str, one: Process) -> None:
    print(
        f"{name:8} {one.compiles:3} compiles, {one.seconds:7.2f} s; "
        f"{one.found} graphs found in the cache, {one.not_found} not",
        flush=True,
    )


def _print_verdicts(cold: Process, resumed: Process) -> None:
    share = resumed.seconds / cold.seconds
    nothing_anew = resumed.compiles and resumed.found and not resumed.not_found
    met = "met" if nothing_anew else "not met"
    print(f"\n{met:10}{resumed.not_found} cache misses of the resumed run, target 0")
    met = "met" if share <= TARGET_SHARE else "not met"
    print(f"{met:10}it compiles for {share:.1%} of the cold seconds, target at most {TARGET_SHARE:.0%}")


def counted(out: Path, arguments: list[str]) -> None:
    """`trueup` with these arguments; in the end, PyTorch's counters of its compiler's caches in `out`."""
    import trueup.cli

    sys.argv = ["trueup", *arguments]
    try:
        trueup.cli.main()
    finally:
        from torch._dynamo.utils import counters

        caches = {**counters["inductor"], **counters["aot_autograd"]}
        out.write_text(json.dumps({name: count for name, count in caches.items() if "cache_" in name}))


if __name__ == "__main__":
    if sys.argv[1:2] == [COUNTED]:
        counted(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
