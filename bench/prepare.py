"""How fast `prepare` is: records a second and the most memory, on generated short records.

    python bench/prepare.py [MODEL] [RECORDS]

MODEL is a folder with a tokenizer, or smollm2-135m (the default; built on first use). Prints one JSON object.
The records are a question and an answer of 5 to 40 made-up words, one in ten a near-copy of an earlier one.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "il", "on")]


def write_records(path: Path, count: int) -> None:
    """Records that are the same for the same count."""
    rng = random.Random(0)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(20_000)]
    recent: list[list[str]] = []
    with path.open("w", encoding="utf-8") as file:
        for n in range(count):
            answer = rng.choices(words, k=rng.randint(5, 40))
            if n % 10 == 9:
                answer = [*rng.choice(recent), rng.choice(words)]
            recent = [*recent[-99:], answer]
            question = f"Question {n}: what is meant by {' '.join(rng.choices(words, k=6))}?"
            text = " ".join(answer).capitalize() + "."
            file.write(json.dumps({"instruction": question, "output": text}) + "\n")


def main() -> None:
    from trueup.data import prepare
    from trueup.home import find_home
    from trueup.model.builtin import resolve_model
    from trueup.model.load import load_tokenizer
    from trueup.recipe.models import DataSection

    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    tokenizer = load_tokenizer(resolve_model(name, find_home().path))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        write_records(path, count)
        start = time.perf_counter()
        prepared = prepare(DataSection(source=str(path)), tokenizer, Path(folder) / "data")
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        again = prepare(DataSection(source=str(path)), tokenizer, Path(folder) / "data")
        found_s = time.perf_counter() - start
    report = prepared.report()
    own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    result = {
        "records": report["records_read"],
        "prepare_s": round(seconds, 2),
        "records_per_s": round(count / seconds),
        "tokens_per_s": round(report["tokens"]["total"] / seconds),
        "found_again_s": round(found_s, 2) if again.cache_hit else None,
        "near_copy_clusters": report["duplicates"]["near"]["clusters"],
        "processors": len(os.sched_getaffinity(0)),
        "own_peak_bytes": own.ru_maxrss * 1024,
        "worker_peak_bytes": workers.ru_maxrss * 1024,
        "own_cpu_s": round(own.ru_utime + own.ru_stime, 1),
        "workers_cpu_s": round(workers.ru_utime + workers.ru_stime, 1),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
