"""FlexAttention over packed rows: its kernel leaves out the blocks of a row in which no token sees another.

It is taken only where it was found right on the device that it is to run on.

transformers' own way to it compiles for dynamic shapes, and anew whenever training turns to evaluation; ours
is compiled once for each planned shape, with gradients and without. B rows, T positions, N blocks in a row,
J query heads, K heads of keys and values, D numbers in a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

from trueup.schema import ShapePlan

from .decoder import UnsupportedError
from .masks import block_causal_mask
from .precision import Precision

if TYPE_CHECKING:
    from .load import LoadedModel

BLOCK = 128  # positions of a block, of queries and of keys: torch's own
ATTENTION_NAME = "trueup_flex"
MOST_GRAPHS = 256  # torch's limit for all uses of a function; one more is an error, not slow steps

# Of the difference from SDPA's output and gradients, relative, in norm. Rounding makes a hundredth of this in
# fp32 and a fifth in bf16; a neighbour or a later token that is seen changes them altogether.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
LENGTHS = ((5, 140, 90), (260,))  # of the examples in the check's rows: some end in a block, one fills one
WIDTHS = (300, 3 * BLOCK)  # of these rows: torch makes another kernel for multiples of a block
CHANGED = 2  # of the first row, the example whose tokens are changed


def block_mask(segments_BT: torch.Tensor) -> BlockMask:
    """What `block_causal_mask` says of the same segments, and which blocks hold any of it.

    A block is listed where the ranges of its queries' and its keys' segment numbers meet: never too few, and
    of examples one after another only those beside padding too many. It is whole, so that the kernel need not
    ask token by token, where all are of one segment and every query comes after every key.
    """
    rows, length = segments_BT.shape
    blocks = -(-length // BLOCK)
    place = torch.arange(blocks * BLOCK, device=segments_BT.device).clamp_(max=length - 1)
    low_BN, high_BN = segments_BT[:, place].view(rows, blocks, BLOCK).aminmax(dim=-1)
    number_N = torch.arange(blocks, device=segments_BT.device)
    earlier_NN, same_NN = number_N[:, None] > number_N, number_N[:, None] == number_N
    meet_BNN = (low_BN[:, :, None] <= high_BN[:, None]) & (low_BN[:, None] <= high_BN[:, :, None])
    one_BN = (low_BN == high_BN) & ((number_N + 1) * BLOCK <= length)
    whole_BNN = meet_BNN & earlier_NN & one_BN[:, :, None] & one_BN[:, None]
    some_BNN = meet_BNN & (earlier_NN | same_NN) & ~whole_BNN

    def sees(b: torch.Tensor, _: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (segments_BT[b, query] == segments_BT[b, key])

    return BlockMask.from_kv_blocks(
        *_listed(some_BNN), *_listed(whole_BNN), BLOCK, mask_mod=sees, seq_lengths=(length, length)
    )


def _listed(blocks_BNN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each block of queries how many blocks of keys (B, 1, N), and which, those first (B, 1, N, N)."""
    there = blocks_BNN[:, None].int()
    return there.sum(-1, dtype=torch.int32), torch.argsort(there, dim=-1, descending=True, stable=True).int()


def block_mask_as_tensor(mask: BlockMask) -> torch.Tensor:
    """Boolean (B, 1, T, T), as `block_causal_mask` is."""
    rows, heads, queries, keys = mask.shape
    return create_mask(mask.mask_mod, rows, heads, queries, keys, device=mask.kv_num_blocks.device)


# --- in transformers' layers ------------------------------------------------------------------------------


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """What transformers' layers call by ATTENTION_NAME. With any other mask than a BlockMask it is SDPA."""
    if not isinstance(mask, BlockMask):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        found: tuple[torch.Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, mask, **options
        )
        return found
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if options.get("dropout") or unknown:
        raise UnsupportedError(f"attention with {', '.join(unknown) or 'dropout'}")
    return _flex(query, key, value, mask, options.get("scaling")).transpose(1, 2).contiguous(), None


def _flex(
    query_BJTD: torch.Tensor,
    key_BKTD: torch.Tensor,
    value_BKTD: torch.Tensor,
    mask: BlockMask,
    scaling: float | None = None,
) -> torch.Tensor:
    """(B, J, T, D)."""
    kind = query_BJTD.device.type
    # Rotary embeddings leave queries and keys wider than the values under autocast; SDPA rounds them too.
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value_BKTD.dtype
    kernel: Any = flex_attention if torch.compiler.is_compiling() else _kernel(kind)
    seen_BJTD: torch.Tensor = kernel(
        *(query_BJTD.to(dtype), key_BKTD.to(dtype), value_BKTD.to(dtype)),
        block_mask=mask,
        scale=scaling,
        enable_gqa=True,
        # by itself torch takes another for short rows, made for decoding
        kernel_options={"BACKEND": "TRITON"},
    )
    return seen_BJTD


@cache
def _kernel(device_kind: str) -> Callable[..., Any]:
    """On a CPU torch's reference in plain products, through which torch refuses to train."""
    if device_kind == "cpu":
        return flex_attention
    options: Any = {"dynamic": False, "fullgraph": True, "recompile_limit": MOST_GRAPHS}
    return torch.compile(flex_attention, **options)


# --- whether to take it -----------------------------------------------------------------------------------


