"""One side of a comparison: a model with its weights on a device, in a precision, through one path, and every
output of one batch forward and backward.

U tokens that are not padding, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from trueup.device import Device
from trueup.recipe.models import TuneSection
from trueup.schema import CompileMode, InputError
from trueup.schema.choices import AskedAttention, AskedDevice, AskedPrecision
from trueup.schema.parity import SideFacts

from .batch import BatchTensors, batch_loss
from .builtin import ResolvedModel
from .compile import compile_model
from .flex import with_flex
from .load import Attention, LoadedModel, load_model, with_own_decoder
from .parity_file import Point
from .parity_watch import Take, Watch, watched
from .precision import Precision, choose_precision
from .storage import keep_weights_as

ROWS_AT_ONCE = 128  # of the logits


@dataclass(frozen=True)
class Side:
    """What to run and where. `put_weights` puts the subject's own weights over the base model's, where it has
    any; `weights` says in words which they are. `threads`: None as for training."""

    subject: str
    resolved: ResolvedModel
    section: TuneSection
    weights: str
    put_weights: Callable[[LoadedModel], object] | None = None
    device: AskedDevice = "auto"
    precision: AskedPrecision = "auto"
    attention: AskedAttention = "auto"
    compile: CompileMode = "none"
    threads: int | None = None


@dataclass(frozen=True)
class _Seen(LoadedModel):
    """Keeps what the forward pass of `batch_loss` gave it."""

    hidden: list[torch.Tensor] = field(default_factory=list)

    def forward_hidden(self, *batch: torch.Tensor) -> torch.Tensor:
        hidden_BTH = super().forward_hidden(*batch)
        self.hidden.append(hidden_BTH.detach())
        return hidden_BTH


def run_side(side: Side, device: Device, batch: BatchTensors, take: Take, *, gradient: bool) -> SideFacts:
    """Runs the batch and gives every output to `take`, in the order of execution: of modules, hidden states,
    logits, loss (the mean, in nats), and the gradient of each trained parameter, the last layer's first.

    No dropout. Raises InputError where this side cannot be run as asked.
    """
    loaded = _loaded(side, device)
    _check_tokens(side, loaded, batch)
    digest = weights_digest(loaded)
    precision = _precision(side, device)
    keep_weights_as(loaded.module, loaded.base.get_input_embeddings(), precision)
    loaded, layers = _with_layers(side, loaded, precision)
    with ExitStack() as undo:
        if side.compile != "none":
            undo.callback(_compiled(side, loaded, device).undo)
        watch = Watch(batch.segments_BT, take)
        seen = watched(loaded, watch, compiled=side.compile)
        undo.callback(seen.undo)
        _run(seen.loaded, watch, batch, precision, torch_device=device.torch_device, gradient=gradient)
    from trueup import __version__

    return SideFacts(
        subject=side.subject,
        model=side.resolved.name,
        weights=side.weights,
        weights_digest=digest,
        device=device.kind,
        device_name=device.name,
        precision=precision.policy,
        compute_dtype=precision.compute_dtype,
        attention=layers,
        compile=side.compile,
        threads=device.choose_threads()[0],
        softmax=seen.softmax,
        torch_version=torch.__version__,
        trueup_version=__version__,
    )


def _precision(side: Side, device: Device) -> Precision:
    precision = choose_precision(side.precision, device)
    if side.precision not in ("auto", precision.policy):
        raise InputError(f"{side.subject}: precision={side.precision} is not possible: {precision.reason}")
    return precision


def points_at_most(side: Side) -> int:
    """How many outputs a side can have: an upper bound, from the number of its layers."""
    from .load import read_config

    layers = int(read_config(side.resolved).get("num_hidden_layers", 100))
    return 64 * (layers + 2)


def weights_digest(loaded: LoadedModel) -> str:
    """Of every parameter's name and fp32 numbers: the same on every device."""
    found = hashlib.sha256()
    for name, parameter in loaded.base.named_parameters():
        found.update(name.encode())
        found.update(parameter.detach().float().cpu().contiguous().numpy().data)
    return found.hexdigest()


