"""`trueup serve RECIPE|MODEL`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trueup.schema import InputError, MissingExtraError
from trueup.schema.counting import counted

from .output import JSON_OPTION, print_json, say, stdout_reserved
from .recipe import SET_OPTION

if TYPE_CHECKING:
    from trueup.serve.limits import ApiKeys
    from trueup.serve.opening import Opening
    from trueup.serve.protocols import EngineLike
    from trueup.serve.server import Ended

    from .serve_plan import Asked, Planned

LARGEST_PID = 2**31  # a number from here on is none of any system
MOST_THREADS = 4096  # more than any processor has, and no more than torch can count
SLOW_WARM_UP = 8  # shapes between two words about it
UNJUDGED_OPTION = typer.Option(
    False,
    "--unjudged",
    help="Take a quantised model the quality gate refused, or never judged as it is.",
)


def serve(
    model: str = typer.Argument(
        help="A recipe, a model folder, a built-in or a hub name.", metavar="RECIPE|MODEL"
    ),
    overrides: list[str] = SET_OPTION,
    host: str | None = typer.Option(None, "--host", help="Address to listen on. Default: 127.0.0.1."),
    port: int | None = typer.Option(None, "--port", help="Port to listen on; 0 is any. Default: 8000."),
    api_key_file: Path | None = typer.Option(
        None, "--api-key-file", help="One key a line; clients send one as `Authorization: Bearer KEY`."
    ),
    name: str | None = typer.Option(None, "--name", help="The model's name to clients. Default: its own."),
    quant: str | None = typer.Option(
        None, "--quant", help="Weights: fp32, bf16 or int8. Default: as stored, or bf16; fp32 on a CPU."
    ),
    kv: str | None = typer.Option(None, "--kv-dtype", help="Keys and values: fp32 or bf16."),
    context: int | None = typer.Option(
        None, "--context", help="Tokens of prompt and answer together. Default: 4096, or fewer."
    ),
    concurrency: int | None = typer.Option(
        None, "--concurrency", help="Answers computed at once. Default: 8."
    ),
    waiting: int | None = typer.Option(None, "--waiting", help="Answers that may wait. Default: 128."),
    block_size: int | None = typer.Option(None, "--block-size", help="Tokens of a KV block. Default: 16."),
    prefill_chunk: int | None = typer.Option(
        None, "--prefill-chunk", help="Prompt tokens of a step. Default: 256."
    ),
    prefix_cache: bool | None = typer.Option(
        None, "--prefix-cache/--no-prefix-cache", help="Compute what prompts begin with in common once."
    ),
    request_s: float | None = typer.Option(
        None, "--request", help="Most seconds of an answer. Default: 600."
    ),
    drain_s: float | None = typer.Option(
        None, "--drain", help="Seconds to finish what was accepted, at the end. Default: 30."
    ),
    require_key: bool = typer.Option(
        False, "--require-idempotency-key", help="Refuse requests without the header Idempotency-Key."
    ),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda or neuron."),
    threads: int | None = typer.Option(None, "--threads", min=1, max=MOST_THREADS, help="CPU threads."),
    memory: float | None = typer.Option(
        None, "--memory", metavar="GIB", help="What may be used, in GiB, where you know better."
    ),
    unjudged: bool = UNJUDGED_OPTION,
    parent: int | None = typer.Option(
        None, "--end-with", metavar="PID", help="End when PID, the process that started this one, is gone."
    ),
    check: bool = typer.Option(False, "--check", help="Plan the memory, say whether it fits, and end."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Serve a model by OpenAI's API. SIGTERM or Ctrl-C: finishes what it accepted, then ends."""
    from .serve_plan import asked_for, place_of, planned, require_judged, require_served

    given = {
        "host": host,
        "port": port,
        "quant": quant,
        "kv": kv,
        "context": context,
        "waiting": waiting,
        "concurrency": concurrency,
        "block_size": block_size,
        "prefill_chunk": prefill_chunk,
        "prefix_cache": prefix_cache,
        "request_s": request_s,
        "drain_s": drain_s,
    }
    with stdout_reserved():
        _require_parent(parent)
        _require_extra()
        keys = _keys(api_key_file)
        asked = asked_for(model, given, _device(device), threads, overrides)
        judged = require_judged(asked.resolved, unjudged=unjudged)
        plan = planned(asked, place_of(asked.device), memory)
        require_served(asked.resolved, plan)
        called = _sendable(name or asked.resolved.name)
        _tell(asked, plan, judged)
        ended = None if check else _run(asked, plan, keys, called, require_key=require_key, parent=parent)
    if check and as_json:
        print_json(_document(asked, plan))
    if ended is not None:
        _end(ended)


