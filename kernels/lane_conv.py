"""Convolution of every lane's channels with the lane's own weights, as matrix products.

Shapes: B rows, L lanes, C and O channels of one lane in and out, H x W pixels, k x k taps; `x` is
[B, L*C, H, W] and the output [B, L*O, H', W'], both channels_last. To the kernels a lane's weights
are a matrix of K = k*k*C rows (tap by tap) and O columns; the M = B*H'*W' output pixels are rows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

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

_WANTED_PROGRAMS = 1024  # enough to fill any GPU of today several times


def lane_conv_plain(x: Tensor, weight_LOCkk: Tensor, stride: int, padding: int) -> Tensor:
    """The definition, differentiated by autograd."""
    lanes, weight = weight_LOCkk.shape[0], weight_LOCkk.flatten(0, 1)
    return pixel_rows(F.conv2d(pixel_rows(x), weight, None, stride, padding, groups=lanes))


def lane_conv(x: Tensor, weight_LOCkk: Tensor, stride: int, padding: int) -> Tensor:
    """`lane_conv_plain` with all lanes in one launch, forward and backward; heeds autocast."""
    if torch.is_autocast_enabled(x.device.type):
        chosen = torch.get_autocast_dtype(x.device.type)
        x, weight_LOCkk = x.to(chosen), weight_LOCkk.to(chosen)
    assert x.dtype == weight_LOCkk.dtype, f"x is {x.dtype}, the weights {weight_LOCkk.dtype}"
    return _lane_conv(x, weight_LOCkk, stride, padding)


def _input_grad_plain(
    grad: Tensor, weight_LOCkk: Tensor, height: int, width: int, stride: int, padding: int
) -> Tensor:
    lanes, _, channels = weight_LOCkk.shape[:3]
    shape = (grad.shape[0], lanes * channels, height, width)
    weight = weight_LOCkk.flatten(0, 1)
    return pixel_rows(conv2d_input(shape, weight, grad, stride, padding, groups=lanes))


def _weight_grad_plain(
    grad: Tensor, x: Tensor, lanes: int, side: int, stride: int, padding: int
) -> Tensor:
    shape = (grad.shape[1], x.shape[1] // lanes, side, side)
    weight = conv2d_weight(x, shape, grad, stride, padding, groups=lanes)
    return weight.unflatten(0, (lanes, -1)).contiguous()


forward_op, input_grad_op, weight_grad_op = (
    torch.library.custom_op(f"fl2fast::{name}", plain, mutates_args=())
    for name, plain in (
        ("lane_conv", lane_conv_plain),
        ("lane_conv_input_grad", _input_grad_plain),
        ("lane_conv_weight_grad", _weight_grad_plain),
    )
)


def _empty_rows(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(
        shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last
    )


@forward_op.register_fake
def _empty_output(x: Tensor, weight_LOCkk: Tensor, stride: int, padding: int) -> Tensor:
    lanes, out_channels, _, side, _ = weight_LOCkk.shape
    height, width = ((size + 2 * padding - side) // stride + 1 for size in x.shape[2:])
    return _empty_rows(x, x.shape[0], lanes * out_channels, height, width)


@input_grad_op.register_fake
def _empty_input_grad(
    grad: Tensor, weight_LOCkk: Tensor, height: int, width: int, stride: int, padding: int
) -> Tensor:
    lanes, _, channels = weight_LOCkk.shape[:3]
    return _empty_rows(grad, grad.shape[0], lanes * channels, height, width)


@weight_grad_op.register_fake
def _(grad: Tensor, x: Tensor, lanes: int, side: int, stride: int, padding: int) -> Tensor:
    return x.new_empty(lanes, grad.shape[1] // lanes, x.shape[1] // lanes, side, side)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight_LOCkk, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight_LOCkk)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight_LOCkk = ctx.saved_tensors
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:  # a stem's input is data
        grad_x = input_grad_op(grad, weight_LOCkk, *x.shape[2:], ctx.stride, ctx.padding)
    if ctx.needs_input_grad[1]:
        lanes, side = weight_LOCkk.shape[0], weight_LOCkk.shape[-1]
        grad_weight = weight_grad_op(grad, x, lanes, side, ctx.stride, ctx.padding)
    return grad_x, grad_weight, None, None


_lane_conv = differentiable(forward_op, _save, _backward)


def _blocks(num_rows: int, num_outputs: int, num_terms: int) -> tuple[int, int, int]:
    """Tiles of M, O and K; tl.dot wants no side below 16."""
    return (
        64 if num_rows > 16 else 16,
        min(64, max(16, power_of_2(num_outputs))),
        min(32, max(16, power_of_2(num_terms))),
    )


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _convolve(
    x: Tensor, weight_LOCkk: Tensor, out: Tensor, stride: int, up: int, padding: int
) -> Tensor:
    """Into `out`: output pixel p reads input pixel (p * stride + tap - padding) / up, if whole."""
    lanes, out_channels, channels, side, _ = weight_LOCkk.shape
    assert x.shape[1] == lanes * channels, f"{x.shape[1]} channels are not {lanes} x {channels}"
    weight_LKO = weight_LOCkk.permute(0, 3, 4, 2, 1).contiguous()
    num_rows = out.shape[0] * out.shape[2] * out.shape[3]
    blocks = _blocks(num_rows, out_channels, side * side * channels)
    grid = ceil_div(num_rows, blocks[0]), ceil_div(out_channels, blocks[1]), lanes
    geometry = num_rows, *x.shape[2:], *out.shape[2:], channels, out_channels
    constants = side, stride, up, padding
    wide = tl.float64 if x.dtype == torch.float64 else tl.float32
    conv_kernel[grid](
        *(pixel_rows(x), weight_LKO, out), *geometry, *constants, *blocks, _precision(), wide
    )
    return out


@in_triton(forward_op)
def forward_triton(x: Tensor, weight_LOCkk: Tensor, stride: int, padding: int) -> Tensor:
    out = _empty_output(x, weight_LOCkk, stride, padding)
    return _convolve(x, weight_LOCkk, out, stride, 1, padding)


@in_triton(input_grad_op)
def input_grad_triton(
    grad: Tensor, weight_LOCkk: Tensor, height: int, width: int, stride: int, padding: int
) -> Tensor:
    """Again a convolution: mirrored taps, channels swapped, the stride now between input pixels."""
    out = _empty_input_grad(grad, weight_LOCkk, height, width, stride, padding)
    mirrored_LCOkk = weight_LOCkk.flip(3, 4).transpose(1, 2)
    return _convolve(grad, mirrored_LCOkk, out, 1, stride, weight_LOCkk.shape[-1] - 1 - padding)


@in_triton(weight_grad_op)
def weight_grad_triton(
    grad: Tensor, x: Tensor, lanes: int, side: int, stride: int, padding: int
) -> Tensor:
    """Split over output pixels where lanes and tiles alone are few; the parts are summed after."""
    channels, out_channels = x.shape[1] // lanes, grad.shape[1] // lanes
    num_rows, num_terms = grad.shape[0] * grad.shape[2] * grad.shape[3], side * side * channels
    blocks = 32, *_blocks(num_rows, out_channels, num_terms)[1:]  # 64 would spill registers
    tiles = ceil_div(num_terms, blocks[2]) * ceil_div(out_channels, blocks[1])
    splits = min(ceil_div(num_rows, blocks[0]), ceil_div(_WANTED_PROGRAMS, tiles * lanes))
    part = x.new_empty(
        (splits, lanes, side, side, channels, out_channels), dtype=accumulator(x.dtype)
    )
    geometry = num_rows, *x.shape[2:], *grad.shape[2:], channels, out_channels
    weight_grad_kernel[tiles, splits, lanes](
        pixel_rows(x),
        pixel_rows(grad),
        part,
        *geometry,
        side,
        stride,
        padding,
        *blocks,
        _precision(),
    )
    return part.sum(0).permute(0, 4, 3, 1, 2).to(x.dtype, memory_format=torch.contiguous_format)


@jit
def _patches(
    x_ptr,
    row,
    term,
    num_rows,
    H,
    W,
    out_H,
    out_W,
    C,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    UP: tl.constexpr,
    PADDING: tl.constexpr,
):
    """What output pixels `row` read at taps and channels `term`: a tile; 0 outside the image."""
    tap = term // C
    y = ((row // out_W) % out_H * STRIDE - PADDING)[:, None] + (tap // SIDE)[None, :]
    x = (row % out_W * STRIDE - PADDING)[:, None] + (tap % SIDE)[None, :]
    inside = (y >= 0) & (y < H * UP) & (y % UP == 0) & (x >= 0) & (x < W * UP) & (x % UP == 0)
    exists = inside & (row < num_rows)[:, None] & (term < SIDE * SIDE * C)[None, :]
    pixel = (row // (out_W * out_H))[:, None] * (H * W) + y // UP * W + x // UP
    channel = tl.program_id(2) * C + term % C
    at = pixel.to(tl.int64) * (tl.num_programs(2) * C) + channel[None, :]
    return tl.load(x_ptr + at, mask=exists, other=0.0)


@jit
def conv_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    H,
    W,
    out_H,
    out_W,
    C,
    out_C,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    UP: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of the output: patches times weights, term after term."""
    lane, num_terms = tl.program_id(2), SIDE * SIDE * C
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    total = tl.zeros([BLOCK_M, BLOCK_O], WIDE)
    for start in range(0, num_terms, BLOCK_K):
        term = start + tl.arange(0, BLOCK_K)
        patches = _patches(
            x_ptr, row, term, num_rows, H, W, out_H, out_W, C, SIDE, STRIDE, UP, PADDING
        )
        exists = (term < num_terms)[:, None] & (o < out_C)[None, :]
        at = (lane.to(tl.int64) * num_terms + term)[:, None] * out_C + o[None, :]
        weight = tl.load(weight_ptr + at, mask=exists, other=0.0)
        total = tl.dot(patches, weight, total, input_precision=PRECISION)
    at = row.to(tl.int64)[:, None] * (tl.num_programs(2) * out_C) + (lane * out_C + o)[None, :]
    tl.store(out_ptr + at, total, mask=(row < num_rows)[:, None] & (o < out_C)[None, :])


