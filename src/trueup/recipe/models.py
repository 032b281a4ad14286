"""A recipe: one file that says what to run. Each section sits where a reader would look for its keys."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trueup.schema import Frozen
from trueup.schema.choices import AskedDevice, AskedPrecision

from .money import BudgetSection, PriceSection
from .quality import QualitySection
from .serving import ServeSection
from .survival import CheckpointSection, FailureSection, GuardSection


class ModelSection(Frozen):
    """Which model: the name of a built-in, a local Hugging Face folder, or a hub name."""

    path: str = Field(
        description="'smollm2-135m', 'tiny', a folder (from the working one) with config.json, or a hub name"
    )


class SplitSection(Frozen):
    """Shares of the records held out. The test split is never touched by training or by choosing."""

    validation: float = Field(0.05, ge=0, lt=1, description="share of records for evaluation while training")
    test: float = Field(0.05, ge=0, lt=1, description="share of records never seen by training or choosing")

    @model_validator(mode="after")
    def _leaves_training_data(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test shares leave nothing to train on; they must sum to below 1")
        return self


class DuplicatesSection(Frozen):
    """Equal records, and records that share most of their words. Near-copies always stay in one split."""

    exact: Literal["drop", "keep"] = Field("drop", description="of equal records: the first, or all")
    near: Literal["keep", "drop", "ignore"] = Field(
        "keep", description="of near-copies: all, in one split; the first; or do not look for them"
    )
    threshold: float = Field(0.8, ge=0.5, le=1, description="shared word pairs over all, to be near-copies")


PersonalData = Literal["secret", "iban", "cn_id", "payment_card", "email", "ipv6", "ipv4", "phone"]


class RedactSection(Frozen):
    """Personal data that the model is not to learn."""

    kinds: tuple[PersonalData, ...] = Field(
        (), description="secret, iban, cn_id, payment_card, email, ipv6, ipv4, phone; none by default"
    )
    action: Literal["replace", "drop"] = Field(
        "replace", description="put the kind's name in its place, or drop the record"
    )


class ColumnsSection(Frozen):
    """Which columns to read where they are not named as a format names its keys."""

    prompt: str | None = Field(None, min_length=1, description="column of the question")
    completion: str | None = Field(None, min_length=1, description="column of the answer")
    system: str | None = Field(None, min_length=1, description="column of the system text; it may be absent")
    messages: str | None = Field(None, min_length=1, description="column of the list of messages")
    chosen: str | None = Field(None, min_length=1, description="column of a preference pair's better answer")
    text: str | None = Field(None, min_length=1, description="column of plain text")

    def named(self) -> dict[str, str]:
        """Key of a format -> column, of the keys that are mapped."""
        return {key: column for key, column in self.model_dump().items() if column is not None}

    @property
    def format(self) -> str | None:
        """The format these columns stand for; None where nothing but the system text is mapped."""
        if self.completion is not None:
            return "prompt-completion"
        if self.chosen is not None:
            return "preference"
        return "messages" if self.messages is not None else "text" if self.text is not None else None

    @model_validator(mode="after")
    def _is_one_shape(self) -> Self:
        keys = set(self.named()) - {"system"}
        shapes = ({"prompt", "completion"}, {"prompt", "chosen"}, {"chosen"}, {"messages"}, {"text"})
        if keys and keys not in shapes:
            raise ValueError(
                f"maps {', '.join(sorted(keys))}; expected prompt and completion, prompt and chosen, chosen, "
                "messages, or text"
            )
        if self.text is not None and self.system is not None:
            raise ValueError("maps system beside text; plain text has no system turn")
        return self


class DataSection(Frozen):
    """Which records, and what the model is to learn from them."""

    source: str = Field(
        description="'stdlib-docs', a data file, a folder of them or a glob (from the working folder), or "
        "hub:OWNER/NAME"
    )
    format: Literal["auto", "messages", "sharegpt", "alpaca", "prompt-completion", "preference", "text"] = (
        Field("auto", description="shape of the rows; auto: what most of a file's first 50 look like")
    )
    columns: ColumnsSection = ColumnsSection()
    max_length: int = Field(512, ge=2, description="longest example in tokens, template included")
    overlong: Literal["drop", "truncate", "split-sentence", "split-token"] = Field(
        "drop", description="what to do with longer examples; split: the last answer goes on in further ones"
    )
    loss_on: Literal["answer", "all"] = Field("answer", description="which tokens carry loss")
    split: SplitSection = SplitSection()
    duplicates: DuplicatesSection = DuplicatesSection()
    redact: RedactSection = RedactSection()
    limit: int | None = Field(None, ge=1, description="use only the first n readable records")
    strict: bool = Field(False, description="refuse a file with bad rows instead of counting them")

    @model_validator(mode="after")
    def _format_and_columns_agree(self) -> Self:
        if self.columns.format is not None and self.format not in ("auto", self.columns.format):
            raise ValueError(
                f"data.format is {self.format}, but data.columns describes {self.columns.format}; "
                "leave data.format at auto"
            )
        return self


class TuneSection(Frozen):
    """LoRA adapters, or every parameter."""

    method: Literal["lora", "full"] = Field(
        "lora", description="adapters beside frozen weights, or all weights"
    )
    rank: int = Field(16, ge=1, description="rank of the adapters (LoRA only, as the next three)")
    alpha: float = Field(32, gt=0, description="adapters are scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of the adapters' inputs left out in training")
    targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj"), description="linear layers that get an adapter, by name"
    )


class ShapesSection(Frozen):
    """The shapes training shows the device."""

    strategy: Literal["auto", "pack", "bucket", "max", "longest"] = Field(
        "auto",
        description="several examples a row; rows of a few widths; all as wide as the longest; each "
        "micro-batch as wide as its own longest; auto: the least time for this job",
    )
    tokens_per_microbatch: int = Field(512, ge=2, description="rows x length of one forward pass, at most")
    buckets: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, min_length=1, description="widths of the buckets, ascending; null: those that cost least"
    )

    @model_validator(mode="after")
    def _buckets_are_a_ladder(self) -> Self:
        if self.buckets is None:
            return self
        if self.strategy != "bucket":
            raise ValueError(
                f"buckets are given, and strategy is {self.strategy}; set strategy: bucket, or leave them out"
            )
        if any(wide <= narrow for narrow, wide in pairwise(self.buckets)):
            raise ValueError("buckets must be widths in ascending order, each once")
        if self.buckets[-1] > self.tokens_per_microbatch:
            raise ValueError(
                f"the widest bucket ({self.buckets[-1]}) does not fit in tokens_per_microbatch "
                f"({self.tokens_per_microbatch})"
            )
        return self


class CompileSection(Frozen):
    """torch.compile. Every shape is compiled before the first step."""

    mode: Literal["auto", "none", "layer", "model"] = Field(
        "auto",
        description="nothing; one decoder layer, for all of them; the whole decoder; auto: what takes the "
        "least time for this job, compiling included",
    )


class WarmUpSection(Frozen):
    """Steps on random tokens before the first real one. They change nothing but the machine's temperature."""

    steps: int | None = Field(
        None, ge=0, description="most steps, once every shape has been seen; null: 1 on a CPU, else no limit"
    )
    minutes: float | None = Field(
        None,
        gt=0,
        description="most minutes of them; null: 1 on an accelerator if steps is null, else no limit",
    )