def _run(
    asked: Asked, planned: Planned, keys: ApiKeys, name: str, *, require_key: bool, parent: int | None
) -> Ended:
    import asyncio

    from trueup.data.template import ChatTemplate
    from trueup.device import open_device
    from trueup.model.load import load_tokenizer
    from trueup.serve.opening import Opening, codec_of
    from trueup.serve.server import listen

    from .serve_plan import served_as

    tokenizer = load_tokenizer(asked.resolved)
    codec = codec_of(asked.resolved.folder, tokenizer, ChatTemplate(tokenizer))
    with listen(asked.section.host, asked.section.port) as listening:
        where = _address(*listening.getsockname()[:2])
        _note(f"listening at http://{where}/v1; it is ready when http://{where}/ready says so")
        opening = Opening(
            asked.resolved.folder,
            served_as(planned.ask),
            planned.ask.kv,
            planned.plan,
            codec.end_ids,
            asked.section.prefix_cache,
        )
        device = open_device(planned.place.kind, threads=asked.threads)
        try:
            return asyncio.run(
                _serving(
                    asked,
                    opening,
                    codec,
                    keys,
                    name,
                    device,
                    listening,
                    require_key=require_key,
                    parent=parent,
                )
            )
        finally:
            device.close()


async def _serving(
    asked: Asked,
    opening: Opening,
    codec: Any,
    keys: ApiKeys,
    name: str,
    device: Any,
    listening: Any,
    *,
    require_key: bool,
    parent: int | None,
) -> Ended:
    import time

    from trueup import __version__
    from trueup.serve.app import Api, make_app
    from trueup.serve.completions import Served
    from trueup.serve.idempotency import KeptAnswers
    from trueup.serve.limits import ApiLimits
    from trueup.serve.metrics import ServingMetrics
    from trueup.serve.server import Shutdown
    from trueup.serve.server import serve as run_server
    from trueup.serve.service import Service

    section, limits = asked.section, ApiLimits(request_s=asked.section.request_s)
    most = opening.plan.most_tokens  # of which the engine refuses none
    metrics = ServingMetrics(name, lambda: service.stats, most)

    def opened() -> EngineLike:
        _note(_warm_up(len(opening.to_warm(device)), len(opening.plan.shapes())))
        found = opening.open(device, _warmed)
        metrics.holds(found.memory_bytes)
        _note(f"steps go through {found.decoded_by}")
        return found.engine

    service = Service(
        opened,
        codec,
        room=section.concurrency + section.waiting,
        observer=metrics,
    )
    api = Api(
        service,
        Served(name, int(time.time()), most, f"trueup-{__version__}"),
        metrics,
        limits,
        keys,
        KeptAnswers(),
        require_key,
    )
    return await run_server(
        make_app(api),
        service,
        listening,
        drain_s=section.drain_s,
        shutdown=Shutdown(),
        limits=limits,
        parent=parent,
        orphaned=lambda: _note(f"process {parent} of --end-with is gone: finishing what was accepted"),
        draining=lambda answers: _note(_draining(answers, section.drain_s)),
        loaded=lambda: _note(f"ready: {name}, {most:,} tokens of context, {section.concurrency} at once"),
    )


def _draining(answers: int, drain_s: float) -> str:
    if not answers:
        return "ending: there is no answer to finish"
    told = f"ending: {counted(answers, 'answer')} to finish, for {drain_s:g} s at most (--drain)"
    return f"{told}; a second signal ends it at once"


