"""Batch norm over the live rows of each lane, and the ReLU after it, in one operation.

Shapes: B rows, L lanes, C channels of one lane, H x W pixels; `x` is [B, L*C, H, W] in
channels_last, to the kernels a matrix with one row per pixel of the batch and L*C columns.
A dead row of the batch enters neither the statistics nor any gradient; its own output is still
computed. What the passes share of a channel is `affine_5LC`: mean, 1 / deviation, weight, bias,
and the share of one live pixel in the mean.
"""

from typing import Any

import torch
from torch import Tensor

from fl2fast.kernels.launch import (
    accumulator,
    ceil_div,
    differentiable,
    in_triton,
    jit,
    pixel_rows,
    power_of_2,
    tl,
)

_PIXELS = (0, 3, 4)


def norm_relu_plain(
    x: Tensor, row_LB: Tensor, weight_LC: Tensor, bias_LC: Tensor, eps: float, relu: bool
) -> Tensor:
    """The definition, differentiated by autograd; half precision is computed in single."""
    return _forward_plain(x, row_LB, weight_LC, bias_LC, eps, relu)[0]


def norm_relu(
    x: Tensor, row_LB: Tensor | None, weight_LC: Tensor, bias_LC: Tensor, eps: float, relu: bool
) -> Tensor:
    """`norm_relu_plain` with its gradient in closed form; None means that every row is live."""
    if row_LB is None:
        row_LB = x.new_ones((weight_LC.shape[0], x.shape[0]), dtype=torch.bool)
    return _norm_relu(x, row_LB, weight_LC, bias_LC, eps, relu)[0]


def _lanes(x: Tensor, num_lanes: int) -> Tensor:
    return pixel_rows(x).to(accumulator(x.dtype)).unflatten(1, (num_lanes, -1))


