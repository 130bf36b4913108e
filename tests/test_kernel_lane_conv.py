"""Lane-batched convolution: definition, gradients, Triton's interpreter and compiler."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fl2fast.kernels import lane_conv as module
from fl2fast.kernels.lane_conv import (
    forward_op,
    forward_triton,
    input_grad_op,
    input_grad_triton,
    lane_conv,
    lane_conv_plain,
    weight_grad_op,
    weight_grad_triton,
)
from tests.kernel_checks import (
    SHARED_MEMORY,
    close,
    compiles,
    draws,
    gradients,
    is_traceable,
    needs_triton,
    passes_in_the_interpreter,
    pulled,
)

# Triton's interpreter multiplies the bits of bfloat16 (triton issue 11584): half stands in for it.
DTYPES = [torch.float64, torch.float32, torch.float16]

# Taps a side, stride; lanes, rows, channels in and out, height, width.
CASES = {
    "stem": (3, 1, (2, 2, 3, 8, 5, 4)),
    "one lane": (3, 1, (1, 3, 5, 2, 4, 3)),
    "one pixel": (3, 1, (2, 1, 1, 1, 1, 1)),
    "stride": (3, 2, (2, 3, 4, 5, 6, 5)),
    "pointwise": (1, 1, (3, 2, 7, 3, 3, 4)),
    "shortcut": (1, 2, (2, 2, 4, 9, 5, 6)),
    "many channels": (3, 1, (1, 1, 20, 70, 3, 3)),
    "many rows": (3, 2, (1, 7, 2, 3, 9, 8)),
}


class Case(NamedTuple):
    x: Tensor
    weight_LOCkk: Tensor
    v: Tensor
    stride: int
    padding: int

    def run(self, fn: Any, by: Any = gradients) -> tuple[Tensor, ...]:
        """The output, and the gradients of x and weight."""
        conv = partial(fn, stride=self.stride, padding=self.padding)
        return by(conv, (self.x, self.weight_LOCkk), self.v)


def make(
    side: int, stride: int, sizes: tuple[int, ...], dtype: torch.dtype, device: Any = "cpu"
) -> Case:
    draw, (lanes, num_rows, channels, out_channels, *image) = draws(), sizes
    x = draw(num_rows, lanes * channels, *image).contiguous(memory_format=torch.channels_last)
    weight = draw(lanes, out_channels, channels, side, side) / (channels * side**2) ** 0.5
    padding = side // 2
    v = draw(*lane_conv_plain(x, weight, stride, padding).shape)
    return Case(*(t.to(device, dtype) for t in (x, weight, v)), stride, padding)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_equals_its_definition(given: tuple[Any, ...], dtype: torch.dtype) -> None:
    case = make(*given, dtype)
    close(case.run(lane_conv), case.run(lane_conv_plain))


def test_layout_does_not_matter_and_equals_its_definition() -> None:
    case = make(*CASES["stride"], torch.float64)
    expected = case.run(lane_conv_plain)
    other = case._replace(
        x=case.x.contiguous(), v=case.v.contiguous(memory_format=torch.channels_last)
    )
    out, *found = other.run(lane_conv)
    assert out.is_contiguous(memory_format=torch.channels_last)
    close((out, *found), expected)


@needs_triton
def test_in_triton_s_interpreter() -> None:
    passes_in_the_interpreter(__file__)


def test_lanes_share_nothing() -> None:
    case = make(*CASES["stem"], torch.float64)
    expected = case.run(lane_conv)
    case.x[:, 3:] *= 7.0
    case.weight_LOCkk[1] -= 1.0
    case.v[:, 8:] *= 3.0
    out, grad_x, grad_weight = case.run(lane_conv)
    close(
        (out[:, :8], grad_x[:, :3], grad_weight[0]),
        (expected[0][:, :8], expected[1][:, :3], expected[2][0]),
    )


@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_under_vjp(given: tuple[Any, ...]) -> None:
    case = make(*given, torch.float64)
    close(case.run(lane_conv, by=pulled), case.run(lane_conv_plain))


def test_under_autocast() -> None:
    """Computed in bfloat16 whatever is given, as conv2d does; gradients are as wide as the inputs.

    The definition is taken in float32 of the rounded inputs: the CPU's own half-precision sums are
    no measure.
    """
    case = make(*CASES["stem"], torch.float32)

    def half(x: Tensor, weight: Tensor, **geometry: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return lane_conv(x, weight, **geometry)

    def rounded(x: Tensor, weight: Tensor, **geometry: int) -> Tensor:
        rounded = x.bfloat16().float(), weight.bfloat16().float()
        return lane_conv_plain(*rounded, **geometry).bfloat16()

    found, expected = (case._replace(v=case.v.bfloat16()).run(fn) for fn in (half, rounded))
    assert [t.dtype for t in found] == [torch.bfloat16, torch.float32, torch.float32]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2**-6, atol=5e-2)


def test_only_wanted_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stem's input is data: no gradient of it is asked for."""
    case = make(*CASES["stem"], torch.float64)
    monkeypatch.setattr(module, "input_grad_op", None)
    weight = case.weight_LOCkk.requires_grad_()
    lane_conv(case.x, weight, case.stride, case.padding).backward(case.v)
    assert weight.grad is not None