class StopSection(Frozen):
    """Stop conditions beside epochs and steps; whichever comes first ends the run."""

    usd: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="dollars of the run's own wall clock"
    )
    minutes: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="minutes of the run's own wall clock"
    )
    useful_tokens: int | None = Field(None, gt=0, description="tokens trained that are not padding")


class TrainSection(Frozen):
    """How long to train, and in which order."""

    epochs: float = Field(1.0, gt=0, description="passes over the training split; may be a fraction")
    max_steps: int | None = Field(None, ge=1, description="most optimizer steps; null: as epochs say")
    tokens_per_step: int = Field(512, ge=2, description="processed tokens of one optimizer step, all ranks")
    seed: int = Field(0, ge=0, description="of adapters, dropout and the order of examples")
    activation_checkpointing: bool = Field(
        False, description="keep only each layer's input; the rest is computed again: less memory, more time"
    )
    stop: StopSection = StopSection()


class OptimizerSection(Frozen):
    """AdamW."""

    lr: float = Field(5e-4, gt=0, description="learning rate at its peak")
    betas: tuple[float, float] = Field((0.9, 0.999), description="decay of the two running means")
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    weight_decay: float = Field(0.01, ge=0, description="on matrices only; norms and biases have none")
    clip: float | None = Field(1.0, gt=0, description="largest global gradient norm; null for none")


