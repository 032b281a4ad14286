"""One contestant of bench/serve.py, in a process of its own:

python -m peers.serving JOB.json RESULT.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .serving_job import BLOCK, Asked, DecodePart, ServingJob, alike, decode_part, kv_bytes

Result = dict[str, Any]

TRACE_ROOM = 16  # of the longest requests of the trace: the pool that both who run it have
TRACE_ROWS = 32  # that trueup computes at once; transformers as many as the pool holds


def main() -> None:
    job, into = ServingJob.read(sys.argv[1]), Path(sys.argv[2])
    result = CONTESTANTS[job.contestant.split(":")[0]](job)
    into.write_text(json.dumps(result), encoding="utf-8")


def _config(job: ServingJob) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(job.model) / "config.json").read_text(encoding="utf-8"))
    return found


def _bandwidth(job: ServingJob) -> float:
    """Bytes a second that this process can read, measured before anything else fills the memory."""
    from trueup.device import open_device
    from trueup.device.ceiling import memory_bandwidth

    return memory_bandwidth(open_device("cpu", threads=job.threads), budget_s=1.0).bytes_per_s


def _result(decode: list[DecodePart], trace: Result | None, **more: Any) -> Result:
    return {"decode": [asdict(part) for part in decode], "trace": trace, **more}


# --- trueup -----------------------------------------------------------------------------------------------


def _trueup(job: ServingJob) -> Result:
    import torch

    from trueup.model.inference import InferenceModel

    bandwidth = _bandwidth(job)
    torch.set_num_threads(job.threads)
    model = InferenceModel.load(Path(job.model), job.contestant.split(":")[1])  # type: ignore[arg-type]
    weights = {owner: size for owner, size in model.weight_bytes().items() if owner != "rotary"}
    # an embedding that is not the head is looked up, not read
    read = float(sum(size for owner, size in weights.items() if owner != "embedding"))
    token = kv_bytes(_config(job), 4)
    decode = []
    for batch in job.batches:
        engine = _engine(model, job.decoded(batch), rows=batch)
        times, contexts = _decode_times(engine, job.decoded(batch))
        decode.append(decode_part(batch, times, contexts, read, token))
    trace = None
    if job.trace:
        reader = _Reader(model, read, token)
        rows, room = TRACE_ROWS, TRACE_ROOM
        engine = _engine(reader, job.traced(), rows=rows, room=room, batch_tokens=job.batch_tokens)
        before, reader.bytes = engine.stats(), 0.0
        trace = _timed(job.traced(), lambda asked: _run(engine, asked))
        after = engine.stats()
        trace["read_bytes"] = reader.bytes
        trace["steps"] = after.steps - before.steps
        trace["recomputed_tokens"] = after.recomputed_tokens - before.recomputed_tokens
        done = after.useful_tokens + after.recomputed_tokens
        trace["padding_share"] = 1 - done / after.processed_tokens
    return _result(decode, trace, bandwidth=bandwidth, weights=weights)


class _Reader:
    """A model that counts the bytes its steps have to read: the weights, and of each row the keys and values
    it attends to."""

    def __init__(self, model: Any, weights: float, token: float) -> None:
        self._model, self._weights, self._token, self.bytes = model, weights, token, 0.0

    def run(self, batch: Any) -> Any:
        self.bytes += self._weights + int(batch.lengths_B.sum()) * self._token
        return self._model.run(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _engine(
    model: Any, asked: list[Asked], *, rows: int, room: int | None = None, batch_tokens: int = 256
) -> Any:
    """Warm, with room for `room` of the longest request, or for `rows`; at most `rows` at once."""
    from trueup.serve.engine import Engine
    from trueup.serve.plan import plan_serving

    longest = max(len(one.prompt) + one.new for one in asked)
    blocks = 1 + (room or rows) * -(-longest // BLOCK)
    plan = plan_serving(
        max_context=longest,
        blocks=blocks,
        concurrency=rows,
        block_size=BLOCK,
        prefill_chunk=batch_tokens,
    )
    model.new_pool(plan.blocks, plan.block_size)
    engine = Engine(model, plan, eos_ids=frozenset(), prefix_cache=False)
    engine.warm_up()
    return engine


def _add(engine: Any, asked: list[Asked]) -> None:
    from trueup.serve.request import Request, Sampling

    for number, one in enumerate(asked):
        sampling = Sampling(max_tokens=one.new, temperature=0.0, ignore_eos=True)
        engine.add(Request(str(number), tuple(one.prompt), sampling))


def _run(engine: Any, asked: list[Asked]) -> int:
    _add(engine, asked)
    made = 0
    while engine.has_work:
        made += sum(len(output.tokens) for output in engine.step())
    return made


def _decode_times(engine: Any, asked: list[Asked]) -> tuple[list[float], list[int]]:
    """When each step's tokens were there, from the last prefill to the first request that ends, and the
    tokens that each step after it attended to."""
    _add(engine, asked)
    made: dict[str, int] = {}
    times: list[float] = []
    contexts: list[int] = []
    prompts = sum(len(one.prompt) for one in asked)
    while engine.has_work:
        seen = prompts + sum(made.values())
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            made[output.request_id] = made.get(output.request_id, 0) + len(output.tokens)
        if len(made) == len(asked):
            contexts += [seen] if times else []
            times.append(now)
        if any(output.finish for output in outputs):
            break
    while engine.has_work:
        engine.step()
    return times, contexts


# --- transformers -----------------------------------------------------------------------------------------


def _transformers(job: ServingJob, attention: str = "sdpa") -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job.threads)
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(job.model, dtype=torch.float32, attn_implementation=attention)
    return model.eval()


def _weight_bytes(model: Any) -> dict[str, int]:
    return {"all": sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())}


class _Stopwatch:
    """A streamer of transformers: when each step's tokens came, the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _static(job: ServingJob) -> Result:
    import torch

    bandwidth = _bandwidth(job)
    model = _transformers(job)
    weights, token = _weight_bytes(model), kv_bytes(_config(job), 4)
    decode = []
    for batch in job.batches:
        prompts = torch.tensor([one.prompt for one in job.decoded(batch)])
        for timed in (False, True):  # once unmeasured, as trueup warms up
            watch = _Stopwatch()
            model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                cache_implementation="static",
                do_sample=False,
                max_new_tokens=job.new,
                min_new_tokens=job.new,
                eos_token_id=None,
                pad_token_id=0,
                streamer=watch,
            )
            if timed:
                times = watch.times[1:]
                contexts = alike(batch, job.prompt, len(times) - 1)
                decode.append(decode_part(batch, times, contexts, float(weights["all"]), token))
    return _result(decode, None, bandwidth=bandwidth, weights=weights)


