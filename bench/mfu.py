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
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repeat import DEMO, HOME, ratio_interval

if TYPE_CHECKING:
    from trueup.data import TokenCounts
    from trueup.schema import ModelDims
    from trueup.train.session import Session

TARGET = 1.10
AIM = 0.75  # of the ceiling
DENSE_SHAPE = (4, 128)
UNTIMED = 2  # steps of either before the first block
SETTINGS = ("train.stop.usd=null", "evaluate.every=null", "evaluate.max_tokens=1", "platform.device=cpu")

PARTS = (
    "linear layers",
    "LoRA's small products",
    "attention",
    "head and loss",
    "norms, rotary, elementwise",
    "casts and copies",
    "optimizer and clipping",
    "calls, Python and gaps",
)
LINEAR, LORA, ATTENTION, HEAD, ELEMENTWISE, COPY, OPTIMIZER, GAPS = PARTS

# Operators by name, as torch's profiler gives them.
MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_linear", "mkldnn::")
ATTENTIONS = ("scaled_dot_product", "flash_attention", "softmax")
CLIPPING = ("aten::_foreach_norm", "aten::_foreach_mul_", "aten::linalg_vector_norm", "aten::clamp")
COPIES = ("aten::copy_", "aten::_to_copy", "aten::clone", "aten::cat")
# These describe memory or call others: their own time is the price of a call.
CALLS = {
    f"aten::{name}"
    for name in (
        *("alias", "as_strided", "chunk", "contiguous", "detach", "detach_", "empty", "empty_like"),
        *("empty_strided", "expand", "flatten", "linear", "lift_fresh", "matmul", "narrow", "permute"),
        *("reshape", "resize_", "result_type", "select", "slice", "split", "squeeze", "t", "to"),
        *("transpose", "unbind", "unsafe_view", "_unsafe_view", "unsqueeze", "view", "view_as"),
    )
}

Turn = tuple[list["TokenCounts"], float]  # counts of each step, and the seconds of all


