"""A home with ten thousand runs: how long `runs list`, `compare` over 200 runs and `report` of one take.

`python bench/many_runs.py` trains the tiny model once, makes the home of copies of that run that differ in
name, start, seed and figures, takes them into the database, and then times each command as a process of its
own, from its start to its end. It ends with 1 where a median is a second or more. `--home FOLDER` keeps the
home for the next time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes" / "tiny.yaml"
STEPS = 40
LIMIT_S = 1.0
COMPARED = 100  # runs a side
# As they are in every copy. Readings, which the database does not keep, go to the run that is reported on.
FILES = ("steps.jsonl", "evaluations.jsonl", "segments.jsonl", "events.jsonl", "heartbeat")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--home", type=Path, help="keep the home here, and use it if it is there")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trueup-many-") as temporary:
        home = (asked.home or Path(temporary) / "home").absolute()
        if not (home / "runs").is_dir():
            make_home(home, asked.runs)
        began = time.perf_counter()
        listed = json.loads(trueup(home, "runs", "list", "--json"))
        print(f"{len(listed)} runs taken in within {time.perf_counter() - began:.0f} s")
        return measure(home, Path(temporary), asked.repeats)


def measure(home: Path, folder: Path, repeats: int) -> int:
    one = "variant-0-0"
    commands = {
        "trueup --help": ["--help"],
        "runs list": ["runs", "list"],
        "runs list --json, every run": ["runs", "list", "--json"],
        f"compare, {COMPARED} and {COMPARED} runs by name": ["compare", "variant-0-*", "variant-1-*"],
        "compare, the same by a setting": ["compare", "train.stop.minutes=1000", "train.stop.minutes=1001"],
        "report of one run": ["report", one, "-o", str(folder / "report.html")],
    }
    slow = 0
    print(f"{'seconds, of ' + str(repeats) + ' processes each':<46}  median     max     CPU")
    for what, arguments in commands.items():
        trueup(home, *arguments)
        times, cpu_s = [], spent_s()
        for _ in range(repeats):
            began = time.perf_counter()
            trueup(home, *arguments)
            times.append(time.perf_counter() - began)
        middle, cpu_s = statistics.median(times), (spent_s() - cpu_s) / repeats
        slow += middle >= LIMIT_S
        verdict = "  too slow" if middle >= LIMIT_S else ""
        print(f"{what:<46}  {middle:6.2f}  {max(times):6.2f}  {cpu_s:6.2f}{verdict}", flush=True)
    return 1 if slow else 0


def spent_s() -> float:
    """CPU seconds of all commands so far: well below the wall clock's where neighbours were at work."""
    found = os.times()
    return found.children_user + found.children_system


def trueup(home: Path, *arguments: str) -> str:
    """The command's stdout; ends the benchmark where it fails."""
    command = [sys.executable, "-m", "trueup", *arguments]
    environment = {**os.environ, "TRUEUP_HOME": str(home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def make_home(home: Path, runs: int) -> None:
    """The run folders. Variant n has the runs variant-n-0, variant-n-1, ...: COMPARED of each."""
    settings = (
        f"train.max_steps={STEPS}",
        "train.epochs=1000",
        "price.usd_per_hour=1",
        "price.source=a benchmark",
    )
    trained = ["train", str(RECIPE), "--json"]
    for setting in settings:
        trained += ["--set", setting]
    run = json.loads(trueup(home, *trained))
    source = home / "runs" / run["id"]
    header = json.loads((source / "run.json").read_text())
    measured = json.loads((source / "measurements.json").read_text())
    rng = random.Random(1)
    for number in range(runs):
        copy_run(home / "runs" / f"{number:08x}", number, header, measured, source, rng)
    shutil.rmtree(source)
    (home / "trueup.sqlite").unlink(missing_ok=True)


def copy_run(
    folder: Path,
    number: int,
    header: dict[str, Any],
    measured: dict[str, Any],
    source: Path,
    rng: random.Random,
) -> None:
    """The run again, under another name and a little slower or faster."""
    variant, repeat = divmod(number, COMPARED)
    speed = rng.lognormvariate(0.01 * (variant % 7), 0.03)
    recipe = json.loads(json.dumps(header["recipe"]))
    recipe["train"] |= {
        "seed": repeat,
        "stop": {"usd": None, "minutes": 1000 + variant, "useful_tokens": None},
    }
    started = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
    identity = {"id": folder.name, "name": f"variant-{variant}-{repeat}", "recipe": recipe}
    identity |= {"recipe_digest": f"{variant:064x}", "started_at": started.isoformat()}
    folder.mkdir()
    for name in FILES + (("samples.jsonl",) if number == 0 else ()):
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    figures = {
        name: {**one, "value": one["value"] * speed if one["value"] is not None else None}
        for name, one in measured.items()
    }
    (folder / "measurements.json").write_text(json.dumps(figures))
    (folder / "run.json").write_text(json.dumps({**header, **identity}))


if __name__ == "__main__":
    sys.exit(main())