class ScheduleSection(Frozen):
    """Learning rate over steps: linear warm-up, then the named decay down to `floor`."""

    kind: Literal["cosine", "linear", "constant"] = Field("cosine", description="shape of the decay")
    warmup_steps: int = Field(5, ge=0, description="steps of linear rise to the peak")
    floor: float = Field(0.0, ge=0, description="lowest learning rate")


class PrecisionSection(Frozen):
    """Of weights, products and optimizer. Loss, softmax and norms are fp32 under every policy."""

    policy: AskedPrecision = Field(
        "auto",
        description="fp32; all bf16; bf16 with an fp32 copy of what is trained; fp32 with bf16 products; "
        "auto: bf16-master where the device is fast at bf16, else fp32",
    )
    stochastic_rounding: bool = Field(
        False, description="policy bf16: round updates up or down by chance, so that small ones are not lost"
    )
    loss_scale: Literal["off", "static", "dynamic"] = Field(
        "off", description="multiply the loss before the backward pass; dynamic: as large as gradients allow"
    )
    scale: float = Field(
        65536.0,
        gt=0,
        allow_inf_nan=False,
        description="the loss scale, or the first one where it is dynamic (then ≥ 1)",
    )
    scale_window: int = Field(200, ge=1, description="good steps after which a dynamic scale is doubled")

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if self.stochastic_rounding and self.policy != "bf16":
            raise ValueError(
                f"stochastic_rounding is for policy bf16; under {self.policy} what is trained is kept in fp32"
            )
        if self.loss_scale == "dynamic" and self.scale < 1:
            raise ValueError(f"a dynamic loss scale is at least 1, and scale is {self.scale:g}")
        return self


class EvaluateSection(Frozen):
    """Held-out loss and perplexity while training."""

    every: int | None = Field(20, ge=1, description="steps between evaluations; null: only first and last")
    max_tokens: int = Field(4096, ge=1, description="useful tokens of the validation split to evaluate on")


class PlatformSection(Frozen):
    """Where to run."""

    device: AskedDevice = Field("auto", description="auto: an accelerator where there is one, else the CPU")
    instance: str | None = Field(None, description="cloud instance type, for its price (prices.md)")
    threads: int | None = Field(None, ge=1, description="CPU threads; null: the physical cores in reach")
    metadata: bool = Field(False, description="ask the cloud's metadata service what instance this is (2 s)")


class TelemetrySection(Frozen):
    """Sensors read beside the run."""

    hz: float = Field(10.0, ge=0, le=100, description="samples a second; 0 turns the sampler off")


class Recipe(Frozen):
    """One execution, described."""

    name: str = Field("run", min_length=1, description="name of the run; numbered where it is taken")
    model: ModelSection
    data: DataSection
    tune: TuneSection = TuneSection()
    shapes: ShapesSection = ShapesSection()
    compile: CompileSection = CompileSection()
    warm_up: WarmUpSection = WarmUpSection()
    train: TrainSection = TrainSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    precision: PrecisionSection = PrecisionSection()
    evaluate: EvaluateSection = EvaluateSection()
    checkpoint: CheckpointSection = CheckpointSection()
    failure: FailureSection = FailureSection()
    guard: GuardSection = GuardSection()
    platform: PlatformSection = PlatformSection()
    price: PriceSection | None = None
    budget: BudgetSection = BudgetSection()
    telemetry: TelemetrySection = TelemetrySection()
    quality: QualitySection = QualitySection()
    serve: ServeSection | None = None

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.train.stop.usd is not None and self.price is None and self.platform.instance is None:
            raise ValueError("train.stop.usd needs a price: give price.usd_per_hour or platform.instance")
        if self.train.tokens_per_step < self.shapes.tokens_per_microbatch:
            raise ValueError(
                f"train.tokens_per_step ({self.train.tokens_per_step}) is smaller than "
                f"shapes.tokens_per_microbatch ({self.shapes.tokens_per_microbatch})"
            )
        if self.data.max_length > self.shapes.tokens_per_microbatch:
            raise ValueError(
                f"data.max_length ({self.data.max_length}) does not fit in "
                f"shapes.tokens_per_microbatch ({self.shapes.tokens_per_microbatch})"
            )
        if self.schedule.floor > self.optimizer.lr:
            raise ValueError("schedule.floor is above optimizer.lr")
        return self