# Single precision everywhere; tensor cores change with the generation, so they are tried on two.
TARGETS = [(torch.float32, "ieee", capability) for capability in SHARED_MEMORY]
TARGETS += [
    (torch.float32, "tf32", 90),
    (torch.bfloat16, "ieee", 90),
    (torch.bfloat16, "ieee", 100),
]


@needs_triton
@pytest.mark.parametrize(("dtype", "precision", "capability"), TARGETS, ids=str)
def test_compiles(
    dtype: torch.dtype,
    precision: str,
    capability: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "_precision", lambda: precision)
    meta = partial(torch.empty, device="meta", dtype=dtype)
    x, weight, grad = meta(50, 8 * 64, 32, 32), meta(8, 128, 64, 3, 3), meta(50, 8 * 128, 16, 16)

    def launches() -> None:
        forward_triton(x, weight, 2, 1)
        input_grad_triton(grad, weight, 32, 32, 2, 1)
        weight_grad_triton(grad, x, 8, 3, 2, 1)

    compiles(module, launches, capability, monkeypatch)


@pytest.mark.parametrize(("allowed", "precision"), [(True, "tf32"), (False, "ieee")])
def test_tf32_is_torch_s_choice(allowed: bool, precision: str) -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        assert module._precision() == precision
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # opcheck's own
@pytest.mark.parametrize("grad", [False, True], ids=["constant", "requires grad"])
@pytest.mark.parametrize("name", ["stem", "stride", "shortcut"])
def test_is_registered_rightly(name: str, grad: bool) -> None:
    case = make(*CASES[name], torch.float32)
    geometry = case.stride, case.padding
    lanes, side = case.weight_LOCkk.shape[0], case.weight_LOCkk.shape[-1]
    torch.library.opcheck(input_grad_op, (case.v, case.weight_LOCkk, *case.x.shape[2:], *geometry))
    torch.library.opcheck(weight_grad_op, (case.v, case.x, lanes, side, *geometry))
    leaves = case.x.requires_grad_(grad), case.weight_LOCkk.requires_grad_(grad)
    torch.library.opcheck(forward_op, (*leaves, *geometry))


def test_is_traceable() -> None:
    case = make(*CASES["stride"], torch.float32)
    is_traceable(lane_conv, case.x, case.weight_LOCkk, case.stride, case.padding)
    is_traceable(lambda *fields: Case(*fields).run(lane_conv, by=pulled), *case)
    compiled = torch.compile(lane_conv, fullgraph=True, backend="aot_eager")
    close(case.run(compiled), case.run(lane_conv))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
@pytest.mark.parametrize("given", [*CASES.values(), (3, 1, (8, 50, 32, 32, 32, 32))])
def test_equals_its_definition_on_the_device(
    given: tuple[Any, ...], dtype: torch.dtype, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    case = make(*given, dtype, cuda)
    close(case.run(lane_conv), case.run(lane_conv_plain))
