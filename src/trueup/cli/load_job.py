"""From the options of `trueup load` to a recorded load."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.home import Home, find_home
from trueup.schema import InputError

from .load_bills import traffic_asked
from .load_server import HOST, server_of
from .output import say
from .price_book import price_of_instance
from .records import price_given
from .run_names import new_id, new_name

if TYPE_CHECKING:
    from trueup.device import Device
    from trueup.device.protocol import Sensor
    from trueup.load.prompts import FilePrompt
    from trueup.load.record import LoadOutcome, Recording
    from trueup.load.run import LoadJob
    from trueup.load.settings import LoadSettings
    from trueup.load.trace import Trace
    from trueup.schema import Measurement, Price

KEY_VARIABLE = "TRUEUP_API_KEY"
DEFAULT_REQUESTS = 200
SAMPLES_PER_S = 2.0
SERVER_LOG = "server.log"
DRIVERS = (Path("/proc/driver/nvidia"), Path("/sys/class/neuron_device"))


@dataclass(frozen=True)
class Asked:
    """The options, as they were given."""

    server: str
    trace: Path | None
    rate: float | None
    rate_end: float | None
    concurrency: int | None
    concurrency_end: int | None
    requests: int | None
    duration: float | None
    seed: int
    time_scale: float
    length_scale: float | None
    context: int | None
    prompt_tokens: int
    output_tokens: int
    prompts: Path | None
    model: str | None
    chat: bool
    ignore_eos: bool
    temperature: float
    timeout: float
    warm_up: int
    ttft_limit: float | None
    tpot_limit: float | None
    e2e_limit: float | None
    instance: str | None
    usd_per_hour: float | None
    price_source: str
    quality: Path | None
    memory_plan: Path | None
    serve_option: list[str]
    ready_within: float
    traffic: float | None
    peak: float
    name: str | None


def run_load(asked: Asked) -> LoadOutcome:
    """Mistakes first, before anything is recorded; then the load, recorded however it ends."""
    from trueup.load.run import execute

    traffic_asked(asked.traffic, asked.peak)
    trace, prompts = _inputs(asked)
    settings = settings_of(asked, trace)
    price = _price(asked)
    if asked.traffic is not None and price is None:
        raise InputError("--traffic is priced a month: give --usd-per-hour, or --instance from the catalog")
    given = _given(asked)
    home = find_home().for_writing()
    run_id, name = new_id(home), new_name(asked.name, _default_name(asked))
    folder = home.runs / run_id
    job = _job(asked, settings, trace, prompts, given, folder)
    device = _device(local=job.address.local)
    try:
        recording, sampling = _recording(asked, job, device, home, run_id, name, price)
        say(f"run {run_id} ({name})")
        outcome = execute(job, recording, sampling=sampling, tell=say)
    finally:
        device.close()
    for problem in recording.sink.problems():
        say(f"note: {problem}")
    _take_in()
    return outcome


def settings_of(asked: Asked, trace: Trace | None) -> LoadSettings:
    """InputError where the options do not add up to a load."""
    from pydantic import ValidationError

    from trueup.analysis.load_limits import Limits
    from trueup.load.settings import LoadSettings

    arrivals = _arrivals(asked)
    requests = asked.requests
    if requests is None and asked.duration is None and arrivals != "trace":
        requests = len(trace.rows) if trace is not None else DEFAULT_REQUESTS
    plain = trace is None and asked.prompts is None
    try:
        return LoadSettings(
            arrivals=arrivals,
            rate=asked.rate,
            rate_end=asked.rate_end,
            concurrency=asked.concurrency,
            concurrency_end=asked.concurrency_end,
            requests=requests,
            duration_s=asked.duration,
            seed=asked.seed,
            trace=trace.name if trace is not None else None,
            trace_digest=trace.digest if trace is not None else None,
            time_scale=asked.time_scale,
            length_scale=asked.length_scale,
            prompt_tokens=asked.prompt_tokens if plain else None,
            output_tokens=asked.output_tokens if trace is None else None,
            prompts=asked.prompts.name if asked.prompts is not None else None,
            prompts_digest=_digest(asked.prompts.read_bytes()) if asked.prompts is not None else None,
            warm_up=asked.warm_up,
            chat=asked.chat,
            ignore_eos=asked.ignore_eos,
            temperature=asked.temperature,
            timeout_s=asked.timeout,
            limits=Limits(ttft_s=asked.ttft_limit, tpot_s=asked.tpot_limit, e2e_s=asked.e2e_limit),
        )
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        option = next((_option(str(part)) for part in problem["loc"]), "the load")
        raise InputError(f"{option} {problem['input'] if problem['loc'] else ''}: {problem['msg']}") from None


def _option(key: str) -> str:
    """By which a setting of a load or one of its limits is given."""
    from trueup.analysis.load_limits import Limits

    name = key.removesuffix("_s").replace("_", "-")
    return f"--{name}-limit" if key in Limits.model_fields else f"--{name}"


def _arrivals(asked: Asked) -> Any:
    if asked.rate is not None and asked.concurrency is not None:
        raise InputError("--rate is an open load, --concurrency a closed one: give one of them")
    if asked.rate_end is not None and (asked.rate is None or asked.duration is None):
        raise InputError("--rate-end needs --rate, where the ramp begins, and --duration, how long it takes")
    if asked.concurrency_end is not None and asked.concurrency is None:
        raise InputError("--concurrency-end needs --concurrency, where the ramp begins")
    if asked.trace is not None and asked.prompts is not None:
        raise InputError("--trace and --prompts both say how long prompts are: give one of them")
    if asked.rate is not None:
        return "ramp" if asked.rate_end is not None else "poisson"
    if asked.concurrency is not None:
        return "closed"
    if asked.trace is not None:
        return "trace"
    raise InputError(
        "how do requests arrive? --rate R a second, --concurrency N in flight, or as in a --trace FILE"
    )


def _inputs(asked: Asked) -> tuple[Trace | None, list[FilePrompt] | None]:
    from trueup.load.prompts import read_prompts
    from trueup.load.trace import read_trace

    trace = read_trace(asked.trace, asked.requests) if asked.trace is not None else None
    return trace, read_prompts(asked.prompts) if asked.prompts is not None else None


def _price(asked: Asked) -> Price | None:
    given: Price | None = price_given(asked.usd_per_hour, asked.price_source)
    return given if given is not None or asked.instance is None else price_of_instance(asked.instance)


def _given(asked: Asked) -> dict[str, Measurement]:
    from trueup.load.given import read_given

    gate = _gate(asked)
    found = read_given(gate, "--quality", "quality_") if gate else {}
    if asked.memory_plan:
        found |= read_given(asked.memory_plan, "--memory-plan", "plan_", "_bytes")
    return found


def _gate(asked: Asked) -> Path | None:
    """A quality gate's result: a quantised model has it with it."""
    from trueup.schema.quality import QUALITY_FILE

    beside = Path(asked.server) / QUALITY_FILE
    return asked.quality or (beside if beside.is_file() else None)