def _forward_plain(
    x: Tensor, row_LB: Tensor, weight_LC: Tensor, bias_LC: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    """The output and `affine_5LC`."""
    x_BLCHW = _lanes(x, len(weight_LC))
    live = row_LB.T.to(x_BLCHW.dtype)[:, :, None, None, None]
    share_L1 = 1 / (row_LB.sum(1, keepdim=True).clamp(min=1) * x[0, 0].numel()).to(live.dtype)
    mean_LC = (x_BLCHW * live).sum(_PIXELS) * share_L1
    centred = x_BLCHW - mean_LC[:, :, None, None]
    rstd_LC = ((centred.square() * live).sum(_PIXELS) * share_L1 + eps).rsqrt()
    affine = mean_LC, rstd_LC, weight_LC, bias_LC, share_L1.expand_as(mean_LC)
    affine_5LC = torch.stack([t.to(x_BLCHW.dtype) for t in affine])
    _, out = _normed_and_out(x_BLCHW, affine_5LC)
    return (out.relu() if relu else out).flatten(1, 2).to(x.dtype), affine_5LC


def _normed_and_out(x_BLCHW: Tensor, affine_5LC: Tensor) -> tuple[Tensor, Tensor]:
    mean, rstd, weight, bias, _ = affine_5LC[..., None, None]
    normed = (x_BLCHW - mean) * rstd
    return normed, normed * weight + bias


def _backward_plain(
    grad: Tensor, x: Tensor, row_LB: Tensor, affine_5LC: Tensor, relu: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of bias and weight (2LC); the ReLU's mask is computed again."""
    normed, out = _normed_and_out(_lanes(x, len(row_LB)), affine_5LC)
    live = row_LB.T[:, :, None, None, None]
    passes = live & (out > 0) if relu else live
    grad = torch.where(passes, _lanes(grad, len(row_LB)), 0.0)
    sums_2LC = torch.stack([grad.sum(_PIXELS), (grad * normed).sum(_PIXELS)])
    _, rstd, weight, _, share = affine_5LC[..., None, None]
    along_one, along_normed = share * sums_2LC[..., None, None]
    grad_x = weight * rstd * (grad - live * (along_one + normed * along_normed))
    return grad_x.flatten(1, 2).to(x.dtype), sums_2LC


forward_op = torch.library.custom_op("fl2fast::norm_relu", _forward_plain, mutates_args=())
backward_op = torch.library.custom_op(
    "fl2fast::norm_relu_backward", _backward_plain, mutates_args=()
)


@forward_op.register_fake
def _(x: Tensor, row_LB: Tensor, weight_LC: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    affine_5LC = x.new_empty((5, *weight_LC.shape), dtype=accumulator(x.dtype))
    return torch.empty_like(x, memory_format=torch.channels_last), affine_5LC


@backward_op.register_fake
def _(
    grad: Tensor, x: Tensor, row_LB: Tensor, affine_5LC: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    sums_2LC = affine_5LC.new_empty((2, *affine_5LC.shape[1:]))
    return torch.empty_like(x, memory_format=torch.channels_last), sums_2LC


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, row_LB, weight_LC, bias_LC, _, ctx.relu = inputs
    _, affine_5LC = output
    ctx.dtypes = weight_LC.dtype, bias_LC.dtype
    ctx.mark_non_differentiable(affine_5LC)
    ctx.save_for_backward(x, row_LB, affine_5LC)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, (grad_bias, grad_weight) = backward_op(grad, *ctx.saved_tensors, ctx.relu)
    return grad_x, None, grad_weight.to(ctx.dtypes[0]), grad_bias.to(ctx.dtypes[1]), None, None


_norm_relu = differentiable(forward_op, _save, _backward)


def _grid(x: Tensor, lanes: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """(programs of a pass over all tiles, the kernels' sizes, a tile, sums of a channel)."""
    sizes = num_rows, num_pixels, channels = len(x), x[0, 0].numel(), x.shape[1] // lanes
    block_c = min(64, power_of_2(channels))
    block_p = 2048 // block_c
    tiles = ceil_div(num_rows * num_pixels, block_p)
    programs = tiles, ceil_div(channels, block_c), lanes
    return programs, sizes, (block_p, block_c), min(64, power_of_2(tiles))


@in_triton(forward_op)
def forward_triton(
    x: Tensor, row_LB: Tensor, weight_LC: Tensor, bias_LC: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    x, (lanes, channels) = pixel_rows(x), weight_LC.shape
    assert x.shape[1] == lanes * channels, f"{x.shape[1]} channels are not {lanes} x {channels}"
    assert row_LB.shape == (lanes, len(x)), f"row_LB is {tuple(row_LB.shape)}"
    programs, sizes, tile, parts = _grid(x, lanes)
    part = x.new_empty((3, parts, lanes * channels), dtype=accumulator(x.dtype))
    affine_5LC, out = part.new_empty(5, lanes, channels), torch.empty_like(x)
    moments_kernel[parts, *programs[1:]](x, row_LB.contiguous(), part, *sizes, parts, *tile)
    given = part, weight_LC.contiguous(), bias_LC.contiguous(), affine_5LC
    merge_kernel[(ceil_div(part.shape[2], 32),)](*given, part.shape[2], eps, parts, 32)
    norm_kernel[programs](x, affine_5LC, out, *sizes, relu, *tile)
    return out, affine_5LC


@in_triton(backward_op)
def backward_triton(
    grad: Tensor, x: Tensor, row_LB: Tensor, affine_5LC: Tensor, relu: bool
) -> tuple[Tensor, Tensor]:
    x, (_, lanes, channels) = pixel_rows(x), affine_5LC.shape
    assert grad.shape == x.shape, f"the gradient of {tuple(x.shape)} is {tuple(grad.shape)}"
    programs, sizes, tile, parts = _grid(x, lanes)
    given = pixel_rows(grad), x, row_LB.contiguous(), affine_5LC.contiguous()
    part, grad_x = affine_5LC.new_empty(2, parts, lanes, channels), torch.empty_like(x)
    sums_kernel[parts, *programs[1:]](*given, part, *sizes, relu, parts, *tile)
    sums_2LC = part.sum(1)
    grad_kernel[programs](*given, sums_2LC, grad_x, *sizes, relu, *tile)
    return grad_x, sums_2LC


@jit
def _tile(start, B, HW, C, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Of the program's lane and channels: offsets of a tile, and which of them exist."""
    pixel, own = start + tl.arange(0, BLOCK_P), tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    channel = tl.program_id(2) * C + own
    at = pixel.to(tl.int64)[:, None] * (tl.num_programs(2) * C) + channel[None, :]
    return at, (pixel < B * HW)[:, None] & (own < C)[None, :]


@jit
def _live_tile(row_ptr, start, B, HW, C, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """`_tile`, and which of it belongs to live rows of the program's lane."""
    at, exists = _tile(start, B, HW, C, BLOCK_P, BLOCK_C)
    pixel = start + tl.arange(0, BLOCK_P)
    row = tl.load(row_ptr + tl.program_id(2) * B + pixel // HW, mask=pixel < B * HW, other=0)
    return at, exists, exists & (row != 0)[:, None]


@jit
def _of_channels(ptr, which, C, BLOCK_C: tl.constexpr):
    """The program's channels of one of the [L, C] that `ptr` holds: offsets and which exist."""
    own = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    return ptr + (which * tl.num_programs(2) + tl.program_id(2)) * C + own, own < C


@jit
def _affine(affine_ptr, which, C, BLOCK_C: tl.constexpr):
    at, exists = _of_channels(affine_ptr, which, C, BLOCK_C)
    return tl.load(at, mask=exists, other=0.0)[None, :]


@jit
def moments_kernel(
    x_ptr,
    row_ptr,
    part_ptr,
    B,
    HW,
    C,
    PARTS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Count, mean and squared deviations over every PARTS-th tile, merged as Chan et al. do."""
    count = tl.zeros([BLOCK_C], part_ptr.dtype.element_ty)
    mean = tl.zeros([BLOCK_C], part_ptr.dtype.element_ty)
    squares = tl.zeros([BLOCK_C], part_ptr.dtype.element_ty)
    for start in range(tl.program_id(0) * BLOCK_P, B * HW, PARTS * BLOCK_P):
        at, _, live = _live_tile(row_ptr, start, B, HW, C, BLOCK_P, BLOCK_C)
        x = tl.load(x_ptr + at, mask=live, other=0.0).to(part_ptr.dtype.element_ty)
        num = tl.sum(live.to(part_ptr.dtype.element_ty), 0)
        own_mean = tl.sum(x, 0) / tl.maximum(num, 1.0)
        centred = tl.where(live, x - own_mean[None, :], 0.0)
        apart = own_mean - mean
        share = num / tl.maximum(count + num, 1.0)
        squares += tl.sum(centred * centred, 0) + apart * apart * count * share
        mean += apart * share
        count += num
    at, exists = _of_channels(part_ptr, tl.program_id(0), C, BLOCK_C)
    stride = PARTS * tl.num_programs(2) * C
    tl.store(at, count, mask=exists)
    tl.store(at + stride, mean, mask=exists)
    tl.store(at + 2 * stride, squares, mask=exists)


@jit
def merge_kernel(
    part_ptr,
    weight_ptr,
    bias_ptr,
    affine_ptr,
    LC,
    EPS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = channel < LC
    at = tl.arange(0, PARTS)[:, None] * LC + channel[None, :]
    count = tl.load(part_ptr + at, mask=exists[None, :], other=0.0)
    means = tl.load(part_ptr + PARTS * LC + at, mask=exists[None, :], other=0.0)
    squares = tl.load(part_ptr + 2 * PARTS * LC + at, mask=exists[None, :], other=0.0)
    share = 1.0 / tl.maximum(tl.sum(count, 0), 1.0)
    mean = tl.sum(count * means, 0) * share
    apart = means - mean[None, :]
    variance = tl.sum(squares + count * apart * apart, 0) * share
    tl.store(affine_ptr + channel, mean, mask=exists)
    tl.store(affine_ptr + LC + channel, 1.0 / tl.sqrt(variance + EPS), mask=exists)
    weight = tl.load(weight_ptr + channel, mask=exists, other=0.0)
    bias = tl.load(bias_ptr + channel, mask=exists, other=0.0)
    tl.store(affine_ptr + 2 * LC + channel, weight.to(mean.dtype), mask=exists)
    tl.store(affine_ptr + 3 * LC + channel, bias.to(mean.dtype), mask=exists)
    tl.store(affine_ptr + 4 * LC + channel, share, mask=exists)


@jit
def _normed_and_out_tile(x_ptr, affine_ptr, at, mask, C, BLOCK_C: tl.constexpr):
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(affine_ptr.dtype.element_ty)
    normed = (x - _affine(affine_ptr, 0, C, BLOCK_C)) * _affine(affine_ptr, 1, C, BLOCK_C)
    weight, bias = _affine(affine_ptr, 2, C, BLOCK_C), _affine(affine_ptr, 3, C, BLOCK_C)
    return normed, normed * weight + bias


@jit
def norm_kernel(
    x_ptr,
    affine_ptr,
    out_ptr,
    B,
    HW,
    C,
    RELU: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    at, exists = _tile(tl.program_id(0) * BLOCK_P, B, HW, C, BLOCK_P, BLOCK_C)
    _, out = _normed_and_out_tile(x_ptr, affine_ptr, at, exists, C, BLOCK_C)
    if RELU:
        out = tl.where(out <= 0.0, 0.0, out)  # unlike a maximum, lets NaN through
    tl.store(out_ptr + at, out, mask=exists)


@jit
def _normed_and_grad(
    grad_ptr, x_ptr, affine_ptr, at, live, C, RELU: tl.constexpr, BLOCK_C: tl.constexpr
):
    """A tile of normed x, and of the gradient before the ReLU; nothing of a dead row is read."""
    normed, out = _normed_and_out_tile(x_ptr, affine_ptr, at, live, C, BLOCK_C)
    grad = tl.load(grad_ptr + at, mask=live, other=0.0).to(affine_ptr.dtype.element_ty)
    if RELU:
        grad = tl.where(out <= 0.0, 0.0, grad)
    return normed, grad


@jit
def sums_kernel(
    grad_ptr,
    x_ptr,
    row_ptr,
    affine_ptr,
    part_ptr,
    B,
    HW,
    C,
    RELU: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The gradient, and it times normed x, summed over every PARTS-th tile."""
    along_one = tl.zeros([BLOCK_C], part_ptr.dtype.element_ty)
    along_normed = tl.zeros([BLOCK_C], part_ptr.dtype.element_ty)
    for start in range(tl.program_id(0) * BLOCK_P, B * HW, PARTS * BLOCK_P):
        at, _, live = _live_tile(row_ptr, start, B, HW, C, BLOCK_P, BLOCK_C)
        normed, grad = _normed_and_grad(grad_ptr, x_ptr, affine_ptr, at, live, C, RELU, BLOCK_C)
        along_one += tl.sum(grad, 0)
        along_normed += tl.sum(grad * normed, 0)
    at, exists = _of_channels(part_ptr, tl.program_id(0), C, BLOCK_C)
    tl.store(at, along_one, mask=exists)
    tl.store(at + PARTS * tl.num_programs(2) * C, along_normed, mask=exists)


@jit
def grad_kernel(
    grad_ptr,
    x_ptr,
    row_ptr,
    affine_ptr,
    sums_ptr,
    grad_x_ptr,
    B,
    HW,
    C,
    RELU: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    start = tl.program_id(0) * BLOCK_P
    at, exists, live = _live_tile(row_ptr, start, B, HW, C, BLOCK_P, BLOCK_C)
    normed, grad = _normed_and_grad(grad_ptr, x_ptr, affine_ptr, at, live, C, RELU, BLOCK_C)
    along_one, along_normed = _affine(sums_ptr, 0, C, BLOCK_C), _affine(sums_ptr, 1, C, BLOCK_C)
    share = _affine(affine_ptr, 4, C, BLOCK_C)
    scale = _affine(affine_ptr, 1, C, BLOCK_C) * _affine(affine_ptr, 2, C, BLOCK_C)
    grad -= share * (along_one + normed * along_normed)
    tl.store(grad_x_ptr + at, tl.where(live, scale * grad, 0.0), mask=exists)
