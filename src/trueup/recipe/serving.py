"""How a recipe's model is served."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trueup.schema import Frozen

MOST = 2**30  # of tokens and of answers that wait: beyond it a slip
MOST_AT_ONCE = 65_536  # rows of a step, far more than any device computes at once


class ServeSection(Frozen):
    """What `trueup serve` serves it with; each key is an option of the command too."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0: every one")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0: any that is free")
    context: int | None = Field(
        None,
        ge=2,
        le=MOST,
        description="tokens of prompt and answer together; null: 4096, or what the model can",
    )
    concurrency: int = Field(8, ge=1, le=MOST_AT_ONCE, description="answers computed at once")
    waiting: int = Field(
        128, ge=0, le=MOST, description="answers that may wait; more are told to come back later"
    )
    quant: Literal["fp32", "bf16", "int8"] | None = Field(
        None, description="weights; null: as stored, or bf16; fp32 on a CPU"
    )
    kv: Literal["fp32", "bf16"] | None = Field(None, description="keys and values; null: bf16; fp32 on a CPU")
    block_size: int = Field(16, ge=1, le=MOST, description="tokens of a KV block")
    prefill_chunk: int = Field(256, ge=1, le=MOST, description="prompt tokens of one step")
    prefix_cache: bool = Field(True, description="compute what prompts begin with in common once")
    request_s: float = Field(600.0, gt=0, allow_inf_nan=False, description="most seconds of one answer")
    drain_s: float = Field(
        30.0, ge=0, allow_inf_nan=False, description="seconds to finish what was accepted, at the end"
    )