def _warm_up(shapes: int, all_shapes: int) -> str:
    if shapes == all_shapes:
        return f"warm-up: all {counted(all_shapes, 'shape')}, before the first answer"
    return (
        f"warm-up: {shapes} of the plan's {counted(all_shapes, 'shape')}; nothing is compiled here, and no "
        "other takes more memory"
    )


def _warmed(done: int, shapes: int) -> None:
    if done % SLOW_WARM_UP == 0 or done == shapes:
        _note(f"warm-up: {done} of {counted(shapes, 'shape')}")


def _note(text: str) -> None:
    """A line of a server under way. Nobody may be left to read it, as when the shell that started it is gone:
    that is no reason to end."""
    try:
        say(text)
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _sendable(name: str) -> str:
    """The model's name, which is in every answer and on every line of the metrics. Raises InputError."""
    if not name.isprintable():
        raise InputError(f"the model's name {name!r} cannot be sent to clients; give another by --name")
    return name


def _tell(asked: Asked, planned: Planned, judged: str | None) -> None:
    ask, pool = planned.ask, planned.pool
    say(f"{asked.resolved.name} on {planned.place.title}: {planned.fit.why}")
    if judged is not None:
        say(judged)
    elif ask.quant == "int8":
        say("note: its weights are rounded while they are loaded, and no quality gate has judged them; "
            "`trueup quantize` makes a model that is judged")  # fmt: skip
    if pool is None:
        say(f"note: nobody says how much memory there is ({planned.place.has.reason}); give --memory GIB")
    elif pool.blocks < pool.wanted:
        say(
            f"note: the KV pool has {pool.blocks:,} of the {counted(pool.wanted, 'block')} with which all "
            f"{ask.concurrency} answers could be at their longest at once; some may have to wait"
        )


def _end(ended: Ended) -> None:
    if ended.cut:
        when = "at the second signal" if ended.at_once else "at the limit"
        _note(f"ended; {counted(ended.cut, 'answer')} cut off {when}, and the clients told")
    else:
        _note("ended; everything accepted was answered")
    if not ended.whole:  # what does not end holds the interpreter's own end up
        _note("note: the engine was in the middle of something, and was left there")
        sys.stdout.flush()
        os._exit(1 if ended.cut else 0)
    if ended.cut:
        raise typer.Exit(1)


def _document(asked: Asked, planned: Planned) -> dict[str, Any]:
    plan, pool = planned.plan, planned.pool
    return {
        "model": asked.resolved.name,
        "platform": planned.place.title,
        "memory": planned.place.has.model_dump(mode="json"),
        "settings": asked.section.model_dump(mode="json"),
        "context": plan.max_context,
        "weights": planned.ask.quant,
        "kv_dtype": planned.ask.kv,
        "blocks": plan.blocks,
        "shapes": [list(shape) for shape in plan.shapes()],
        "pool": None if pool is None else asdict(pool),
        "fit": asdict(planned.fit),
    }


def _keys(path: Path | None) -> ApiKeys:
    from trueup.serve.limits import ApiKeys, read_keys

    return ApiKeys([] if path is None else read_keys(path))


def _device(asked: str) -> Any:
    from typing import get_args

    from trueup.schema.choices import AskedDevice

    if asked not in get_args(AskedDevice):
        raise InputError(f"--device {asked}: one of {', '.join(get_args(AskedDevice))} is expected")
    return asked


def _require_parent(pid: int | None) -> None:
    """InputError for a process that did not start this one, or is gone: the server would end at once."""
    actual = os.getppid()
    if pid is None or pid == actual:
        return
    import psutil

    there = pid < LARGEST_PID and psutil.pid_exists(pid)
    what = "did not start this one" if there else "is not there"
    raise InputError(
        f"--end-with {pid}: that process {what}, so the server would end at once; its parent is {actual}. "
        "Give the PID of what starts it directly, or leave --end-with out"
    )


def _require_extra() -> None:
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtraError(package.replace("_", "-"), "serve", "serving") from None