@jit
def weight_grad_kernel(
    x_ptr,
    grad_ptr,
    part_ptr,
    num_rows,
    H,
    W,
    out_H,
    out_W,
    C,
    out_C,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of one split's part: patches, transposed, times gradients, block after block."""
    lane, num_terms = tl.program_id(2), SIDE * SIDE * C
    tiles_o = tl.cdiv(out_C, BLOCK_O)
    term = tl.program_id(0) // tiles_o * BLOCK_K + tl.arange(0, BLOCK_K)
    o = tl.program_id(0) % tiles_o * BLOCK_O + tl.arange(0, BLOCK_O)
    total = tl.zeros([BLOCK_K, BLOCK_O], part_ptr.dtype.element_ty)
    for start in range(tl.program_id(1) * BLOCK_M, num_rows, tl.num_programs(1) * BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        patches = _patches(
            x_ptr, row, term, num_rows, H, W, out_H, out_W, C, SIDE, STRIDE, 1, PADDING
        )
        exists = (row < num_rows)[:, None] & (o < out_C)[None, :]
        at = row.to(tl.int64)[:, None] * (tl.num_programs(2) * out_C) + (lane * out_C + o)[None, :]
        grad = tl.load(grad_ptr + at, mask=exists, other=0.0)
        total = tl.dot(tl.trans(patches), grad, total, input_precision=PRECISION)
    split = tl.program_id(1).to(tl.int64) * tl.num_programs(2) + lane
    at = (split * num_terms + term)[:, None] * out_C + o[None, :]
    tl.store(part_ptr + at, total, mask=(term < num_terms)[:, None] & (o < out_C)[None, :])
