"""ASAM's move: its definition, the method's own arithmetic, Triton's interpreter and compiler."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from fl2fast.kernels import asam as module
from fl2fast.kernels.asam import asam, asam_op, asam_plain, asam_triton
from fl2fast.methods.parts import asam_perturbation
from tests.kernel_checks import (
    SHARED_MEMORY,
    close,
    compiles,
    draws,
    import_without_triton,
    is_traceable,
    needs_triton,
    passes_in_the_interpreter,
)

RHO, ETA = 0.1, 0.01
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = [(1, 1), (3, 7), (2, 1024), (1, 2500)]
LONG = 1, 66_000  # more blocks than partial sums


def case(num_lanes: int, num_params: int, dtype: torch.dtype, device: Any = "cpu") -> list[Tensor]:
    """Parameters, gradients and the mask of weights."""
    draw = draws()
    params, grad = draw(num_lanes, num_params), 0.1 * draw(num_lanes, num_params)
    return [t.to(device, dtype) for t in (params, grad, draw(num_params) > 0)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_its_definition(shape: tuple[int, int], dtype: torch.dtype) -> None:
    given = case(*shape, dtype)
    close([asam(*given, RHO, ETA)], [asam_plain(*given, RHO, ETA)])


def test_at_length_equals_its_definition() -> None:
    given = case(*LONG, torch.float64)
    close([asam(*given, RHO, ETA)], [asam_plain(*given, RHO, ETA)])


def test_a_zero_gradient_moves_nothing_and_equals_its_definition() -> None:
    params, grad, weights = case(3, 50, torch.float64)
    grad[1] = 0.0
    moved = asam(params, grad, weights, RHO, ETA)
    assert torch.equal(moved[1], params[1])
    close([moved], [asam_plain(params, grad, weights, RHO, ETA)])


@needs_triton
def test_in_triton_s_interpreter() -> None:
    passes_in_the_interpreter(__file__)


def test_every_kernel_file_imports_without_triton() -> None:
    import_without_triton("asam", "lane_conv", "norm_relu", "sgd_step")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_definition_is_the_method_s(dtype: torch.dtype) -> None:
    params, grad, weights = case(3, 500, dtype)
    net = cast(Any, SimpleNamespace(weights_P=weights))
    expected = params + asam_perturbation(net, params, grad, RHO, ETA)
    assert torch.equal(asam_plain(params, grad, weights, RHO, ETA), expected)


def test_half_precision_is_rounded_once() -> None:
    given = case(2, 3000, torch.bfloat16)
    exact = asam_plain(*(t.double() for t in given), RHO, ETA)
    assert torch.equal(asam(*given, RHO, ETA), exact.bfloat16())


def test_lanes_share_nothing() -> None:
    params, grad, weights = case(3, 500, torch.float64)
    expected = asam(params, grad, weights, RHO, ETA)
    params[[0, 2]] *= 2.0
    grad[[0, 2]] *= 7.0
    assert torch.equal(asam(params, grad, weights, RHO, ETA)[1], expected[1])


def test_no_gradient_flows_through_it() -> None:
    params, grad, weights = case(2, 30, torch.float64)
    assert not asam(params.requires_grad_(), grad, weights, RHO, ETA).requires_grad


@needs_triton
@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiles(
    dtype: torch.dtype, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    given = (torch.empty(shape, dtype=dtype, device="meta") for shape in [(8, 10**6)] * 2 + [10**6])
    compiles(module, lambda: asam_triton(*given, RHO, ETA), capability, monkeypatch)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_is_registered_rightly(shape: tuple[int, int]) -> None:
    torch.library.opcheck(asam_op, (*case(*shape, torch.float32), RHO, ETA))


def test_is_traceable() -> None:
    is_traceable(asam, *case(2, 30, torch.float32), RHO, ETA)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, LONG, (8, 1_000_003)], ids=str)
def test_equals_its_definition_on_the_device(
    shape: tuple[int, int], dtype: torch.dtype, cuda: torch.device
) -> None:
    given = case(*shape, dtype, cuda)
    close([asam(*given, RHO, ETA)], [asam_plain(*given, RHO, ETA)])
