"""ASAM's move to where the loss is sharp: w + rho T^2 g / ||T g||, lane by lane (ASAM, 2021).

Shapes: L lanes, P parameters. T = |w| + eta for weights, 1 for biases.
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


def asam_plain(
    params_LP: Tensor, grad_LP: Tensor, weights_P: Tensor, rho: float, eta: float
) -> Tensor:
    """The definition; half precision is computed in single and rounded once."""
    wide = accumulator(params_LP.dtype)
    wide_LP, grad_LP = params_LP.to(wide), grad_LP.to(wide)
    scale_LP = torch.where(weights_P > 0, wide_LP.abs() + eta, 1.0)
    scaled_LP = scale_LP * grad_LP
    norm_L1 = scaled_LP.norm(dim=-1, keepdim=True)
    return (wide_LP + rho * scale_LP * scaled_LP / (norm_L1 + 1e-16)).to(params_LP.dtype)


def asam(params_LP: Tensor, grad_LP: Tensor, weights_P: Tensor, rho: float, eta: float) -> Tensor:
    """`asam_plain` in two passes over memory; no gradient flows through it."""
    return asam_op(params_LP.detach(), grad_LP.detach(), weights_P, rho, eta)


asam_op = torch.library.custom_op("fl2fast::asam", asam_plain, mutates_args=())


@asam_op.register_fake
def _(params_LP: Tensor, *_: object) -> Tensor:
    return params_LP.new_empty(params_LP.shape)


@in_triton(asam_op)
def asam_triton(
    params_LP: Tensor, grad_LP: Tensor, weights_P: Tensor, rho: float, eta: float
) -> Tensor:
    params_LP, grad_LP = alike(params_LP, grad_LP)
    num_lanes, num_params = params_LP.shape
    assert weights_P.shape == (num_params,), f"weights_P is {tuple(weights_P.shape)}"
    given = params_LP, grad_LP, weights_P.contiguous()
    num_blocks, num_parts = lane_grid(num_params)
    part = params_LP.new_empty((num_lanes, num_parts), dtype=accumulator(params_LP.dtype))
    moved_LP = torch.empty_like(params_LP)
    squares_kernel[num_parts, num_lanes](*given, part, num_params, eta, num_parts, LANE_BLOCK)
    move_kernel[num_blocks, num_lanes](
        *given, part, moved_LP, num_params, rho, eta, num_parts, LANE_BLOCK
    )
    return moved_LP


@jit
def _load(
    params_ptr, grad_ptr, weights_ptr, part_ptr, start, P, ETA: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of the program's lane: offsets, which of them exist, w, T and T g."""
    col = start + tl.arange(0, BLOCK)
    exists = col < P
    at = tl.program_id(1).to(tl.int64) * P + col
    w = tl.load(params_ptr + at, mask=exists, other=0.0).to(part_ptr.dtype.element_ty)
    grad = tl.load(grad_ptr + at, mask=exists, other=0.0).to(part_ptr.dtype.element_ty)
    is_weight = tl.load(weights_ptr + col, mask=exists, other=0.0) > 0
    scale = tl.where(is_weight, tl.abs(w) + ETA, 1.0)
    return at, exists, w, scale, scale * grad


@jit
def squares_kernel(
    params_ptr,
    grad_ptr,
    weights_ptr,
    part_ptr,
    P,
    ETA: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each of a lane's programs sums (T g)^2 over every PARTS-th block."""
    total = tl.zeros([BLOCK], part_ptr.dtype.element_ty)
    for start in range(tl.program_id(0) * BLOCK, P, PARTS * BLOCK):
        _, _, _, _, scaled = _load(
            params_ptr, grad_ptr, weights_ptr, part_ptr, start, P, ETA, BLOCK
        )
        total += scaled * scaled
    tl.store(part_ptr + tl.program_id(1) * PARTS + tl.program_id(0), tl.sum(total))


@jit
def move_kernel(
    params_ptr,
    grad_ptr,
    weights_ptr,
    part_ptr,
    moved_ptr,
    P,
    RHO: tl.constexpr,
    ETA: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    norm = tl.sqrt(tl.sum(tl.load(part_ptr + tl.program_id(1) * PARTS + tl.arange(0, PARTS))))
    at, exists, w, scale, scaled = _load(
        params_ptr, grad_ptr, weights_ptr, part_ptr, tl.program_id(0) * BLOCK, P, ETA, BLOCK
    )
    tl.store(moved_ptr + at, w + RHO * scale * scaled / (norm + 1e-16), mask=exists)
