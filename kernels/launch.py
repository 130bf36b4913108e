"""What the Triton kernels share: Triton itself, where they run, and their gradients' registration.

A kernel file imports `jit` and `tl` from here. Without Triton (macOS) it still imports, and its
operations are their plain definitions on every device.
"""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef

try:
    import triton
    import triton.language as tl
except ImportError:
    triton, tl = None, SimpleNamespace(constexpr=object)  # type: ignore[assignment]
    DEVICE = None
else:  # the interpreter works on the host's memory
    DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"

Launcher = Callable[..., Any]
LANE_BLOCK = 1024  # parameters of a lane that one program takes at a time


def jit(kernel: Callable[..., Any]) -> Any:
    """triton.jit where there is Triton; a kernel takes its grid in brackets, then its arguments."""
    return triton.jit(kernel) if triton else kernel


def in_triton(op: CustomOpDef) -> Callable[[Launcher], Launcher]:
    """The decorated launcher is what `op` runs on tensors of Triton's device."""

    def register(launcher: Launcher) -> Launcher:
        def guarded(first: Tensor, *others: Any) -> Any:
            with torch.cuda.device_of(first):  # Triton launches on the current device
                return launcher(first, *others)

        if DEVICE is not None:
            op.register_kernel(DEVICE, guarded)
        return launcher

    return register


def differentiable(op: CustomOpDef, setup_context: Launcher, backward: Launcher) -> Launcher:
    """`op` with this gradient, under autograd, torch.compile and torch.func alike.

    register_autograd alone would not do: torch.func.vjp refuses what it makes for want of a
    setup_context (pytorch issue 170834), and every gradient of a network comes through vjp.
    Were torch.compile to trace into `forward`, it would meet that refusal again.
    """
    op.register_autograd(backward, setup_context=setup_context)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:  # type: ignore[override]
            return op(*inputs)

    Differentiable.setup_context = staticmethod(setup_context)
    Differentiable.backward = staticmethod(backward)
    torch.compiler.allow_in_graph(Differentiable)
    return Differentiable.apply


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Sums are kept in at least single precision."""
    return torch.promote_types(dtype, torch.float32)


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Contiguous; of one shape, since a kernel would read past the end of a smaller one."""
    assert len({t.shape for t in tensors}) == 1, f"shapes differ: {[t.shape for t in tensors]}"
    return tuple(t.contiguous() for t in tensors)


def pixel_rows(x: Tensor) -> Tensor:
    """`x` with its channels side by side in memory, so that neighbours load neighbours."""
    return x.contiguous(memory_format=torch.channels_last)


def ceil_div(num: int, size: int) -> int:
    return -(-num // size)


def power_of_2(num: int) -> int:
    """The smallest that is not below `num`: Triton's blocks have such sizes."""
    return 1 << (num - 1).bit_length()


def lane_grid(num_params: int) -> tuple[int, int]:
    """Blocks of a lane, and partial sums of its norm: few, as every block adds them up again."""
    num_blocks = ceil_div(num_params, LANE_BLOCK)
    return num_blocks, min(64, power_of_2(num_blocks))
