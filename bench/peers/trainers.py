"""One peer's training, in this process: python -m peers.trainers NAME JOB.json (from the folder bench).

Every peer gets trueup's token lists, loss masks, learning rates, precision and threads; it keeps its own way
of making batches, its model code, loss and optimizer step. Nothing is evaluated, saved or logged meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from peers.job import IGNORED, Job, examples

TRAINER = {
    "trainer": {},
    "trainer-by-length": {"train_sampling_strategy": "group_by_length"},
    "trainer-compiled": {"torch_compile": True},
}
TRL = {
    "trl-packing": {},  # gradient checkpointing is TRL's own default
    "trl-packing-no-checkpointing": {"gradient_checkpointing": False},
}


class Stretch(TrainerCallback):
    """From the beginning of the first step to the end of the last: seconds, and most memory."""

    def __init__(self) -> None:
        self.start: float | None = None
        self.seconds = 0.0
        self.peak_bytes: int | None = None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self.start is None:
            _reset_peak()
            self.start = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        assert self.start is not None
        self.seconds = time.perf_counter() - self.start
        self.peak_bytes = _peak_bytes()


class Counted:
    """A collator that counts what passes through it."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate
        self.processed = self.useful = self.supervised = 0

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        batch = self._collate(features)
        tokens = batch["input_ids"].numel()
        self.processed += tokens
        self.useful += int(batch["attention_mask"].sum()) if "attention_mask" in batch else tokens
        self.supervised += int((batch["labels"][:, 1:] != IGNORED).sum())
        return batch


def main(name: str, job: Job) -> None:
    torch.set_num_threads(job.threads)
    learnt = examples(job.data, "train")
    trainer = _trl(name, job, _dataset(learnt)) if name in TRL else _trainer(name, job, _dataset(learnt))
    counted = trainer.data_collator = Counted(trainer.data_collator)
    stretch = Stretch()
    trainer.add_callback(stretch)
    _same_learning_rates(trainer, job)
    trainer.train()
    expected = sum(len(tokens) for tokens, _ in learnt)
    if counted.useful != expected:
        sys.exit(f"{name} trained on {counted.useful} tokens; the data has {expected}")
    result = {
        "training_s": stretch.seconds,
        "training_peak_bytes": stretch.peak_bytes,
        "compile_s": _compile_s() if name == "trainer-compiled" else 0.0,
        "optimizer_steps": trainer.state.global_step,
        "useful_tokens": counted.useful,
        "supervised_tokens": counted.supervised,
        "processed_tokens": counted.processed,
        "choices": {"attention": trainer.model.config._attn_implementation},
    }
    if name in TRL:
        result["neighbours_influence"] = _influence(trainer)
    trainer.model.save_pretrained(job.adapter)
    Path(job.result).write_text(json.dumps(result), encoding="utf-8")


def _dataset(learnt: list[Any]) -> Dataset:
    rows = [
        {
            "input_ids": tokens_T.tolist(),
            "labels": [int(t) if on else IGNORED for t, on in zip(tokens_T, loss_T, strict=True)],
        }
        for tokens_T, loss_T in learnt
    ]
    return Dataset.from_list(rows)


def _trainer(name: str, job: Job, dataset: Dataset) -> Trainer:
    dataset = dataset.add_column("length", [len(row) for row in dataset["input_ids"]])
    arguments = TrainingArguments(
        **_arguments(job), **TRAINER[name], per_device_train_batch_size=job.rows, remove_unused_columns=True
    )
    tokenizer = _tokenizer(job)
    collate = DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED)
    torch.manual_seed(arguments.seed)  # of the adapters' first values
    model = get_peft_model(_base(job), _lora(job))
    return Trainer(model, arguments, train_dataset=dataset, data_collator=collate)


def _trl(name: str, job: Job, dataset: Dataset) -> Trainer:
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        **_arguments(job),
        **TRL[name],
        packing=True,  # best-fit decreasing, its default strategy
        max_length=job.row_tokens,
        per_device_train_batch_size=1,
    )
    torch.manual_seed(arguments.seed)
    return SFTTrainer(
        _base(job), arguments, train_dataset=dataset, processing_class=_tokenizer(job), peft_config=_lora(job)
    )


def _arguments(job: Job) -> dict[str, Any]:
    recipe = job.settings()
    optimizer = recipe.optimizer
    return {
        "output_dir": str(Path(job.result).with_suffix(".out")),
        "num_train_epochs": recipe.train.epochs,
        "learning_rate": optimizer.lr,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.clip,
        "bf16": job.bf16,
        "use_cpu": True,
        "seed": recipe.train.seed,
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def _base(job: Job) -> Any:
    return AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32, local_files_only=True)


def _tokenizer(job: Job) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(job.model, local_files_only=True)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


def _lora(job: Job) -> LoraConfig:
    tune = job.settings().tune
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=tune.rank,
        lora_alpha=tune.alpha,
        lora_dropout=tune.dropout,
        target_modules=list(tune.targets),
    )


def _same_learning_rates(trainer: Trainer, job: Job) -> None:
    """trueup's learning rate at every step: the trainers' cosine starts at 0, one step behind."""
    from trueup.train.schedule import learning_rate

    recipe = job.settings()
    peak = recipe.optimizer.lr

    def create_scheduler(num_training_steps: int, optimizer: Any = None) -> Any:
        def factor(done: int) -> float:
            step = min(done + 1, num_training_steps)
            rate = learning_rate(step, total_steps=num_training_steps, peak=peak, schedule=recipe.schedule)
            return rate / peak

        trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or trainer.optimizer, factor)
        trainer._created_lr_scheduler = True
        return trainer.lr_scheduler

    trainer.create_scheduler = create_scheduler


@torch.no_grad()
def _influence(trainer: Trainer) -> float | None:
    """How far the second example's logits of a packed row move when a token of the first is changed, over the
    largest logit: 0 where neighbours do not see each other. None where no row has two."""
    row = next((row for row in trainer.train_dataset if len(row["seq_lengths"]) > 1), None)
    if row is None:
        return None
    inputs = dict(trainer.data_collator([row]))
    inputs.pop("labels")
    first, second = row["seq_lengths"][:2]
    changed = inputs | {"input_ids": inputs["input_ids"].clone()}
    changed["input_ids"][0, 1] = (changed["input_ids"][0, 1] + 1) % trainer.model.config.vocab_size
    a, b = (
        trainer.model(**one, use_cache=False).logits[0, first : first + second] for one in (inputs, changed)
    )
    return float((a - b).abs().max() / a.abs().max())


def _compile_s() -> float:
    """Seconds that PyTorch counts for compiling, forward and backward graphs."""
    from torch._dynamo.utils import calculate_time_spent

    return calculate_time_spent()["total_wall_time"]


def _reset_peak() -> None:
    """Let the kernel count the peak of resident memory from here on (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], Job.read(sys.argv[2]))
