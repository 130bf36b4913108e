"""Norm and ReLU at once: definition, gradients, dead rows, Triton's interpreter and compiler."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fl2fast.kernels import norm_relu as module
from fl2fast.kernels.masked_norm import masked_norm
from fl2fast.kernels.norm_relu import (
    backward_op,
    backward_triton,
    forward_op,
    forward_triton,
    norm_relu,
    norm_relu_plain,
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

EPS = 1e-5
DTYPES = [torch.float64, torch.float32, torch.bfloat16]

# Live rows of each lane; rows, channels of a lane, height, width.
CASES = {
    "one value": ([1], (1, 1, 1, 1)),
    "one lane": ([3], (5, 2, 3, 3)),
    "ragged": ([1, 4, 5], (5, 3, 2, 5)),
    "an empty lane": ([0, 3], (3, 4, 2, 2)),
    "many channels": ([2, 3], (3, 70, 3, 3)),
    "many tiles": ([10, 12], (12, 16, 8, 7)),
}
LONG = [71], (72, 64, 6, 5)  # more live tiles than partial sums


class Case(NamedTuple):
    """Random values; the cotangent is zero in dead rows."""

    x: Tensor
    row_LB: Tensor
    weight_LC: Tensor
    bias_LC: Tensor
    v: Tensor

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x, self.weight_LC, self.bias_LC

    @property
    def dead(self) -> Tensor:
        """A mask of x's shape."""
        row_B1 = self.row_LB.T.repeat_interleave(self.weight_LC.shape[1], 1)
        return ~row_B1[:, :, None, None].expand_as(self.x)

    def run(self, fn: Any, relu: bool = True, by: Any = gradients) -> tuple[Tensor, ...]:
        """Outputs, and the gradients of x, weight and bias."""
        return by(lambda x, *affine: fn(x, self.row_LB, *affine, EPS, relu), self.leaves, self.v)


def make(live: list[int], shape: tuple[int, ...], dtype: torch.dtype, device: Any = "cpu") -> Case:
    draw, (num_rows, channels, *image) = draws(), shape
    row_LB = torch.arange(num_rows) < torch.tensor(live)[:, None]
    x = 2.0 * draw(num_rows, len(live) * channels, *image) + 1.0
    x = x.contiguous(memory_format=torch.channels_last)
    drawn = x, draw(len(live), channels), draw(len(live), channels), draw(*x.shape)
    x, weight, bias, v = (t.to(device, dtype) for t in drawn)
    case = Case(x, row_LB.to(device), weight, bias, v)
    case.v[case.dead] = 0.0
    return case


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_equals_its_definition(given: tuple[Any, ...], dtype: torch.dtype) -> None:
    case = make(*given, dtype)
    close(case.run(norm_relu), case.run(norm_relu_plain))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_relu_equals_its_definition(dtype: torch.dtype) -> None:
    case = make(*CASES["ragged"], dtype)
    close(case.run(norm_relu, relu=False), case.run(norm_relu_plain, relu=False))


def test_at_length_equals_its_definition() -> None:
    case = make(*LONG, torch.float64)
    close(case.run(norm_relu), case.run(norm_relu_plain))