def main() -> None:
    asked = _arguments()
    with tempfile.TemporaryDirectory(prefix="trueup-bench-") as compiled:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = compiled
        session = _open(asked.set)
        own, dense = _own_steps(session), _dense_steps(session)
        for take in (own, dense):
            _block(take, UNTIMED)
        blocks, ceiling = _turns(session, own, dense, asked.rounds, asked.steps)
        mfu = {
            name: [_flop(session.model.dims, counts) / seconds / ceiling for counts, seconds in turns]
            for name, turns in blocks.items()
        }
        waterfall = _waterfall(session, own, asked.steps, ceiling, statistics.fmean(mfu["trueup"]))
    logs = [math.log(a / b) for a, b in zip(mfu["trueup"], mfu["dense"], strict=True)]
    document = {
        "benchmark": "mfu",
        "asked": {"rounds": asked.rounds, "steps": asked.steps, "set": asked.set},
        "choices": {key: choice.value for key, choice in session.choices.items()},
        "ceiling_flops_per_s": ceiling,
        "mfu": mfu,
        "ratio": ratio_interval(logs),
        "waterfall": waterfall,
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


def _open(settings: list[str]) -> Session:
    """A session as a run has it after its warm-up, in this process."""
    from trueup.recipe import load_recipe
    from trueup.telemetry import MemorySink, Timeline, process_origin
    from trueup.train.interruption import Interruption
    from trueup.train.session import Places, find_device, open_session
    from trueup.train.warm_up import warmed_up

    recipe = load_recipe(str(DEMO), [*SETTINGS, *settings]).recipe
    world, device = find_device(recipe)
    session = open_session(
        recipe,
        world=world,
        device=device,
        timeline=Timeline(MemorySink(), process_origin()[0]),
        price=None,
        places=Places(HOME, HOME / "data", HOME / "weights"),
        say=print,
        interruption=Interruption(),
    )
    if session.plan.compile != "none":
        from torch._inductor import config

        config.cpp.enable_kernel_profile = True  # compiled kernels tell the profiler their names
    return warmed_up(session, print)


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
        rates = [_flop(session.model.dims, counts) / s for counts, s in (found[name][-1] for name in takes)]
        print(f"turn {n + 1:<5}" + "".join(f"{rate / 1e9:10.1f}" for rate in (*rates, ceilings[-1])))
    return found, max(ceilings)


def _flop(dims: ModelDims, counts: Iterable[TokenCounts]) -> float:
    return sum(sum(_flop_by_part(dims, one, useful=True).values()) for one in counts)


def _flop_by_part(dims: ModelDims, counts: TokenCounts, *, useful: bool) -> Counter[str]:
    """Model FLOPs of one step, of its useful tokens or of all that were processed. Attention is always that
    of the examples alone: what is computed of masked pairs is time without use."""
    from trueup.analysis.flops import head_row_flops, training_flops

    tokens = counts.useful if useful else counts.processed
    rows = counts.supervised if useful else counts.head_rows
    lora = 6.0 * dims.lora_parameters * tokens
    linear = training_flops(dims, tokens=tokens, head_rows=0, attention_sum_sq=0) - lora
    attention = training_flops(dims, tokens=0, head_rows=0, attention_sum_sq=counts.attention_sum_sq)
    parts = {LINEAR: linear, LORA: lora, HEAD: rows * head_row_flops(dims), ATTENTION: attention}
    return Counter(parts)


# --- where the rest goes ------------------------------------------------------------------------------------


def _waterfall(
    session: Session, own: Iterator[TokenCounts], steps: int, ceiling: float, mfu: float
) -> dict[str, float]:
    """Shares of a step's time, which add up to 1: useful work at the ceiling, padding at the ceiling, and for
    each part what it takes beyond its own FLOPs at the ceiling.

    The parts are shares of profiled time. Profiling makes calls dearer and kernels not, so the last part is
    overstated and the others are understated."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        counts, seconds = _block(own, steps)
    dims = session.model.dims
    self_s = _self_seconds(profiled.events(), dims, session.recipe.tune.rank)
    self_s[GAPS] = seconds - sum(s for part, s in self_s.items() if part != GAPS)
    useful, processed = (
        sum((_flop_by_part(dims, one, useful=kind) for one in counts), Counter()) for kind in (True, False)
    )
    capacity = sum(useful.values()) / mfu  # FLOPs at the ceiling in the time these steps take unprofiled
    shares = {
        "useful work, at the ceiling": mfu,
        "padding, at the ceiling": (sum(processed.values()) - sum(useful.values())) / capacity,
    }
    return shares | {part: self_s[part] / seconds - processed[part] / capacity for part in PARTS}


def _self_seconds(events: Iterable[Any], dims: ModelDims, rank: int) -> Counter[str]:
    """Self CPU time by part: an operator's own time without that of the operators it calls."""
    found: Counter[str] = Counter()
    for event in events:
        found[_part(event, dims.vocab, rank)] += event.self_cpu_time_total / 1e6
    return found


def _part(event: Any, vocab: int, rank: int) -> str:
    above = []
    parent = event.cpu_parent
    while parent is not None:
        above.append(parent.name)
        parent = parent.cpu_parent
    line = (event.name, *above)
    if any("Optimizer." in name or name in CLIPPING for name in line):
        return OPTIMIZER
    if any("CrossEntropy" in name for name in line):
        return HEAD
    name, sizes = event.name, {size for shape in event.input_shapes for size in _flat(shape)}
    if any(word in name for word in ATTENTIONS):
        return ATTENTION
    if name.startswith(MATMULS):
        return LORA if rank in sizes else HEAD if vocab in sizes else LINEAR
    if name in COPIES:
        return COPY
    kernel = name.startswith("aten::") and name not in CALLS
    return ELEMENTWISE if kernel or "cpp_fused" in name else GAPS


def _flat(shape: Any) -> Iterator[int]:
    """Sizes in a shape; a list of tensors has a list of shapes."""
    if isinstance(shape, list | tuple):
        for one in shape:
            yield from _flat(one)
    elif isinstance(shape, int):
        yield shape


if __name__ == "__main__":
    main()
