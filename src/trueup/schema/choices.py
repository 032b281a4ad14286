"""What a recipe and the command line choose from where several rooms need to know it."""

from __future__ import annotations

from typing import Literal

DeviceKind = Literal["cpu", "cuda", "neuron"]
AskedDevice = Literal["auto", DeviceKind]

PrecisionPolicy = Literal["fp32", "bf16", "bf16-master", "autocast"]
AskedPrecision = Literal["auto", PrecisionPolicy]

CompileMode = Literal["none", "layer", "model"]

Order = Literal["pause", "resume", "checkpoint", "stop"]  # to a run, by a person or an alarm from outside

# own: our layers for the CPU; flex: FlexAttention, which trains on CUDA alone
AskedAttention = Literal["auto", "sdpa", "eager", "own", "flex"]
