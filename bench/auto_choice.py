"""Is `auto` as good as the best fixed choice of shapes and compile mode? Whole runs, compile included.

    python bench/auto_choice.py [--minutes 1 5] [--choices pack+none ...] [--repeats 3] [-o FILE [--go-on]]

A job is a number of the demo's records, chosen so that packing without compiling takes about so many
minutes. Every choice trains it in a fresh process with nothing compiled beforehand, in turns: each fixed
choice, `auto` in a home without earlier runs, and `auto` in the home of the fixed choices' runs, from which
it learns. The 30-minute job is computed from the parts of the longest measured one. docs/benchmarks.md says
how to read it.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.process import cold_home, run_fresh
from repeat import DEMO, HOME, ROOT, ratio_interval

FIXED = [
    f"{strategy}+{mode}" for strategy in ("pack", "bucket", "max", "longest") for mode in ("none", "layer")
]
AUTO, LEARNT = "auto", "auto, learnt"
WITHIN = 1.10
COMPUTED_MINUTES = 30
# A fixed choice this many times slower than the fastest: ended, not repeated, not tried longer.
HOPELESS = 1.5
# No run goes on beyond so many times the job's minutes, and its start.
LIMIT, START_S = 3.0, 60.0
PILOT = "pack+none"
PILOT_STEPS = 12
SETTINGS = ("train.max_steps=null", "train.stop.usd=null", "evaluate.every=null", "evaluate.max_tokens=1")
COMPILE_CACHE = "compile-cache"  # trueup's, in its home

Run = dict[str, Any]


def main() -> None:
    asked = _arguments()
    document = _earlier(asked) or {"benchmark": "auto choice", "commit": _commit(), "jobs": {}}
    with cold_home(HOME) as home:
        rate = document.get("useful_tokens_per_s") or _rate(home)
        document["useful_tokens_per_s"] = rate
        print(f"{PILOT}: {rate:.0f} useful tokens/s, by which jobs are sized", flush=True)
        data = _prepared([], home)
        runs: dict[str, list[Run]] = {}
        for minutes in sorted(asked.minutes):
            settings = _job(minutes * 60 * rate, data)
            _prepared(settings, home)  # so that no run has to
            job = document["jobs"].setdefault(f"{minutes:g}", {"settings": settings, "runs": {}})
            left_out = _left_out(runs, minutes * 60 * rate)
            names = [name for name in asked.choices if name not in left_out] + [AUTO, LEARNT]
            runs = job["runs"]
            _say(minutes, settings, left_out)
            for _ in _measure(minutes, settings, asked.repeats, names, home, runs):
                _keep(document, asked.output)
            job["verdicts"] = _verdicts(minutes, runs)
            _keep(document, asked.output)
        tokens = COMPUTED_MINUTES * 60 * rate
        document["jobs"][f"{COMPUTED_MINUTES:g}"] = _computed(runs, tokens, _job(tokens, data), home)
    _keep(document, asked.output)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, nargs="+", default=[1, 5], help="of the measured jobs")
    parser.add_argument(
        "--choices",
        nargs="+",
        choices=FIXED,
        default=FIXED,
        metavar="CHOICE",
        help="fixed ones to measure, where the others are known to lose: " + ", ".join(FIXED),
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds over all choices")
    parser.add_argument("-o", "--output", type=Path, help="write everything here as JSON")
    parser.add_argument("--go-on", action="store_true", help="runs that FILE already has are not made again")
    return parser.parse_args()


def _earlier(asked: argparse.Namespace) -> dict[str, Any] | None:
    """What a measuring that ended early wrote; of the same code only, or the runs are not one table's."""
    if not asked.go_on or asked.output is None or not asked.output.exists():
        return None
    document: dict[str, Any] = json.loads(asked.output.read_text(encoding="utf-8"))
    if document["commit"] != _commit():
        sys.exit(f"{asked.output} is of commit {document['commit']}: go on there, or begin anew")
    return document