def test_far_from_zero_equals_its_definition() -> None:
    """A variance as the difference of two means of squares would lose every digit here."""
    case = make([20], (20, 3, 8, 8), torch.float32)
    case.x.add_(1e4)
    exact = norm_relu_plain(case.x.double(), case.row_LB, *case.leaves[1:], EPS, True)
    out = norm_relu(case.x, case.row_LB, *case.leaves[1:], EPS, True)
    torch.testing.assert_close(out, exact, check_dtype=False, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("garbage", [-1e6, 1e15])
def test_dead_rows_change_nothing_and_equals_its_definition(garbage: float) -> None:
    """Nor does a cotangent of theirs; and their own gradient is zero."""
    case = make([1, 4, 3], (5, 3, 2, 5), torch.float64)
    expected, dead = case.run(norm_relu), case.dead
    case.x[dead] = garbage
    case.v[dead] = 1.0
    out, *found = case.run(norm_relu)
    close((out[~dead], *found), (expected[0][~dead], *expected[1:]))
    assert found[0][dead].count_nonzero() == 0


def test_layout_does_not_matter_and_equals_its_definition() -> None:
    case = make([2, 4], (4, 3, 5, 2), torch.float64)
    expected = case.run(norm_relu)
    other = case._replace(x=case.x.contiguous(), v=case.v.contiguous())
    close(other.run(norm_relu), expected)


def test_no_mask_means_all_live_and_equals_its_definition() -> None:
    case = make([4, 4], (4, 3, 5, 2), torch.float64)
    found = case.run(lambda x, _, *others: norm_relu(x, None, *others))
    close(found, case.run(norm_relu_plain))


@needs_triton
def test_in_triton_s_interpreter() -> None:
    passes_in_the_interpreter(__file__)


@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_the_definition_is_masked_norm_and_relu(given: tuple[Any, ...]) -> None:
    case = make(*given, torch.float64)

    def other(x: Tensor, row_LB: Tensor, weight_LC: Tensor, bias_LC: Tensor, *_: Any) -> Tensor:
        x_BLCHW = x.unflatten(1, weight_LC.shape)
        return masked_norm(x_BLCHW, row_LB.T, weight_LC, bias_LC, EPS).relu().flatten(1, 2)

    close(case.run(norm_relu_plain), case.run(other))


@pytest.mark.parametrize("relu", [True, False])
def test_under_vjp(relu: bool) -> None:
    case = make([1, 4, 5], (5, 3, 2, 5), torch.float64)
    close(case.run(norm_relu, relu, by=pulled), case.run(norm_relu_plain, relu))


def test_parameters_keep_their_precision() -> None:
    case = make([3, 2], (3, 4, 2, 2), torch.bfloat16)
    mixed = case._replace(weight_LC=case.weight_LC.float(), bias_LC=case.bias_LC.float())
    out, grad_x, grad_weight, grad_bias = mixed.run(norm_relu)
    assert (out.dtype, grad_x.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (grad_weight.dtype, grad_bias.dtype) == (torch.float32, torch.float32)


@needs_triton
@pytest.mark.parametrize("capability", SHARED_MEMORY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiles(
    dtype: torch.dtype, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    meta = partial(torch.empty, device="meta")
    x, row_LB = meta(50, 8 * 64, 32, 32, dtype=dtype), meta(8, 50, dtype=torch.bool)
    weight_LC = bias_LC = meta(8, 64, dtype=dtype)

    def launches() -> None:
        _, affine_5LC = forward_triton(x, row_LB, weight_LC, bias_LC, EPS, True)
        backward_triton(x, x, row_LB, affine_5LC, True)

    compiles(module, launches, capability, monkeypatch)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # opcheck's own
@pytest.mark.parametrize("grad", [False, True], ids=["constant", "requires grad"])
@pytest.mark.parametrize("name", ["one lane", "ragged", "one value"])
def test_is_registered_rightly(name: str, grad: bool) -> None:
    case = make(*CASES[name], torch.float32)
    x, weight, bias = (leaf.requires_grad_(grad) for leaf in case.leaves)
    torch.library.opcheck(forward_op, (x, case.row_LB, weight, bias, EPS, True))
    _, affine_5LC = forward_op(x.detach(), case.row_LB, weight, bias, EPS, True)
    torch.library.opcheck(backward_op, (case.v, x.detach(), case.row_LB, affine_5LC.detach(), True))


def test_is_traceable() -> None:
    case = make([1, 4], (4, 3, 2, 5), torch.float32)
    is_traceable(norm_relu, *case[:4], EPS, True)


def test_its_gradient_is_traceable() -> None:
    case = make([1, 4], (4, 3, 2, 5), torch.float32)
    is_traceable(lambda *fields: Case(*fields).run(norm_relu, by=pulled), *case)
    compiled = torch.compile(norm_relu, fullgraph=True, backend="aot_eager")
    close(case.run(compiled), case.run(norm_relu))


@pytest.mark.cuda
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("given", [*CASES.values(), LONG, ([20] * 4, (20, 32, 8, 8))])
def test_equals_its_definition_on_the_device(
    given: tuple[Any, ...], dtype: torch.dtype, relu: bool, cuda: torch.device
) -> None:
    case = make(*given, dtype, cuda)
    close(case.run(norm_relu, relu), case.run(norm_relu_plain, relu))
