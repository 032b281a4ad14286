"""What the runs of bench/finetune.py come to: a table, and each target met or not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from repeat import T_975, ratio_interval

Run = dict[str, Any]

OWN = "trueup"
DEFAULT = "trainer"
OVER_DEFAULT = 2.8  # useful tokens/s over the Trainer's default
OVER_FASTEST = 1.4  # and over the fastest setting of any peer
SAME_STEP = 0.10  # supervised tokens of an optimizer step may differ by this share


def table(runs: list[Run]) -> str:
    """One line a contestant: means over its seeds."""
    lines = [
        f"{'':30}{'useful':>9}{'training':>10}{'of it':>9}{'wall':>8}{'peak':>7}{'held-out':>10}"
        f"{'':>6}{'supervised':>12}{'':>9}{'others':>8}",
        f"{'':30}{'tokens/s':>9}{'s':>10}{'compile':>9}{'s':>8}{'GB':>7}{'loss':>10}"
        f"{'steps':>6}{'a step':>12}{'padding':>9}{'CPU':>8}",
    ]
    for name in _names(runs):
        mine = _of(runs, name)
        failed = [run["error"] for run in runs if run["contestant"] == name and "error" in run]
        if not mine:
            lines.append(f"{name:30}{failed[0]}")
            continue
        compiled = [run["compile_s"] for run in mine if run["compile_s"] is not None]
        compile_s = f"{statistics.fmean(compiled):.1f}" if compiled else "unknown"
        others = [run["others_cpu_share"] for run in mine if run["others_cpu_share"] is not None]
        lines.append(
            f"{name:30}{_mean(mine, 'useful_tokens_per_s'):9.1f}{_mean(mine, 'training_s'):10.1f}"
            f"{compile_s:>9}{_mean(mine, 'wall_s'):8.1f}"
            f"{_mean(mine, 'peak_bytes') / 1e9:7.2f}{_mean(mine, 'held_out_loss'):10.4f}"
            f"{_mean(mine, 'optimizer_steps'):6.0f}{_mean(mine, 'supervised_per_step'):12.0f}"
            f"{_mean(mine, 'padding_share'):9.1%}{f'{max(others):.0%}' if others else 'unknown':>8}"
            + (f"   {len(failed)} failed: {failed[0]}" if failed else "")
        )
    return "\n".join(lines)


def verdicts(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """Each target by name: `met` (None where it cannot be said) and the sentence with its figures."""
    peers = [name for name in _names(runs) if name != OWN and _of(runs, name)]
    if not _of(runs, OWN) or not peers:
        return {"all": {"met": None, "text": "trueup or every peer is without a run: nothing to compare"}}
    found = {"same step": _same_step(runs)}
    if DEFAULT in peers:
        found["over the Trainer's default"] = _faster(runs, DEFAULT, OVER_DEFAULT)
        found["loss"] = _loss(runs, DEFAULT)
    fastest = max(peers, key=lambda name: _mean(_of(runs, name), "useful_tokens_per_s"))
    found["over the fastest peer"] = _faster(runs, fastest, OVER_FASTEST)
    found["memory"] = _memory(runs, peers)
    return found


def _faster(runs: list[Run], peer: str, target: float) -> dict[str, Any]:
    logs = _paired(
        runs, peer, lambda own, its: math.log(own["useful_tokens_per_s"] / its["useful_tokens_per_s"])
    )
    if not logs:
        return {"met": None, "text": f"no seed has both trueup and {peer}"}
    ratio, low, high = ratio_interval(logs)
    each = ", ".join(f"{math.exp(one):.2f}" for one in logs)
    text = f"{ratio:.2f} times {peer} ({_interval(low, high)}; by seed {each}), target {target}"
    return {"met": ratio >= target, "text": text, "ratio": ratio, "interval": _finite(low, high)}


def _loss(runs: list[Run], peer: str) -> dict[str, Any]:
    """Met unless worse by more than the seeds scatter: unless the interval of the difference is above 0."""
    differences = _paired(runs, peer, lambda own, its: own["held_out_loss"] - its["held_out_loss"])
    if len(differences) < 2:
        return {"met": None, "text": "one seed does not say what is noise"}
    n, mean = len(differences), statistics.fmean(differences)
    half = T_975[min(n - 2, len(T_975) - 1)] * statistics.stdev(differences) / math.sqrt(n)
    own, its = (_mean(_of(runs, name), "held_out_loss") for name in (OWN, peer))
    each = ", ".join(f"{one:+.4f}" for one in differences)
    text = (
        f"held-out loss {own:.4f}, {peer} {its:.4f}: {mean:+.4f} "
        f"({_interval(mean - half, mean + half, '+.4f')}; by seed {each})"
    )
    return {"met": mean - half <= 0, "text": text, "difference": mean, "interval": [mean - half, mean + half]}


def _memory(runs: list[Run], peers: list[str]) -> dict[str, Any]:
    """trueup's whole process against the peers' training alone, which is never more than their process."""
    smallest = min(peers, key=lambda name: _mean(_of(runs, name), "peak_bytes"))
    own, its = (_mean(_of(runs, name), "peak_bytes") for name in (OWN, smallest))
    ratio = f"{own / its:.2f} of {smallest} with {its / 1e9:.2f} GB"
    text = f"peak memory {own / 1e9:.2f} GB, {ratio}, target at most 1"
    return {"met": own <= its, "text": text, "ratio": own / its}


def _same_step(runs: list[Run]) -> dict[str, Any]:
    sizes = {name: _mean(_of(runs, name), "supervised_per_step") for name in _names(runs) if _of(runs, name)}
    own = sizes[OWN]
    apart = {name: size / own - 1 for name, size in sizes.items() if name != OWN}
    worst = max(apart, key=lambda name: abs(apart[name]))
    text = (
        f"trueup has {own:.0f} supervised tokens an optimizer step; furthest from it is {worst} with "
        f"{sizes[worst]:.0f} ({apart[worst]:+.1%}), limit {SAME_STEP:.0%}"
    )
    return {"met": abs(apart[worst]) <= SAME_STEP, "text": text}


def _names(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(run["contestant"] for run in sorted(runs, key=lambda run: run["place"])))


def _of(runs: list[Run], name: str) -> list[Run]:
    return [run for run in runs if run["contestant"] == name and "error" not in run]


def _mean(runs: list[Run], key: str) -> float:
    return statistics.fmean(run[key] for run in runs)


def _paired(runs: list[Run], peer: str, compare: Callable[[Run, Run], float]) -> list[float]:
    own, its = ({run["seed"]: run for run in _of(runs, name)} for name in (OWN, peer))
    return [compare(own[seed], its[seed]) for seed in sorted(own.keys() & its.keys())]


def _interval(low: float, high: float, form: str = ".2f") -> str:
    if not math.isfinite(high):
        return "one seed, so no interval"
    return f"95% interval {low:{form}} to {high:{form}}"


def _finite(low: float, high: float) -> list[float] | None:
    return [low, high] if math.isfinite(high) else None
