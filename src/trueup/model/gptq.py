"""GPTQ (Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ", 2022, algorithm 1): a matrix is quantised input by
input, and what an input's rounding does to the outputs on the calibration rows is undone, as far as can be,
in the inputs that come after it.

O outputs, I inputs, N tokens, G scales of an output.
"""

from __future__ import annotations

import torch

from trueup.schema import TrueupError
from trueup.schema.quantization import Scheme

from .quantize_round import on_grid, scales_of, stored
from .quantized import QuantizedWeight, dequantise

DAMPING = 0.01  # of the mean of the Hessian's diagonal, added to the diagonal; the paper's
BLOCK = 128  # inputs whose errors go to the rest of the matrix in one product, where groups do not say
TRIES = 4


class Hessian:
    """Of the squared output error by the weights of one output: 2/N times the sum of x x', in fp32."""

    def __init__(self, inputs: int) -> None:
        self._sum_II = torch.zeros(inputs, inputs)
        self.tokens = 0

    def add(self, x: torch.Tensor) -> None:
        """`x`: inputs of the layer, (..., I)."""
        x_NI = x.detach().flatten(0, -2).float()
        self._sum_II.addmm_(x_NI.T, x_NI)
        self.tokens += len(x_NI)

    def matrix(self) -> torch.Tensor:
        """(I, I)."""
        return self._sum_II * (2 / max(1, self.tokens))

    def output_error(self, weight_OI: torch.Tensor, found: QuantizedWeight) -> float:
        """The norm of the change of the outputs over the norm of the outputs, on the rows that were added."""
        squared = _energy(dequantise(found) - weight_OI.float(), self._sum_II)
        whole = _energy(weight_OI.float(), self._sum_II)
        return float((squared / whole).sqrt()) if whole > 0 else 0.0


def _energy(weight_OI: torch.Tensor, sum_II: torch.Tensor) -> torch.Tensor:
    return ((weight_OI @ sum_II) * weight_OI).sum().clamp_min(0)


@torch.no_grad()
def gptq(
    weight_OI: torch.Tensor,
    hessian: Hessian,
    scheme: Scheme,
    group: int | None,
    *,
    damping: float = DAMPING,
    per_tensor: bool = False,
) -> QuantizedWeight:
    """Scales of a group are taken when its turn comes, of the weights as they are by then.

    Raises TrueupError where the Hessian has no Cholesky factor even with a thousand times the damping.
    """
    left_OI = weight_OI.float().clone()
    factor_II = _factor(hessian.matrix(), damping)
    whole = scales_of(left_OI, scheme, None, per_tensor=per_tensor) if group is None else None
    values_OI = torch.empty_like(left_OI)
    scales: list[torch.Tensor] = [] if whole is None else [whole]
    inputs = left_OI.shape[1]
    width = BLOCK if group is None else group
    for first in range(0, inputs, width):
        last = min(first + width, inputs)
        scale_O1 = scales_of(left_OI[:, first:last], scheme, group) if whole is None else whole
        if whole is None:
            scales.append(scale_O1)
        block = left_OI[:, first:last]
        values_OI[:, first:last], errors_OB = _block(
            block, factor_II[first:last, first:last], scale_O1, scheme
        )
        left_OI[:, last:] -= errors_OB @ factor_II[first:last, last:]
    return stored(values_OI, torch.cat(scales, dim=1), scheme, group)


def _block(
    left_OB: torch.Tensor, factor_BB: torch.Tensor, scale_O1: torch.Tensor, scheme: Scheme
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of a block's inputs, one after the other, and each one's error over its factor's diagonal."""
    left_OB = left_OB.clone()
    values_OB, errors_OB = torch.empty_like(left_OB), torch.empty_like(left_OB)
    for column in range(left_OB.shape[1]):
        weight_O1 = left_OB[:, column : column + 1]
        value_O1 = on_grid(weight_O1, scale_O1, scheme)
        error_O1 = (weight_O1 - value_O1 * scale_O1) / factor_BB[column, column]
        values_OB[:, column : column + 1] = value_O1
        errors_OB[:, column : column + 1] = error_O1
        left_OB[:, column + 1 :] -= error_O1 @ factor_BB[column : column + 1, column + 1 :]
    return values_OB, errors_OB


def _factor(hessian_II: torch.Tensor, damping: float) -> torch.Tensor:
    """The upper Cholesky factor of the damped Hessian's inverse, (I, I). An input that is always zero has
    nothing to undo: its diagonal becomes 1."""
    diagonal = hessian_II.diagonal()
    unused = diagonal == 0
    hessian_II = hessian_II + torch.diag(unused.to(hessian_II.dtype))
    mean = float(hessian_II.diagonal().mean())
    for attempt in range(TRIES):
        damped_II = hessian_II + torch.eye(len(hessian_II)) * (damping * 10**attempt * mean)
        lower_II, wrong = torch.linalg.cholesky_ex(damped_II)
        if int(wrong) == 0:
            factor_II: torch.Tensor
            factor_II, wrong = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower_II), upper=True)
            if int(wrong) == 0 and bool(torch.isfinite(factor_II).all()):
                return factor_II
    raise TrueupError(
        "GPTQ: the Hessian of a layer's inputs has no Cholesky factor: activations that are not numbers, or "
        "far too large; give other calibration data, or --method rtn"
    )
