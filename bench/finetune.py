"""trueup against transformers' Trainer and TRL's SFTTrainer: the same fine-tuning, each in a fresh process.

    python bench/finetune.py [--records 240 2000] [--seeds 3] [--precision auto|fp32] [-o FILE [--go-on]]

Needs the extra `bench`. Prints a table and each target as met or not met; the exit code is 0 either way.
docs/benchmarks.md says what is compared, and what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from peers.job import Job
from peers.process import Finished, cold_home, run_fresh
from peers.verdict import OWN, table, verdicts
from repeat import DEMO, HOME

CONTESTANTS = (
    OWN,
    "trainer",
    "trainer-by-length",
    "trainer-compiled",
    "trl-packing",
    "trl-packing-no-checkpointing",
)
ROWS = 8  # examples of one optimizer step: the Trainer's default
PACKED = 0.98  # part of a packed row that is useful, to find the row that holds as many examples
PLANS = 4  # tries at trueup's tokens of a step
TRAINING_SPANS = ("warm_up", "compile", "data_wait", "step", "communication")  # trueup's spans of training


def main() -> None:
    asked = _arguments()
    document: dict[str, Any] = {"benchmark": "finetune", "asked": vars(asked), "environment": _environment()}
    document["runs"], document["verdicts"] = [], {}
    kept = _kept(document, asked.output) if asked.go_on else {}
    for records in asked.records:
        base = _base_job(records, asked.precision)
        print(f"\n{records} records, {_about(base)}", flush=True)
        runs: list[dict[str, Any]] = []
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            for place, name in enumerate(CONTESTANTS):
                run = {"records": records, "seed": seed, "place": place, "contestant": name}
                found = kept.get((records, seed, name))
                if not found and name not in asked.contestants:
                    continue
                runs.append(found or run | _compete(name, base, seed))
                print(_line(runs[-1]) + ("  (from the file)" if found else ""), flush=True)
                _keep(document | {"runs": document["runs"] + runs}, asked.output)
        document["runs"] += runs
        document["verdicts"][records] = found = verdicts(runs)
        print(f"\n{table(runs)}\n")
        for name, verdict in found.items():
            word = {True: "met", False: "not met", None: "not known"}[verdict["met"]]
            print(f"{word:10}{name}: {verdict['text']}")
        _keep(document, asked.output)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[240, 2000], help="of the demo's data")
    parser.add_argument("--seeds", type=int, default=3, help="rounds over all contestants")
    parser.add_argument("--first-seed", type=int, default=0, help="for rounds on another day")
    parser.add_argument("--precision", choices=("auto", "fp32"), default="auto", help="of every contestant")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("-o", "--output", type=Path, help="write everything here as JSON")
    parser.add_argument("--go-on", action="store_true", help="runs that FILE already has are not made again")
    return parser.parse_args()


def _kept(document: dict[str, Any], path: Path | None) -> dict[tuple[int, int, str], dict[str, Any]]:
    """The runs of an earlier measuring that ended early, by records, seed and contestant. Only of the same
    machine, versions and question: others do not belong in one table."""
    if path is None or not path.exists():
        return {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    for what, here, there in (
        ("precision", document["asked"]["precision"], earlier["asked"]["precision"]),
        *((key, document["environment"][key], earlier["environment"][key]) for key in ("versions", "device")),
        ("commit", *(one["environment"]["commit"]["commit"] for one in (document, earlier))),
    ):
        if json.dumps(here, default=str, sort_keys=True) != json.dumps(there, default=str, sort_keys=True):
            sys.exit(f"{path} cannot be gone on with: its {what} was {there}, and is {here} now")
    runs = [run for run in earlier["runs"] if "error" not in run]
    return {(run["records"], run["seed"], run["contestant"]): run for run in runs}


def _base_job(records: int, precision: str) -> Job:
    """The job of seed 0."""
    from trueup.data import prepare
    from trueup.device import open_device
    from trueup.model.builtin import resolve_model
    from trueup.model.load import load_tokenizer
    from trueup.model.precision import choose_precision
    from trueup.recipe import load_recipe

    settings = [
        f"data.limit={records}",
        f"precision.policy={precision}",
        "platform.device=cpu",
        "train.epochs=1",
        "train.max_steps=null",
        "train.stop.usd=null",
        "schedule.floor=0",
        "evaluate.every=null",
        "evaluate.max_tokens=1",
        "checkpoint.every=null",
    ]
    recipe = load_recipe(str(DEMO), settings).recipe
    resolved = resolve_model(recipe.model.path, HOME, say=print)
    prepared = prepare(recipe.data, load_tokenizer(resolved), HOME / "data")
    lengths = prepared.split("train").lengths
    steps = math.ceil(len(lengths) / ROWS)
    row_tokens = max(recipe.data.max_length, _aligned(int(lengths.sum()) / steps / PACKED))
    device = open_device("cpu")
    own = [*settings, *_own_step(settings, row_tokens, steps, least=recipe.data.max_length)]
    return Job(
        recipe=load_recipe(str(DEMO), own).recipe.model_dump(mode="json"),
        model=str(resolved.folder),
        data=str(prepared.folder),
        rows=ROWS,
        row_tokens=row_tokens,
        bf16=choose_precision(precision, device).compute_dtype == "bfloat16",
        threads=device.choose_threads()[0],
        adapter="",
        result="",
    )


def _own_step(settings: list[str], tokens: int, steps: int, *, least: int) -> list[str]:
    """trueup's tokens of a step, for an epoch of about as many steps as the Trainer's under the plan it will
    choose: what a step holds depends on the strategy."""
    tried: dict[float, list[str]] = {}
    for _ in range(PLANS):
        found = [f"shapes.tokens_per_microbatch={tokens}", f"train.tokens_per_step={tokens}"]
        command = [sys.executable, "-m", "trueup", "shapes", "plan", str(DEMO), "--json"]
        for setting in (*settings, *found):
            command += ["--set", setting]
        with cold_home(HOME) as cold:
            done = run_fresh(command, **cold)
        if done.code:
            sys.exit(f"the shapes could not be planned: {done.complaint()}")
        planned = json.loads(done.output)["plan"]["steps_per_epoch"]
        tried[abs(planned / steps - 1)] = found
        again = max(least, _aligned(tokens * planned / steps))
        if again == tokens:
            break
        tokens = again
    return tried[min(tried)]


def _aligned(tokens: float) -> int:
    return math.ceil(tokens / 8) * 8


def _about(job: Job) -> str:
    from peers.job import examples

    learnt = examples(job.data, "train")
    tokens, supervised = sum(len(t) for t, _ in learnt), sum(int(on.sum()) for _, on in learnt)
    own = job.recipe["train"]["tokens_per_step"]
    precision = "bf16 products" if job.bf16 else "fp32"
    return (
        f"{len(learnt)} of them to train on: {tokens} tokens, {supervised} supervised; "
        f"{precision}, {job.threads} threads; "
        f"a step is {ROWS} examples, in TRL a row of {job.row_tokens} tokens, in trueup {own} tokens"
    )


def _compete(name: str, base: Job, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trueup-bench-") as folder:
        recipe = base.recipe | {"name": "bench", "train": base.recipe["train"] | {"seed": seed}}
        changed = {"recipe": recipe, "adapter": f"{folder}/adapter", "result": f"{folder}/result.json"}
        job = Job(**{**vars(base), **changed})
        job.write(Path(folder) / "job.json")
        run = _trueup(job) if name == OWN else _peer(name, job, Path(folder) / "job.json")
        if "error" in run:
            return run
        run["useful_tokens_per_s"] = run["useful_tokens"] / run["training_s"]
        run["supervised_per_step"] = run["supervised_tokens"] / run["optimizer_steps"]
        run["padding_share"] = 1 - run["useful_tokens"] / run["processed_tokens"]
        return run | _held_out(Path(folder) / "job.json")


def _trueup(job: Job) -> dict[str, Any]:
    recipe_file = Path(job.result).with_name("recipe.yaml")
    recipe_file.write_text(json.dumps(job.recipe), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-m", "trueup"]
    with cold_home(HOME) as cold:
        done = run_fresh([*command, "train", str(recipe_file), "--json"], **cold)
        if done.code:
            return {"error": done.complaint()}
        record = json.loads(done.output)
        exported = run_fresh([*command, "export", record["id"], "--adapter", job.adapter], **cold)
        if exported.code:
            return {"error": exported.complaint()}
    measured = {name: one["value"] for name, one in record["measurements"].items()}
    spans = {span["name"]: span["seconds"] for span in record["spans"]}
    return _of_process(done) | {
        "training_s": sum(spans.get(name, 0.0) for name in TRAINING_SPANS),
        "peak_bytes": done.peak_bytes,
        "compile_s": measured["compile_s"],
        "optimizer_steps": measured["steps_count"],
        "useful_tokens": measured["useful_tokens"],
        "supervised_tokens": measured["supervised_tokens"],
        "processed_tokens": measured["processed_tokens"],
        "choices": {key: choice["value"] for key, choice in record["choices"].items()},
        "spans": spans,
    }


def _peer(name: str, job: Job, file: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trueup-bench-") as folder:
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(job.threads),
        }
        done = run_fresh([sys.executable, "-m", "peers.trainers", name, str(file)], **variables)
    if done.code:
        return {"error": done.complaint()}
    result = json.loads(Path(job.result).read_text(encoding="utf-8"))
    return _of_process(done) | result | {"peak_bytes": result["training_peak_bytes"]}


def _of_process(done: Finished) -> dict[str, Any]:
    return {
        "wall_s": done.wall_s,
        "process_peak_bytes": done.peak_bytes,
        "others_cpu_share": done.others_cpu_share,
    }


def _held_out(job_file: Path) -> dict[str, Any]:
    """The same examples for every size of job: of the test split of the demo's whole data."""
    done = run_fresh([sys.executable, "-m", "peers.held_out", str(job_file), str(_whole_data())])
    if done.code:
        return {"error": f"evaluation: {done.complaint()}"}
    found = json.loads(done.output)
    return {"held_out_loss": found["loss"], "held_out_tokens": found["tokens"]}