def _default_name(asked: Asked) -> str:
    """load-smollm2-135m of a model, load-127.0.0.1:8000 of an address."""
    last = asked.server.rstrip("/").removesuffix("/v1").rsplit("/", 1)[-1]
    return f"load-{last}"


def _job(
    asked: Asked,
    settings: LoadSettings,
    trace: Trace | None,
    prompts: list[FilePrompt] | None,
    given: dict[str, Measurement],
    folder: Path,
) -> LoadJob:
    from trueup.load.address import address_of, is_url
    from trueup.load.run import LoadJob
    from trueup.load.server import free_port

    own, url = None, asked.server
    if not is_url(asked.server):
        port = free_port()
        url = f"http://{HOST}:{port}"
        own = server_of(asked.server, asked.serve_option, port, folder / SERVER_LOG)
    elif asked.serve_option:
        raise InputError("--serve-option is for a MODEL that is served here; this server runs already")
    return LoadJob(
        settings=settings,
        address=address_of(url),
        model=asked.model,
        api_key=os.environ.get(KEY_VARIABLE) or None,
        context=asked.context,
        trace=trace,
        prompts=prompts,
        own=own,
        ready_within_s=asked.ready_within,
        given=given,
    )


def _recording(
    asked: Asked, job: LoadJob, device: Device, home: Home, run_id: str, name: str, price: Price | None
) -> tuple[Recording, Callable[[Recording], AbstractContextManager[object]]]:
    """The record, begun in the run's folder, and the sampler that is to run beside the load."""
    from trueup import __version__
    from trueup.load.address import listeners
    from trueup.load.record import Recording
    from trueup.schema import RunHeader
    from trueup.telemetry import RunFolder, Sampler, process_origin

    origin, started_at = process_origin()
    recipe = _recipe(asked, job, name)
    there = listeners(job.address) if job.address.local and job.own is None else set()
    header = RunHeader(
        kind="load",
        id=run_id,
        name=name,
        state="running",
        trueup_version=__version__,
        recipe=recipe,
        recipe_digest=_digest(json.dumps({**recipe, "name": None}, sort_keys=True).encode()),
        environment=_environment(device, local=job.address.local, seen=bool(there) or job.own is not None),
        price=price,
        started_at=started_at,
    )
    folder = home.runs / run_id
    sampler: list[Sampler] = []
    try:
        recording = Recording(
            header,
            RunFolder(folder),
            origin,
            time.perf_counter,
            given=job.given,
            telemetry_cpu_s=lambda: sampler[0].cpu_s if sampler else None,
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

    def sampling(recording: Recording) -> AbstractContextManager[object]:
        sampler.append(Sampler(device, recording.sink, recording.timeline.now, SAMPLES_PER_S, there))
        return sampler[0]

    return recording, sampling


def _recipe(asked: Asked, job: LoadJob, name: str) -> dict[str, Any]:
    """What stands in a load's record where a training run has its recipe."""
    from trueup.load.given import original_of

    server: dict[str, Any] = {"address": job.address.root}
    if job.own is not None:  # its port is new each time and says nothing
        server = {"address": "a server of its own", "options": list(asked.serve_option)}
    gate = _gate(asked)
    return {
        "name": name,
        "quality": {"original": original_of(gate) if gate else None},
        "model": {"path": asked.model or (asked.server if job.own is not None else None)},
        "server": server,
        "load": job.settings.model_dump(mode="json"),
        "platform": {"instance": asked.instance},
    }


def _environment(device: Device, *, local: bool, seen: bool) -> dict[str, Any]:
    """Of this machine; `device` only where the server is on it: another machine's is not known from here.
    `seen`: whether the server's processes are known, where it is on this machine."""
    from trueup.telemetry import collect

    found = {**collect(device, metadata=False), "world": {"size": 1}}
    if not local:
        found["client_device"] = found.pop("device")
        why = "the server is on another machine, whose sensors are not read from here"
        found["missing_sensors"] = dict.fromkeys(("energy_j", "power_w"), why)
    elif not seen:
        why = "the server is on this machine, in a process that is not found: it would count among the others"
        found["missing_sensors"] = {**found["missing_sensors"], "others_cpu_share": why}
    return found


def _device(*, local: bool) -> Device:
    """The machine's accelerator where the server is on it, for its sensors. Where there is no driver of one,
    torch, which takes seconds and memory that the server may want, need not be asked."""
    from trueup.device import open_device
    from trueup.device.cpu import CpuDevice

    class ClientOnly(CpuDevice):
        """This machine's own load, and no meter: the server is elsewhere."""

        def sensors(self) -> list[Sensor]:
            return []

    if not local:
        return ClientOnly()
    return open_device("auto") if any(driver.exists() for driver in DRIVERS) else CpuDevice()


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _take_in() -> None:
    from trueup.schema import StorageError

    from .records import open_store

    try:
        with open_store():
            pass  # opening takes the run in
    except (StorageError, InputError) as error:  # the run is whole in its folder; a later command takes it in
        say(f"note: not in the database yet: {error}")
