"""A run of a few minutes on real data from a file: held-out perplexity must fall.

    python bench/gsm8k.py [FILE]

FILE is gsm8k_train_2000.jsonl ({"instruction", "response"} a line); by default it is looked for in
../shared/data beside the repository, and the benchmark says so and ends well where it is absent.
"""

from __future__ import annotations

import sys
from pathlib import Path

from repeat import ROOT, train, value

DEFAULT = ROOT.parent / "shared" / "data" / "gsm8k_train_2000.jsonl"


def main(file: Path) -> int:
    if not file.is_file():
        print(f"skipped: {file} is not here")
        return 0
    record = train("gsm8k", f"data.source={file}", recipe=ROOT / "bench" / "gsm8k.yaml")
    first, best = value(record, "eval_perplexity_first"), value(record, "eval_perplexity_best")
    print(f"run {record['id']}: {value(record, 'wall_s'):.0f} s, ", end="")
    print(f"perplexity {first:.2f} to {best:.2f} ({best / first - 1:+.1%}) ", end="")
    print(f"on {value(record, 'eval_tokens'):.0f} supervised tokens, ", end="")
    print(f"{value(record, 'useful_tokens_per_s'):.0f} useful tokens/s, ", end="")
    print(f"padding {value(record, 'padding_share'):.1%}, ", end="")
    print(f"others used {value(record, 'others_cpu_share'):.1%} of the CPU")
    return int(best >= first)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT))
