"""One step of SGD: its definition, the optimiser's own, Triton's interpreter and compiler."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fl2fast.kernels import sgd_step as module
from fl2fast.kernels.sgd_step import sgd_step, sgd_step_op, sgd_step_plain, sgd_step_triton
from fl2fast.optim import SGD
from tests.kernel_checks import (
    SHARED_MEMORY,
    close,
    compiles,
    draws,
    is_traceable,
    needs_triton,
    passes_in_the_interpreter,
)

LR = 0.03
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = [(1, 1), (3, 7), (2, 1024), (1, 2500)]
LONG = 1, 66_000  # more blocks than partial sums

# momentum, weight decay, clip, Nesterov
SETTINGS = {
    "the paper's": (0.9, 5e-4, 1.0, True),
    "never clips": (0.9, 5e-4, 1e6, True),
    "no clip": (0.9, 5e-4, 0.0, True),
    "heavy ball": (0.9, 1e-3, 1.0, False),
    "bare": (0.0, 0.0, 0.0, False),
}
PAPER = SETTINGS["the paper's"]


def case(num_lanes: int, num_params: int, dtype: torch.dtype, device: Any = "cpu") -> list[Tensor]:
    """Parameters, momentum, gradients, and the learning rate as a tensor."""
    draw = draws()
    tensors = *(draw(num_lanes, num_params) for _ in range(3)), torch.tensor(LR)
    return [t.to(device, dtype) for t in tensors]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_its_definition(shape: tuple[int, int], dtype: torch.dtype) -> None:
    given = case(*shape, dtype)
    close(sgd_step(*given, *PAPER), sgd_step_plain(*given, *PAPER))


def test_at_length_equals_its_definition() -> None:
    given = case(*LONG, torch.float64)
    close(sgd_step(*given, *PAPER), sgd_step_plain(*given, *PAPER))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_each_setting_equals_its_definition(settings: tuple[float, float, float, bool]) -> None:
    given = case(3, 1500, torch.float64)
    close(sgd_step(*given, *settings), sgd_step_plain(*given, *settings))


def test_nan_spoils_its_lane_alone_and_equals_its_definition() -> None:
    given = case(3, 1500, torch.float64)
    given[2][1, 7] = torch.nan
    for found, expected in zip(
        sgd_step(*given, *PAPER), sgd_step_plain(*given, *PAPER), strict=True
    ):
        assert torch.equal(found.isnan(), expected.isnan())
        assert found.isnan().any(1).tolist() == [False, True, False]


@needs_triton
def test_in_triton_s_interpreter() -> None:
    passes_in_the_interpreter(__file__)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_definition_is_the_optimiser_s(
    settings: tuple[float, float, float, bool], dtype: torch.dtype
) -> None:
    momentum, decay, clip, nesterov = settings
    params, buffer, grad, lr = case(3, 500, dtype)
    optim = SGD(momentum, nesterov, decay, clip)
    expected = optim.step(params, buffer, grad, lr)
    for a, b in zip(sgd_step(params, buffer, grad, lr, *settings), expected, strict=True):
        assert torch.equal(a, b)


def test_a_float_learning_rate_will_do() -> None:
    given = case(2, 30, torch.float64)
    close(sgd_step(*given[:3], given[3].item(), *PAPER), sgd_step(*given, *PAPER))


def test_half_precision_is_rounded_once() -> None:
    given = case(2, 3000, torch.bfloat16)
    exact = sgd_step_plain(*(t.double() for t in given), *PAPER)
    for a, b in zip(sgd_step(*given, *PAPER), exact, strict=True):
        assert (a == b.bfloat16()).double().mean() > 0.999


def test_lanes_share_nothing() -> None:
    params, buffer, grad, lr = case(3, 500, torch.float64)
    expected = sgd_step(params, buffer, grad, lr, *PAPER)
    grad[[0, 2]] *= 7.0
    for a, b in zip(sgd_step(params, buffer, grad, lr, *PAPER), expected, strict=True):
        assert torch.equal(a[1], b[1])


@needs_triton
@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiles(
    dtype: torch.dtype, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    shapes = [*[(8, 10**6)] * 3, ()]
    given = (torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
    compiles(module, lambda: sgd_step_triton(*given, *PAPER), capability, monkeypatch)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_is_registered_rightly(settings: tuple[float, float, float, bool]) -> None:
    torch.library.opcheck(sgd_step_op, (*case(2, 30, torch.float32), *settings))


def test_is_traceable() -> None:
    is_traceable(sgd_step, *case(2, 30, torch.float32), *PAPER)


def test_another_learning_rate_does_not_recompile() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    step = torch.compile(sgd_step, fullgraph=True, backend=counter)
    params, buffer, grad, lr = case(2, 30, torch.float32)
    for factor in (1.0, 0.5, 0.1):
        found = step(params, buffer, grad, factor * lr, *PAPER)
        close(found, sgd_step_plain(params, buffer, grad, factor * lr, *PAPER))
    assert counter.frame_count == 1


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, LONG, (8, 1_000_003)], ids=str)
def test_equals_its_definition_on_the_device(
    shape: tuple[int, int], dtype: torch.dtype, cuda: torch.device
) -> None:
    given = case(*shape, dtype, cuda)
    for settings in SETTINGS.values():
        close(sgd_step(*given, *settings), sgd_step_plain(*given, *settings))