def _whole_data() -> Path:
    from trueup.data import prepare
    from trueup.model.builtin import resolve_model
    from trueup.model.load import load_tokenizer
    from trueup.recipe import load_recipe

    recipe = load_recipe(str(DEMO), []).recipe
    tokenizer = load_tokenizer(resolve_model(recipe.model.path, HOME))
    return prepare(recipe.data, tokenizer, HOME / "data").folder


def _line(run: dict[str, Any]) -> str:
    start = f"  seed {run['seed']}  {run['contestant']:30}"
    if "error" in run:
        return f"{start}failed: {run['error']}"
    influence = run.get("neighbours_influence")
    return (
        f"{start}{run['useful_tokens_per_s']:7.1f} useful tokens/s  {run['training_s']:7.1f} s  "
        f"{run['peak_bytes'] / 1e9:5.2f} GB  loss {run['held_out_loss']:.4f}"
        + ("" if influence is None else f"  packed neighbours move logits by {influence:.1e}")
    )


def _environment() -> dict[str, Any]:
    from trueup.device import open_device
    from trueup.telemetry import collect

    found = collect(open_device("cpu"), metadata=False)
    kept = {key: found[key] for key in ("versions", "commit", "device", "load")}
    for package in ("trl", "datasets", "accelerate"):
        kept["versions"][package] = metadata.version(package)
    return kept | {"at": datetime.now(UTC).isoformat(timespec="seconds")}


def _keep(document: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
