"""What is known of a platform before a run of one model on it: rules, seconds, memory edges.

Every figure says how it is known: measured in earlier runs with their number, estimated from a published
figure, or unavailable with the reason."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .choices import CompileMode
from .measurement import Frozen, Measurement
from .shape_plan import Shape


class DeviceRules(Frozen):
    """What a device asks of shapes."""

    static: bool = False  # each new shape is compiled, whatever the mode: only a finite set can be shown
    multiple: int = Field(8, ge=1)  # widths are multiples of it


class CompileFigures(Frozen):
    """Seconds of compiling in one mode. `step_ratio` is compiled over eager step time."""

    first_shape_s: Measurement
    further_shape_s: Measurement  # each further training shape, forward and backward
    evaluation_shape_s: Measurement  # each evaluation shape: forward alone
    step_ratio: Measurement


class PlatformProfile(Frozen):
    """One device with one model. Seconds of an eager micro-batch, forward and backward, are

    `micro_batch_s` + `token_s` x processed tokens + `pair_s` x pairs + `head_row_s` x head rows. The pairs of
    queries and keys are rows x width², or the sum of squared lengths where eager `attention` is by example
    (model/attention.py).
    """

    device_kind: str
    device_name: str
    model: str  # of what the seconds are, in words
    rules: DeviceRules
    micro_batch_s: Measurement
    token_s: Measurement  # all but attention scores and head
    pair_s: Measurement  # attention scores of one query with one key, all layers
    head_row_s: Measurement
    attention: Literal["row", "example"] = "row"
    compile: dict[CompileMode, CompileFigures] = Field(default_factory=dict)
    memory_edges: tuple[Shape, ...] = ()  # shapes that ran out of memory
    micro_batch_tokens: int | None = None  # the most that a run went on with after that
