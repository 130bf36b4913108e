"""One step of SGD on rows of parameters: clip, decay, accumulate, move.

Shapes: L lanes, P parameters. The arithmetic is `fl2fast.optim.SGD.step`'s.
"""

import torch
from torch import Tensor

from fl2fast.kernels.launch import (
    LANE_BLOCK,
    accumulator,
    alike,
    in_triton,
    jit,
    lane_grid,
    tl,
)


def sgd_step_plain(
    params_LP: Tensor,
    buffer_LP: Tensor,
    grad_LP: Tensor,
    lr: Tensor,
    momentum: float,
    weight_decay: float,
    clip: float,
    nesterov: bool,
) -> tuple[Tensor, Tensor]:
    """The definition; half precision is computed in single and rounded once."""
    dtype = params_LP.dtype
    params_LP, buffer_LP, grad_LP, lr = (
        t.to(accumulator(dtype)) for t in (params_LP, buffer_LP, grad_LP, lr)
    )
    if clip:
        norm_L1 = grad_LP.norm(dim=-1, keepdim=True)
        grad_LP = grad_LP * (clip / (norm_L1 + 1e-6)).clamp(max=1.0)
    grad_LP = grad_LP + weight_decay * params_LP
    buffer_LP = momentum * buffer_LP + grad_LP
    direction_LP = grad_LP + momentum * buffer_LP if nesterov else buffer_LP
    return (params_LP - lr * direction_LP).to(dtype), buffer_LP.to(dtype)


def sgd_step(
    params_LP: Tensor,
    buffer_LP: Tensor,
    grad_LP: Tensor,
    lr: Tensor | float,
    momentum: float,
    weight_decay: float,
    clip: float,
    nesterov: bool,
) -> tuple[Tensor, Tensor]:
    """The updated (params_LP, buffer_LP); `lr` as a 0-dim tensor may change without recompiling."""
    given = params_LP.detach(), buffer_LP.detach(), grad_LP.detach()
    rate = lr if isinstance(lr, Tensor) else params_LP.new_full((), lr)
    return sgd_step_op(*given, rate, momentum, weight_decay, clip, nesterov)


sgd_step_op = torch.library.custom_op("fl2fast::sgd_step", sgd_step_plain, mutates_args=())


@sgd_step_op.register_fake
def _(params_LP: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return params_LP.new_empty(params_LP.shape), params_LP.new_empty(params_LP.shape)


@in_triton(sgd_step_op)
def sgd_step_triton(
    params_LP: Tensor,
    buffer_LP: Tensor,
    grad_LP: Tensor,
    lr: Tensor,
    momentum: float,
    weight_decay: float,
    clip: float,
    nesterov: bool,
) -> tuple[Tensor, Tensor]:
    given = params_LP, buffer_LP, grad_LP = alike(params_LP, buffer_LP, grad_LP)
    num_lanes, num_params = params_LP.shape
    num_blocks, num_parts = lane_grid(num_params)
    part = params_LP.new_empty((num_lanes, num_parts), dtype=accumulator(params_LP.dtype))
    new = torch.empty_like(params_LP), torch.empty_like(params_LP)
    if clip:
        squares_kernel[num_parts, num_lanes](grad_LP, part, num_params, num_parts, LANE_BLOCK)
    constants = momentum, weight_decay, clip, nesterov
    step_kernel[num_blocks, num_lanes](
        *given, lr, part, *new, num_params, *constants, num_parts, LANE_BLOCK
    )
    return new


@jit
def squares_kernel(grad_ptr, part_ptr, P, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Each of a lane's programs sums g^2 over every PARTS-th block."""
    lane = tl.program_id(1)
    total = tl.zeros([BLOCK], part_ptr.dtype.element_ty)
    for start in range(tl.program_id(0) * BLOCK, P, PARTS * BLOCK):
        col = start + tl.arange(0, BLOCK)
        grad = tl.load(grad_ptr + lane.to(tl.int64) * P + col, mask=col < P, other=0.0)
        grad = grad.to(part_ptr.dtype.element_ty)
        total += grad * grad
    tl.store(part_ptr + lane * PARTS + tl.program_id(0), tl.sum(total))


@jit
def step_kernel(
    params_ptr,
    buffer_ptr,
    grad_ptr,
    lr_ptr,
    part_ptr,
    new_params_ptr,
    new_buffer_ptr,
    P,
    MOMENTUM: tl.constexpr,
    DECAY: tl.constexpr,
    CLIP: tl.constexpr,
    NESTEROV: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(1)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = col < P
    at = lane.to(tl.int64) * P + col
    w = tl.load(params_ptr + at, mask=exists).to(part_ptr.dtype.element_ty)
    buffer = tl.load(buffer_ptr + at, mask=exists).to(part_ptr.dtype.element_ty)
    grad = tl.load(grad_ptr + at, mask=exists).to(part_ptr.dtype.element_ty)
    if CLIP != 0.0:
        norm = tl.sqrt(tl.sum(tl.load(part_ptr + lane * PARTS + tl.arange(0, PARTS))))
        factor = CLIP / (norm + 1e-6)
        grad *= tl.where(factor > 1.0, 1.0, factor)  # unlike a minimum, lets NaN through
    grad += DECAY * w
    buffer = MOMENTUM * buffer + grad
    tl.store(new_buffer_ptr + at, buffer, mask=exists)
    direction = grad + MOMENTUM * buffer if NESTEROV else buffer
    lr = tl.load(lr_ptr).to(part_ptr.dtype.element_ty)
    tl.store(new_params_ptr + at, w - lr * direction, mask=exists)
