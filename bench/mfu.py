"""How much of this machine's ceiling training uses, beside a dense eager step, and where the rest goes.

    python bench/mfu.py [--rounds 6] [--steps 4] [--set KEY=VALUE ...] [-o FILE]

Model FLOPs of useful tokens a second, the head's only for rows that go through it, over the best matmul of
any size measured in the same process. The dense step is the demo's model as transformers and peft give it,
eager, 4 full rows of 128 tokens, loss on every position: nothing padded, packed or masked away. The two take
turns, block by block. Then a few more steps under torch.profiler, for the list of what is missing.
docs/benchmarks.md says how to read it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repeat import ratio_interval
from step_parts import flop, waterfall
from warmed import warmed_session

if TYPE_CHECKING:
    from trueup.data import TokenCounts
    from trueup.train.session import Session

TARGET = 1.10
AIM = 0.75  # of the ceiling
DENSE_SHAPE = (4, 128)
UNTIMED = 2  # steps of either before the first block

Turn = tuple[list["TokenCounts"], float]  # counts of each step, and the seconds of all


def main() -> None:
    asked = _arguments()
    with tempfile.TemporaryDirectory(prefix="trueup-bench-") as compiled:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = compiled
        session = warmed_session(asked.set)
        own, dense = _own_steps(session), _dense_steps(session)
        for take in (own, dense):
            _block(take, UNTIMED)
        blocks, ceiling = _turns(session, own, dense, asked.rounds, asked.steps)
        mfu = {
            name: [flop(session.model.dims, counts) / seconds / ceiling for counts, seconds in turns]
            for name, turns in blocks.items()
        }
        missing = waterfall(session, own, asked.steps, ceiling, statistics.fmean(mfu["trueup"]))
    logs = [math.log(a / b) for a, b in zip(mfu["trueup"], mfu["dense"], strict=True)]
    document = {
        "benchmark": "mfu",
        "asked": {"rounds": asked.rounds, "steps": asked.steps, "set": asked.set},
        "choices": {key: choice.value for key, choice in session.choices.items()},
        "ceiling_flops_per_s": ceiling,
        "mfu": mfu,
        "ratio": ratio_interval(logs),
        "waterfall": missing,
    }
    _tell(document)
    if asked.output is not None:
        asked.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="turns of both")
    parser.add_argument(
        "--steps", type=int, default=4, help="optimizer steps of one turn, and of the profile"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of the demo's recipe"
    )
    parser.add_argument("-o", "--output", type=Path, help="write everything here as JSON")
    return parser.parse_args()


def _tell(document: dict[str, Any]) -> None:
    means = {name: statistics.fmean(values) for name, values in document["mfu"].items()}
    ratio, low, high = document["ratio"]
    chosen = ", ".join(f"{key} {value}" for key, value in document["choices"].items())
    print(f"\n{chosen}")
    print(f"ceiling {document['ceiling_flops_per_s'] / 1e9:.0f} GFLOP/s, the best matmul of this process")
    print(f"useful MFU: trueup {means['trueup']:.1%}, dense eager 4x128 {means['dense']:.1%}")
    print(f"\n{'of a step of trueup':36}{'share':>8}")
    for part, share in document["waterfall"].items():
        print(f"  {part:34}{share:8.1%}")
    met = "met" if ratio >= TARGET else "not met"
    print(f"\n{met:10}over dense: {ratio:.3f} ({low:.3f} to {high:.3f}), target {TARGET:.2f}")
    met = "met" if means["trueup"] >= AIM else "not met"
    print(f"{met:10}of the ceiling: {means['trueup']:.1%}, aim {AIM:.0%}")


# --- the two kinds of step, each with the counts of what it worked on ---------------------------------------


def _own_steps(session: Session) -> Iterator[TokenCounts]:
    from trueup.train.loop import planned_steps
    from trueup.train.stepper import gather, train_step

    for planned in planned_steps(session):
        batch = gather(session, planned)
        train_step(session, batch, session.recipe.optimizer.lr)
        yield batch.counts


def _dense_steps(session: Session) -> Iterator[TokenCounts]:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from trueup.data import TokenCounts

    tune, clip = session.recipe.tune, session.recipe.optimizer.clip or math.inf
    base = AutoModelForCausalLM.from_pretrained(
        session.model.resolved.folder, dtype=torch.float32, local_files_only=True
    )
    lora = LoraConfig(r=tune.rank, lora_alpha=tune.alpha, target_modules=list(tune.targets))
    model = get_peft_model(base, lora).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=session.recipe.optimizer.lr, fused=True)
    rows, width = DENSE_SHAPE
    all_of_them = rows * width
    counts = TokenCounts(
        useful=all_of_them,
        supervised=all_of_them,
        head_rows=all_of_them,
        processed=all_of_them,
        attention_sum_sq=rows * width**2,
    )
    tokens_BT = torch.randint(session.model.dims.vocab, DENSE_SHAPE)
    while True:
        with session.precision.autocast():
            loss = model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield counts


def _block(take: Iterator[TokenCounts], steps: int) -> Turn:
    start = time.perf_counter()
    return list(islice(take, steps)), time.perf_counter() - start


def _turns(
    session: Session, own: Iterator[TokenCounts], dense: Iterator[TokenCounts], rounds: int, steps: int
) -> tuple[dict[str, list[Turn]], float]:
    """Blocks of both in turn, and the best matmul rate of all measured before, between and after."""
    from trueup.device import matmul_ceiling

    dtype = "bf16" if session.precision.compute_dtype == "bfloat16" else "fp32"
    ceilings = [session.ceiling.flops_per_s]
    takes, found = {"trueup": own, "dense": dense}, {"trueup": [], "dense": []}
    print(f"\n{'GFLOP/s':10}{'trueup':>10}{'dense':>10}{'ceiling':>10}")
    for n in range(rounds):
        for name in sorted(takes, reverse=n % 2 == 0):  # neither is always the second
            found[name].append(_block(takes[name], steps))
        ceilings.append(matmul_ceiling(session.device, dtype).flops_per_s)
        rates = [flop(session.model.dims, counts) / s for counts, s in (found[name][-1] for name in takes)]
        print(f"turn {n + 1:<5}" + "".join(f"{rate / 1e9:10.1f}" for rate in (*rates, ceilings[-1])))
    return found, max(ceilings)


if __name__ == "__main__":
    main()
