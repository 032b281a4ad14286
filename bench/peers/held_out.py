"""Held-out loss of a base model with a saved adapter: python -m peers.held_out JOB.json FOLDER (from bench).

One yardstick for every contestant: plain transformers and peft, fp32, one example at a time, no padding and
no packing. FOLDER is a prepared folder; of its test split the first examples up to MAX_TOKENS, without
those that the job's training split also has. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from peers.job import Job, examples

MAX_TOKENS = 16_384


@torch.no_grad()
def main(job: Job, folder: str) -> None:
    torch.set_num_threads(job.threads)
    base = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32, local_files_only=True)
    model = PeftModel.from_pretrained(base, job.adapter).eval()
    learnt = {tokens_T.tobytes() for tokens_T, _ in examples(job.data, "train")}
    loss_sum, supervised, useful = 0.0, 0, 0
    for tokens_T, loss_T in examples(folder, "test"):
        if tokens_T.tobytes() in learnt or useful + len(tokens_T) > MAX_TOKENS:
            continue
        tokens = torch.as_tensor(tokens_T, dtype=torch.int64)
        logits_TV = model(input_ids=tokens[None], use_cache=False).logits[0]
        rows = torch.as_tensor(loss_T[1:]).nonzero().flatten()
        loss = torch.nn.functional.cross_entropy(logits_TV[rows], tokens[1:][rows], reduction="sum")
        loss_sum, supervised, useful = loss_sum + float(loss), supervised + len(rows), useful + len(tokens_T)
    print(json.dumps({"loss": loss_sum / supervised, "tokens": supervised}))


if __name__ == "__main__":
    main(Job.read(sys.argv[1]), sys.argv[2])