def with_attention_for(plan: ShapePlan, loaded: LoadedModel, precision: Precision) -> tuple[LoadedModel, str]:
    """The model on CUDA with the attention that suits the plan, and why this."""
    # Where an earlier plan took FlexAttention, `attend` stays in place: given a mask it is SDPA.
    loaded = replace(loaded, attention="sdpa")
    if plan.strategy == "longest":
        why = "FlexAttention compiles for each width, and these follow the data"
    elif all(width <= BLOCK for _, width in plan.training):
        why = f"FlexAttention leaves out blocks of {BLOCK} positions, and no row has more than one"
    else:
        loaded, why = with_flex(loaded, precision)
    return loaded, why if loaded.attention == "flex" else f"an explicit block-causal mask: {why}"


def with_flex(loaded: LoadedModel, precision: Precision) -> tuple[LoadedModel, str]:
    """The model with FlexAttention, checked where its weights are, or as it was; and why.

    Whatever goes wrong in the check is a reason, not an error: compilers raise every kind.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION_NAME, attend)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    config, dims = loaded.base.config, loaded.dims
    before = config._attn_implementation
    dtype = getattr(torch, precision.compute_dtype)
    device = loaded.head_weight.device
    try:
        check_kernel(device, dtype, heads=(dims.heads, dims.kv_heads), head_dim=dims.head_dim)
        config._attn_implementation = ATTENTION_NAME
        flexed = replace(loaded, attention="flex")
        _check_apart(flexed, precision)
    except Exception as error:
        config._attn_implementation = before
        return loaded, f"FlexAttention was tried here and left: {_in_a_line(error)}"
    return flexed, (
        f"FlexAttention, which leaves out blocks of {BLOCK} positions that no token sees; tried here, it was "
        f"within {TOLERANCE[dtype]:g} of SDPA with a mask in {precision.compute_dtype}, forward and "
        "backward, and no example moved its neighbour"
    )


def check_kernel(
    device: torch.device, dtype: torch.dtype, *, heads: tuple[int, int], head_dim: int
) -> dict[str, float]:
    """Random queries, keys and values of packed batches through the kernel and through SDPA with the explicit
    mask, forward and backward: the largest relative error of each result. `heads`: of queries, of keys.

    Not the model's own numbers: in bf16 a deep model enlarges the rounding of either without limit. Raises
    UnsupportedError where an error is over the tolerance; what the kernel itself raises goes through.
    """
    generator = torch.Generator().manual_seed(0)
    largest: dict[str, float] = {}
    for width in WIDTHS:
        segments_BT = _segments(width, device)
        query, key, value, gradient = (
            torch.randn((len(LENGTHS), n, width, head_dim), generator=generator).to(device, dtype)
            for n in (heads[0], heads[1], heads[1], heads[0])
        )
        inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
        found = _flex(query, key, value, block_mask(segments_BT))
        expected = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=block_causal_mask(segments_BT), enable_gqa=True
        )
        results = zip(
            ("output", "gradient of queries", "gradient of keys", "gradient of values"),
            (found.detach(), *torch.autograd.grad(found, inputs, gradient)),
            (expected.detach(), *torch.autograd.grad(expected, inputs, gradient)),
            strict=True,
        )
        for name, ours, theirs in results:
            error = float((ours.double() - theirs.double()).norm() / theirs.double().norm())
            if not error <= TOLERANCE[dtype]:  # NaN is over it too
                raise UnsupportedError(
                    f"its {name} is off by {error:.2g} from SDPA's, where {TOLERANCE[dtype]:g} is allowed"
                )
            largest[name] = max(error, largest.get(name, 0.0))
    return largest


@torch.no_grad()
def _check_apart(flexed: LoadedModel, precision: Precision) -> None:
    """Raises UnsupportedError where the tokens of one example move another's hidden states by anything."""
    if getattr(flexed.base.config, "attention_dropout", 0.0):
        raise UnsupportedError("attention with dropout")
    was_training = flexed.module.training
    flexed.module.eval()
    try:
        for width in WIDTHS:
            _check_apart_in(width, flexed, precision)
    finally:
        flexed.module.train(was_training)


def _check_apart_in(width: int, flexed: LoadedModel, precision: Precision) -> None:
    device = flexed.head_weight.device
    segments_BT = _segments(width, device)
    spans = [torch.arange(length) for row in LENGTHS for length in (*row, width - sum(row))]
    positions_BT = torch.cat(spans).view(segments_BT.shape).to(device)
    tokens_BT = (torch.arange(segments_BT.numel(), device=device) * 7 + 3).view(segments_BT.shape)
    changed_BT = torch.zeros_like(segments_BT, dtype=torch.bool)
    changed_BT[0] = segments_BT[0] == CHANGED
    hidden = []
    for shown_BT in (tokens_BT, tokens_BT + changed_BT):
        with precision.autocast(device.type):
            shown_BT = shown_BT % len(flexed.head_weight)
            hidden.append(flexed.forward_hidden(shown_BT, positions_BT, segments_BT))
    if not torch.equal(hidden[0][~changed_BT], hidden[1][~changed_BT]):
        raise UnsupportedError("examples packed into one row influence each other")


def _segments(width: int, device: torch.device) -> torch.Tensor:
    """(B, width), padding 0."""
    numbers_BT = torch.zeros(len(LENGTHS), width, dtype=torch.int64)
    for row_T, lengths in zip(numbers_BT, LENGTHS, strict=True):
        row_T[: sum(lengths)] = torch.repeat_interleave(torch.tensor(lengths)) + 1
    return numbers_BT.to(device)


def _in_a_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, UnsupportedError):
        return line
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
