"""What the tests of every Triton kernel share: closeness, the interpreter, compilation, tracing."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

from fl2fast.kernels import launch

ROOT = Path(__file__).parents[1]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
assert not INTERPRETED or launch.DEVICE == "cpu", "the interpreter would not be used"

needs_triton = pytest.mark.skipif(launch.DEVICE is None, reason="Triton is not installed")

# rtol, and atol in units of the largest value, as sums cancel. Half precision is rounded once, to a
# neighbour at worst.
TOLERANCE = {
    torch.float64: (1e-10, 1e-10),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (2**-9, 5e-3),
    torch.bfloat16: (2**-6, 2e-3),
}
# Compute capability: bytes of shared memory that one program may have there.
SHARED_MEMORY = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10, 100: 227 << 10}
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.bool: "i1",
}


def draws(seed: int = 0) -> Callable[..., Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64)


def close(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        rtol, atol = TOLERANCE[b.dtype]
        scale = max(1.0, b.abs().max().item())
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol * scale)


def gradients(fn: Callable[..., Tensor], leaves: tuple[Tensor, ...], v: Tensor) -> tuple:
    """The value of fn(*leaves), and the gradients of the leaves for the cotangent `v`."""
    leaves = tuple(leaf.detach().clone().requires_grad_() for leaf in leaves)
    out = fn(*leaves)
    return (out.detach(), *torch.autograd.grad(out, leaves, v))


def pulled(fn: Callable[..., Tensor], leaves: tuple[Tensor, ...], v: Tensor) -> tuple:
    """`gradients` by torch.func.vjp, as a network's are taken."""
    out, pull = torch.func.vjp(fn, *leaves)
    return (out, *pull(v))


def passes_in_the_interpreter(test_file: str) -> None:
    """The file's tests of equality again, the Triton kernels in place of the CPU's definitions."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", test_file, "-n", "0", "-k", "equals_its_definition"]
    child = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--tb", "short"],
        cwd=ROOT,
        env=env | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout + child.stderr


def import_without_triton(*names: str) -> None:
    """As on macOS, where every operation is its definition."""
    wanted = ", ".join(f"fl2fast.kernels.{name}" for name in names)
    script = f"import sys; sys.modules['triton'] = None; import {wanted}"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def compiles(
    module: ModuleType, launches: Callable[[], object], capability: int, patch: pytest.MonkeyPatch
) -> None:
    """`launches` launches all kernels of `module`; each becomes a binary that fits the GPU.

    No GPU is needed: the launch is caught, and its arguments may be meta tensors of real sizes.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    caught: list[tuple[Any, tuple[Any, ...]]] = []
    patch.setattr(
        triton.JITFunction, "run", lambda kernel, *args, **_: caught.append((kernel, args))
    )
    launches()
    names = {name for name in vars(module) if name.endswith("_kernel")}
    assert {kernel.__name__ for kernel, _ in caught} == names
    for kernel, args in caught:
        binary = triton.compile(_source(kernel, args), target=GPUTarget("cuda", capability, 32))
        assert binary.asm["cubin"].startswith(b"\x7fELF"), kernel.__name__
        assert binary.metadata.shared <= SHARED_MEMORY[capability], kernel.__name__


def _source(kernel: Any, args: tuple[Any, ...]) -> Any:
    """What Triton compiles for such a launch: types, constants, and what 16 divides."""
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    for param, arg in zip(kernel.params, args, strict=True):
        if param.is_constexpr:
            signature[param.name], constants[param.name] = "constexpr", arg
            continue
        is_tensor = isinstance(arg, Tensor)
        signature[param.name] = f"*{TYPES[arg.dtype]}" if is_tensor else "i32"
        if is_tensor or arg % 16 == 0:
            attributes[(param.num,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def is_traceable(fn: Callable[..., Any], *args: Any) -> None:
    """Fake tensors have the true shapes and strides; one compiled graph has the true values."""
    expected = fn(*args)
    with FakeTensorMode() as mode:
        fake = fn(*tree_map_only(Tensor, mode.from_tensor, args))
    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")(*args)
    for found, imagined, real in zip(*map(_listed, (compiled, fake, expected)), strict=True):
        assert (imagined.shape, imagined.stride()) == (real.shape, real.stride())
        torch.testing.assert_close(found, real)


def _listed(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)
