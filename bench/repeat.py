"""Runs of the demo recipe in fresh processes, for the benchmarks beside this file."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HOME = Path(os.environ.get("TRUEUP_HOME", ROOT / ".demo"))

# Two-sided 97.5% points of Student's t by degrees of freedom (1 to 12), so that printing needs no scipy.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)


DEMO = ROOT / "recipes" / "demo.yaml"


def train(
    name: str, *settings: str, recipe: Path = DEMO, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """One run of a recipe with `settings`, `variables` added to its environment; returns its record, as
    `runs show --json` does."""
    command = [sys.executable, "-m", "trueup", "train", str(recipe), "--json"]
    for setting in (f"name={name}", "train.stop.usd=null", *settings):
        command += ["--set", setting]
    env = {**os.environ, "TRUEUP_HOME": str(HOME), **(variables or {})}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def value(record: dict[str, Any], name: str) -> float:
    """A measurement's value; a run without it ends the benchmark with the reason."""
    found = record["measurements"][name]
    if found["value"] is None:
        sys.exit(f"run {record['id']}: {name} is unavailable: {found['reason']}")
    return float(found["value"])


def ratio_interval(log_ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean of paired ratios with its 95% interval (paired t on log-ratios)."""
    n = len(log_ratios)
    mean, half = statistics.fmean(log_ratios), math.inf
    if 2 <= n <= len(T_975) + 1:
        half = T_975[n - 2] * statistics.stdev(log_ratios) / math.sqrt(n)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