def _commit() -> str:
    """The last commit that touched what is measured, and whether anything of it has changed since."""
    what = ("--", "src", "recipes")
    return _git("log", "-1", "--format=%h", *what) + ("-dirty" if _git("status", "--short", *what) else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _rate(home: dict[str, str]) -> float:
    """Useful tokens a second of a short run without compiling."""
    pilot = _train(PILOT, [f"train.max_steps={PILOT_STEPS}", "train.epochs=100"], home)
    if "error" in pilot:
        sys.exit(f"the pilot run failed: {pilot['error']}")
    return float(pilot["useful_tokens"] / pilot["step_s"])


def _keep(document: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


# --- runs ---------------------------------------------------------------------------------------------------


def _say(minutes: float, job: list[str], left_out: dict[str, float]) -> None:
    print(f"\na job of about {minutes:g} min: {' '.join(job)}", flush=True)
    for name, wall_s in left_out.items():
        why = f"from its parts it would take {wall_s:.0f} s" if math.isfinite(wall_s) else "it did not end"
        print(f"     {name:14}left out: of the shorter job {why}", flush=True)


def _measure(
    minutes: float,
    job: list[str],
    repeats: int,
    names: list[str],
    home: dict[str, str],
    runs: dict[str, list[Run]],
) -> Iterator[Run]:
    """Adds to `runs` what they lack of `names`, and yields each as it is made."""
    for name in names:
        runs.setdefault(name, [])
    for repeat in range(repeats):
        for name in names:
            if len(runs[name]) > repeat or (repeat and _hopeless(name, runs)):
                continue
            limit_s = LIMIT * minutes * 60 + START_S
            if name in FIXED:
                limit_s = min(limit_s, HOPELESS * _fastest(runs) + START_S)
            if name == AUTO:
                with cold_home(HOME) as unread:
                    run = _train(name, job, unread, limit_s=limit_s)
            else:
                run = _train(name, job, home, limit_s=limit_s)
            runs[name].append(run)
            print(f"  {repeat + 1}  {name:14}{_told(run)}", flush=True)
            yield run


def _hopeless(name: str, runs: dict[str, list[Run]]) -> bool:
    first = runs[name][0]
    return name in FIXED and ("error" in first or first["wall_s"] > HOPELESS * _fastest(runs))


def _fastest(runs: dict[str, list[Run]]) -> float:
    """Seconds of the fastest first run so far."""
    walls = (run["wall_s"] for each in runs.values() for run in each[:1] if "error" not in run)
    return min(walls, default=math.inf)


def _left_out(shorter: dict[str, list[Run]], useful_tokens: float) -> dict[str, float]:
    """Fixed choice -> seconds that its parts of a shorter job come to, of the hopeless ones; without an end,
    of what had to be ended there."""
    walls = _walls(shorter, useful_tokens)
    slow = {name: wall for name, wall in walls.items() if wall > HOPELESS * min(walls.values())}
    return slow | {name: math.inf for name in FIXED if name in shorter and name not in walls}


def _train(name: str, settings: list[str], home: dict[str, str], limit_s: float | None = None) -> Run:
    """One run of the demo's recipe under a choice, nothing compiled beforehand."""
    shutil.rmtree(Path(home["TRUEUP_HOME"]) / COMPILE_CACHE, ignore_errors=True)
    command = [sys.executable, "-m", "trueup", "train", str(DEMO), "--json"]
    for setting in (*SETTINGS, *settings, *_choice(name)):
        command += ["--set", setting]
    with tempfile.TemporaryDirectory(prefix="trueup-bench-") as compiled:
        done = run_fresh(command, limit_s=limit_s, **{**home, "TORCHINDUCTOR_CACHE_DIR": compiled})
    if done.code:
        return {"error": f"ended after {limit_s:.0f} s" if done.ended_by_limit else done.complaint()}
    record = json.loads(done.output)
    spans = {span["name"]: span["seconds"] for span in record["spans"]}
    return {
        "wall_s": done.wall_s,
        "step_s": spans["step"] + spans.get("data_wait", 0.0),
        "compile_s": spans.get("compile", 0.0),
        "warm_up_s": spans.get("warm_up", 0.0),
        "steps": record["measurements"]["steps_count"]["value"],
        "useful_tokens": record["measurements"]["useful_tokens"]["value"],
        "chose": f"{record['choices']['shapes']['value']}+{record['choices']['compile']['value']}",
        "others_cpu_share": done.others_cpu_share,
    }


def _choice(name: str) -> list[str]:
    strategy, _, mode = ("auto", "", "auto") if name in (AUTO, LEARNT) else name.partition("+")
    return [f"shapes.strategy={strategy}", f"compile.mode={mode}"]


def _told(run: Run) -> str:
    if "error" in run:
        return str(run["error"])
    others = run["others_cpu_share"]
    return (
        f"{run['wall_s']:8.1f} s  of it steps {run['step_s']:7.1f} s, compiling {run['compile_s']:6.1f} s, "
        f"warm-up {run['warm_up_s']:5.1f} s  {run['chose']}"
        + ("" if others is None else f"  others {others:.0%} of the CPU")
    )


# --- the job ------------------------------------------------------------------------------------------------


def _prepared(job: list[str], home: dict[str, str]) -> dict[str, Any]:
    """What `trueup prepare` says of the job's data."""
    command = [sys.executable, "-m", "trueup", "prepare", str(DEMO), "--json"]
    for setting in job:
        command += ["--set", setting]
    done = run_fresh(command, **home)
    if done.code:
        sys.exit(f"the data could not be prepared: {done.complaint()}")
    found: dict[str, Any] = json.loads(done.output)
    return found


def _job(useful_tokens: float, data: dict[str, Any]) -> list[str]:
    """Settings for about so many useful tokens: some of the records once, or all of them more than once."""
    training = data["tokens"]["total"] * data["splits"]["train"] / data["records"]
    if useful_tokens <= training:
        records = math.ceil(data["records_read"] * useful_tokens / training)
        return [f"data.limit={records}", "train.epochs=1"]
    return [f"train.epochs={useful_tokens / training:.3f}"]


# --- verdicts -----------------------------------------------------------------------------------------------


def _verdicts(minutes: float, runs: dict[str, list[Run]]) -> dict[str, Any]:
    walls = {
        name: [run["wall_s"] for run in each]
        for name, each in runs.items()
        if each and not any("error" in run for run in each)
    }
    best = min(
        (name for name in FIXED if name in walls), key=lambda name: statistics.fmean(walls[name]), default=""
    )
    if not best:
        print("not known: no fixed choice came to its end")
        return {}
    print(f"best fixed choice: {best}, {statistics.fmean(walls[best]):.1f} s")
    found = {}
    for name in (AUTO, LEARNT):
        if name not in walls:
            print(f"not known {name}: {runs[name][0]['error']}")
            continue
        logs = [math.log(own / its) for own, its in zip(walls[name], walls[best], strict=False)]
        ratio, low, high = ratio_interval(logs)
        chose = ", ".join(dict.fromkeys(run["chose"] for run in runs[name]))
        interval = f" ({low:.3f} to {high:.3f})" if math.isfinite(high) else ""
        print(
            f"{'met' if ratio <= WITHIN else 'not met':10}{minutes:g} min, {name} ({chose}): "
            f"{ratio:.3f} of {best}{interval}, target at most {WITHIN:.2f}"
        )
        found[name] = {"best": best, "ratio": ratio, "met": ratio <= WITHIN, "chose": chose}
    return found


def _computed(
    runs: dict[str, list[Run]], useful_tokens: float, job: list[str], home: dict[str, str]
) -> dict[str, Any]:
    """Wall clock of the long job under each fixed choice. What auto would choose, the planner is asked."""
    walls = _walls(runs, useful_tokens)
    print(f"\na job of about {COMPUTED_MINUTES} min, computed: {' '.join(job)}")
    for name, wall_s in sorted(walls.items(), key=lambda item: item[1]):
        print(f"     {name:14}{wall_s:8.1f} s")
    found: dict[str, Any] = {"settings": job, "computed_wall_s": walls, "verdicts": {}}
    if not walls:
        return found
    best = min(walls, key=walls.__getitem__)
    with cold_home(HOME) as unread:
        chosen = {AUTO: _would_choose(job, unread), LEARNT: _would_choose(job, home)}
    for name, choice in chosen.items():
        if choice not in walls:
            print(f"not known {name}: it would choose {choice}, which was not measured")
            continue
        ratio = walls[choice] / walls[best]
        word = "met" if ratio <= WITHIN else "not met"
        print(f"{word:10}{COMPUTED_MINUTES} min, {name} ({choice}): {ratio:.3f} of {best}, computed")
        found["verdicts"][name] = {"best": best, "ratio": ratio, "met": ratio <= WITHIN, "chose": choice}
    return found


def _walls(runs: dict[str, list[Run]], useful_tokens: float) -> dict[str, float]:
    """Fixed choice -> seconds of a job of so many tokens, from the parts of a shorter one: what comes before
    and after the steps as it was, the steps by the token."""
    walls = {}
    for name in FIXED:
        parts = [
            (run["wall_s"] - run["step_s"], run["step_s"] / run["useful_tokens"])
            for run in runs.get(name, ())
            if "error" not in run
        ]
        if parts:
            fixed_s, token_s = (statistics.fmean(part) for part in zip(*parts, strict=True))
            walls[name] = fixed_s + token_s * useful_tokens
    return walls


def _would_choose(job: list[str], home: dict[str, str]) -> str:
    command = [sys.executable, "-m", "trueup", "shapes", "plan", str(DEMO), "--json"]
    for setting in (*SETTINGS, *job, *_choice(AUTO)):
        command += ["--set", setting]
    done = run_fresh(command, **home)
    if done.code:
        return f"nothing ({done.complaint()})"
    plan = json.loads(done.output)["plan"]
    return f"{plan['strategy']}+{plan['compile']}"


if __name__ == "__main__":
    main()
