"""The records a run leaves. Times are seconds since the run's origin, which is the start of its process."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .bounds import HourlyAmount
from .load import RequestResult, RunKind
from .measurement import Frozen, Measurement
from .shape_plan import ShapePlan

RunState = Literal["running", "finished", "failed", "interrupted", "stopped"]

# The files of a run folder. JSONL files are appended line by line as things happen, so that a killed run
# is readable up to its last whole line.
HEADER_FILE = "run.json"
SEGMENTS_FILE = "segments.jsonl"
EVENTS_FILE = "events.jsonl"
STEPS_FILE = "steps.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
REQUESTS_FILE = "requests.jsonl"  # of a load run
SAMPLES_FILE = "samples.jsonl"
MEASUREMENTS_FILE = "measurements.json"
HEARTBEAT_FILE = "heartbeat"
RECORD_FILES = (HEADER_FILE, STEPS_FILE, EVALUATIONS_FILE, EVENTS_FILE, SEGMENTS_FILE)  # go with a checkpoint
CHECKPOINTS_FOLDER = "checkpoints"  # a folder for each step saved
CONTROL_FOLDER = "control"  # `trueup ctl` puts a file there: pause, resume, checkpoint or stop
CHECKPOINT_NOW_FILE = "checkpoint-now"  # touched by anyone: save after the current step

HEARTBEAT_EVERY_S = 1.0
HEARTBEAT_STALE_S = 30.0  # a running run whose heartbeat is older than this is interrupted

# Events of a sensor; their data has `sensor` and `since_s`.
SENSOR_SILENT, SENSOR_LOST, SENSOR_BACK = "sensor_silent", "sensor_lost", "sensor_back"


class SpanName:
    """Every name a span may have. What no span claims is OTHER."""

    START = "start"  # interpreter and imports, before the first line of the run's own code
    PREPARE = "prepare"
    LOAD = "load"
    CALIBRATE = "calibrate"  # this run's own matmul ceiling
    COMPILE = "compile"
    WARM_UP = "warm_up"
    DATA_WAIT = "data_wait"
    STEP = "step"
    COMMUNICATION = "communication"
    REQUESTS = "requests"  # the measured stretch of a load run: from the first request due to the last answer
    EVALUATE = "evaluate"
    CHECKPOINT = "checkpoint"
    PAUSE = "pause"
    DOWN_TIME = "down_time"  # from the last sign of life of a killed run to the process that goes on with it
    RECORD = "record"  # measurements computed and written at the end
    OTHER = "other"


class Segment(Frozen):
    """An unbroken stretch of wall clock under one span name. A run's segments partition its wall clock."""

    name: str
    start_s: float
    end_s: float
    opens: bool = True  # False where a span goes on after a nested one: it is not counted again


class SpanTotal(Frozen):
    name: str
    seconds: float
    count: int


class Event(Frozen):
    """Something that happened at an instant. `kind` in snake case: compile, note, warning, stop, ..."""

    at_s: float
    kind: str
    message: str
    data: dict[str, Any] = Field(default_factory=dict)


class Step(Frozen):
    """One optimizer step. Token counts are of the global batch (all ranks, all micro-batches).

    `attention_sum_sq` is the sum of squared example lengths, for attention FLOPs; `head_rows` the rows that
    went through the head; `labels` name what else happened just before or in this step (first_shape,
    after_evaluate, after_checkpoint, compile).
    """

    step: int
    start_s: float
    step_s: float
    data_wait_s: float
    communication_s: float = 0.0
    loss: float
    grad_norm: float
    lr: float
    useful_tokens: int
    supervised_tokens: int
    processed_tokens: int
    head_rows: int
    attention_sum_sq: int
    micro_batches: int
    shape: tuple[int, int]
    loss_scale: float = 1.0  # what the loss was multiplied by for the backward pass
    skipped: bool = False
    labels: tuple[str, ...] = ()


class Evaluation(Frozen):
    """Token-weighted evaluation on one split at one step (0 = before training). Loss in nats per token."""

    step: int
    at_s: float
    split: str
    loss: float
    perplexity: float
    tokens: int
    seconds: float
    best: bool


class Sample(Frozen):
    """One timed reading of all sensors; a sensor that gave nothing is absent, never 0.

    Sensor names end in their unit: cpu_share, others_cpu_share, host_rss_bytes, host_available_bytes,
    device_allocated_bytes, power_w, temperature_c, clock_mhz, utilisation_share.
    """

    at_s: float
    values: dict[str, float]


class Price(Frozen):
    """Dollars per hour of the whole instance, with where the figure is from."""

    usd_per_hour: HourlyAmount
    source: str
    kind: Literal["quoted", "measured", "estimated"] = "quoted"
    as_of: str | None = None  # ISO date


class ModelDims(Frozen):
    """What FLOP and memory formulas need to know of a Llama-class model. Letters as in the field's papers."""

    layers: int  # L
    hidden: int  # h
    heads: int  # H
    kv_heads: int  # K
    head_dim: int  # d
    intermediate: int  # f
    vocab: int  # V
    tied_head: bool
    parameters: int  # of the whole model, adapters included
    trainable_parameters: int
    lora_parameters: int = 0  # 0: full fine-tuning

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of a decoder layer's matrices, by their usual names."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], *, parameters: int, trainable: int, lora: int = 0
    ) -> ModelDims:
        """From the fields of a Hugging Face config.json."""
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            tied_head=bool(config.get("tie_word_embeddings", False)),
            parameters=parameters,
            trainable_parameters=trainable,
            lora_parameters=lora,
        )


class DatasetFacts(Frozen):
    """What the report and the formulas need to know of the prepared data, kept with the run."""

    digest: str
    source: str
    records: int
    splits: dict[str, int]
    dropped: dict[str, int]
    tokens: dict[str, float]  # min, p50, p90, p99, max, total
    length_histogram: list[tuple[int, int, int]]  # (from, to exclusive, count) in tokens


class RunHeader(Frozen):
    """Written at the start and rewritten, whole, when the state changes."""

    format: int = 1
    kind: RunKind = "train"
    id: str
    name: str
    state: RunState
    reason: str | None = None  # why it failed, stopped or was interrupted; what to try next
    trueup_version: str
    recipe: dict[str, Any]
    recipe_digest: str
    recipe_sources: dict[str, str] = Field(
        default_factory=dict
    )  # dotted key -> default | file | command line
    choices: dict[str, dict[str, str]] = Field(default_factory=dict)  # {"precision": {"value":…, "reason":…}}
    environment: dict[str, Any] = Field(default_factory=dict)
    price: Price | None = None
    model: ModelDims | None = None
    dataset: DatasetFacts | None = None
    shape_plan: ShapePlan | None = None
    started_at: str  # ISO 8601 UTC of the origin
    ended_at: str | None = None
    wall_s: float | None = None  # set when the run ends
    steady: dict[str, Any] | None = None  # verdict of the steady-state detector


class RunRecord(Frozen):
    """A run as stored: header, totals and series. Readers that do not need `samples` leave them empty.
    `requests` are those of a load run."""

    header: RunHeader
    spans: tuple[SpanTotal, ...] = ()
    events: tuple[Event, ...] = ()
    steps: tuple[Step, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    measurements: dict[str, Measurement] = Field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    requests: tuple[RequestResult, ...] = ()

    @property
    def id(self) -> str:
        return self.header.id

    @property
    def kind(self) -> RunKind:
        return self.header.kind

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def state(self) -> RunState:
        return self.header.state
