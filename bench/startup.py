"""How long the light commands take to answer: at most 0.5 s each, torch never loaded.

    python bench/startup.py

Prints the median and the fastest of several runs of each command; exits 1 if a fastest one is over the limit
(the fastest, because a busy neighbour only ever adds).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 0.5
REPEATS = 9


def seconds_of(arguments: list[str], home: Path) -> float:
    environment = {**os.environ, "TRUEUP_HOME": str(home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    start = time.perf_counter()
    subprocess.run(
        [str(Path(sys.executable).parent / "trueup"), *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


def main() -> int:
    recipe = Path(__file__).parent.parent / "recipes" / "tiny.yaml"
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        seconds_of(["train", str(recipe)], home)
        for arguments in (["--help"], ["runs", "list"], ["bill", "last"]):
            seconds_of(arguments, home)  # the first one may compile bytecode
            found = [seconds_of(arguments, home) for _ in range(REPEATS)]
            name = "trueup " + " ".join(arguments)
            print(f"{name:<20} median {statistics.median(found):.3f} s   fastest {min(found):.3f} s")
            slow |= min(found) > LIMIT_S
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