def _continuous(job: ServingJob) -> Result:
    """`generate_batch`'s own manager, for which alone each request can have its own number of tokens."""
    bandwidth = _bandwidth(job)
    model = _transformers(job)
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = -1
    trace = _timed(job.traced(), lambda asked: _batched(model, asked, job)) if job.trace else None
    return _result([], trace, bandwidth=bandwidth, weights=_weight_bytes(model))


def _batched(model: Any, asked: list[Asked], job: ServingJob) -> int:
    from transformers import ContinuousBatchingConfig

    longest = max(len(one.prompt) + one.new for one in asked)
    blocks = TRACE_ROOM * -(-longest // BLOCK)
    config = ContinuousBatchingConfig(
        page_size=BLOCK, num_blocks=blocks, max_batch_tokens=job.batch_tokens, allow_block_sharing=False
    )
    made = finished = 0
    with model.continuous_batching_context_manager(
        generation_config=model.generation_config, continuous_batching_config=config, block=True, timeout=60
    ) as manager:
        for number, one in enumerate(asked):
            manager.add_request(one.prompt, request_id=str(number), max_new_tokens=one.new)
        while finished < len(asked):
            result = manager.get_result(timeout=60)
            if result is None:
                if not manager.is_running():
                    raise SystemExit("transformers' continuous batching ended before its requests")
                continue
            if result.is_finished():
                finished += 1
                made += len(result.generated_tokens)
    return made


def _timed(asked: list[Asked], run: Callable[[list[Asked]], int]) -> Result:
    start = time.perf_counter()
    made = run(asked)
    seconds = time.perf_counter() - start
    wanted = sum(one.new for one in asked)
    if made != wanted:
        raise SystemExit(f"{made} tokens were generated, {wanted} were asked for")
    return {
        "requests": len(asked),
        "prompt_tokens": sum(len(one.prompt) for one in asked),
        "new_tokens": made,
        "seconds": seconds,
        "tokens_per_s": (made + sum(len(one.prompt) for one in asked)) / seconds,
        "new_tokens_per_s": made / seconds,
    }


def _llama(job: ServingJob) -> Result:
    from .serving_llama import measure

    return measure(job, _config(job), _bandwidth(job))


CONTESTANTS: dict[str, Callable[[ServingJob], Result]] = {
    "trueup": _trueup,
    "transformers-static": _static,
    "transformers-continuous": _continuous,
    "llama.cpp": _llama,
}

if __name__ == "__main__":
    main()