def _loaded(side: Side, device: Device) -> LoadedModel:
    attention: Attention = "eager" if side.attention == "eager" else "sdpa"
    loaded = load_model(side.resolved, side.section, torch_device=device.torch_device, attention=attention)
    if side.put_weights is not None:
        side.put_weights(loaded)
    loaded.module.eval()
    return loaded


def _check_tokens(side: Side, loaded: LoadedModel, batch: BatchTensors) -> None:
    rows, largest = len(loaded.head_weight), int(batch.tokens_BT.max())
    if largest >= rows:
        raise InputError(
            f"{side.subject}: the batch has token id {largest}, and this model's vocabulary {rows} words; "
            "give it data or random tokens of its own"
        )
    longest = int(batch.positions_BT.max()) + 1
    if loaded.max_positions is not None and longest > loaded.max_positions:
        raise InputError(
            f"{side.subject}: the batch has an example of {longest} tokens, and the model positions for "
            f"{loaded.max_positions}; give fewer --tokens"
        )


def _with_layers(side: Side, loaded: LoadedModel, precision: Precision) -> tuple[LoadedModel, str]:
    """As training would run it in rows of more than a block, unless something else is asked for."""
    if side.attention == "flex" or (side.attention == "auto" and loaded.head_weight.device.type == "cuda"):
        flexed, why = with_flex(loaded, precision)
        if side.attention == "flex" and flexed.attention != "flex":
            raise InputError(f"{side.subject}: attention=flex is not possible: {why}")
        return flexed, flexed.attention
    if side.attention in ("sdpa", "eager") or (side.attention == "auto" and side.compile != "none"):
        return loaded, loaded.attention
    if side.compile != "none":
        raise InputError(f"{side.subject}: our own layers do not compile; leave out compile or attention=own")
    ours, why = with_own_decoder(loaded, precision.compute_dtype)
    if ours.decoder is not None:
        return ours, "own"
    if side.attention == "own":
        raise InputError(f"{side.subject}: attention=own is not possible: {why}")
    return loaded, loaded.attention


def _compiled(side: Side, loaded: LoadedModel, device: Device) -> Any:
    backend, why = device.compile_backend()
    if backend is None:
        raise InputError(f"{side.subject}: compile={side.compile}, and this machine cannot compile: {why}")
    assert side.compile != "none"
    return compile_model(loaded, side.compile, backend=backend, graphs=2)


def _run(
    loaded: LoadedModel,
    watch: Watch,
    batch: BatchTensors,
    precision: Precision,
    *,
    torch_device: torch.device,
    gradient: bool,
) -> None:
    shown = BatchTensors.from_arrays(*vars(batch).values(), device=torch_device)
    seen = _Seen(**{one.name: getattr(loaded, one.name) for one in fields(loaded)})
    with torch.set_grad_enabled(gradient):
        loss = batch_loss(seen, shown, precision) / max(1, len(shown.targets_N))
        (hidden_BTH,) = seen.hidden
        watch.tokens(Point("hidden states", "module"), hidden_BTH)
        watch.tokens(Point("head", "logits", "computed"), _logits(seen, hidden_BTH, precision))
        watch.as_is(Point("mean per supervised token", "loss", "computed"), loss.reshape(1))
        if gradient:
            loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in reversed(list(loaded.base.named_parameters())):
        if parameter.requires_grad and parameter.grad is not None:
            watch.as_is(Point(name, "gradient", "computed"), parameter.grad)
            parameter.grad = None


@torch.no_grad()
def _logits(loaded: LoadedModel, hidden_BTH: torch.Tensor, precision: Precision) -> torch.Tensor:
    """(B*T, V) in host memory, of the products that the loss is made of."""
    head_VH = loaded.head_weight if loaded.decoder is None else loaded.decoder.head_weight_VH
    compute = getattr(torch, precision.compute_dtype)
    head_VH = head_VH.detach().to(compute)
    rows = torch.split(hidden_BTH.flatten(0, 1).to(compute), ROWS_AT_ONCE)
    return torch.cat([(part @ head_VH.T).float().cpu() for part in rows])
