"""Batch norm over the live rows of a batch, one set of statistics per lane.

Shapes: B rows, L lanes, C channels of one lane, H x W pixels; `x_BLCHW` may be a view of
[B, L*C, H, W]. A dead row (padding) enters neither the statistics nor any gradient.
"""

from typing import Any

import torch
from torch import Tensor

_PIXELS = (0, 3, 4)


def masked_norm_plain(
    x_BLCHW: Tensor, row_BL: Tensor, weight_LC: Tensor, bias_LC: Tensor, eps: float
) -> Tensor:
    """The definition: mean and variance are means over live rows, differentiated by autograd."""
    share = _share(x_BLCHW, row_BL)
    mean = (x_BLCHW * share).sum(_PIXELS, keepdim=True)
    deviation = x_BLCHW - mean
    variance = (deviation.square() * share).sum(_PIXELS, keepdim=True)
    scale = weight_LC[None, :, :, None, None] * (variance + eps).rsqrt()
    return deviation * scale + bias_LC[None, :, :, None, None]


def masked_norm(
    x_BLCHW: Tensor, row_BL: Tensor, weight_LC: Tensor, bias_LC: Tensor, eps: float
) -> Tensor:
    """`masked_norm_plain` with its gradient in closed form: half the memory and passes."""
    out, _, _ = _MaskedNorm.apply(x_BLCHW, row_BL, weight_LC, bias_LC, eps)  # type: ignore[misc]
    return out


def _share(x_BLCHW: Tensor, row_BL: Tensor) -> Tensor:
    """Each element's weight in its lane's mean: 1 / (live rows * pixels), 0 in dead rows."""
    row = row_BL.to(x_BLCHW.dtype)
    per_row = row / (row.sum(0).clamp(min=1) * (x_BLCHW.shape[3] * x_BLCHW.shape[4]))
    return per_row[:, :, None, None, None]


class _MaskedNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(  # type: ignore[override]
        x: Tensor, row: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        share = _share(x, row)
        mean = (x * share).sum(_PIXELS, keepdim=True)
        normed = x - mean
        rstd = ((normed.square() * share).sum(_PIXELS, keepdim=True) + eps).rsqrt()
        normed = normed * rstd
        out = torch.addcmul(bias[None, :, :, None, None], normed, weight[None, :, :, None, None])
        return out, normed, rstd

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, row, weight, _, _ = inputs
        _, normed, rstd = output
        ctx.mark_non_differentiable(normed, rstd)
        ctx.save_for_backward(row, weight, normed, rstd)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        row, weight, normed, rstd = ctx.saved_tensors
        live = row.to(normed.dtype)[:, :, None, None, None]
        grad = grads[0] * live
        along_one = grad.sum(_PIXELS, keepdim=True)
        along_normed = (grad * normed).sum(_PIXELS, keepdim=True)
        share = _share(normed, row)
        scale = weight[None, :, :, None, None] * rstd
        grad_x = scale * (grad - share * (along_one + normed * along_normed))
        return grad_x, None, along_normed[0, :, :, 0, 0], along_one[0, :, :, 0, 0], None
