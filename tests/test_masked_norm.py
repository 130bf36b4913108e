"""Masked batch norm: its plain definition, torch's batch norm on the live rows, and dead rows."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fl2fast.kernels.masked_norm import masked_norm, masked_norm_plain

EPS = 1e-5
Norm = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]

# One column a lane: how many of the five rows are live.
LIVE = {"one lane": [3], "full and short": [5, 2], "single row": [1, 4, 5], "all full": [5, 5]}


class Case:
    """Rows, lanes, channels and pixels of random values; the cotangent is zero in dead rows."""

    def __init__(
        self, live: list[int], dtype: torch.dtype = torch.float64, side: int = 3, seed: int = 0
    ) -> None:
        gen = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)

        rows, lanes, channels = 5, len(live), 2
        self.row = torch.arange(rows)[:, None] < torch.tensor(live)
        self.dead = ~self.row
        self.x = 2.0 * draw(rows, lanes, channels, side, side) + 1.0
        self.weight, self.bias = draw(lanes, channels), draw(lanes, channels)
        self.cotangent = draw(*self.x.shape)
        self.cotangent[self.dead] = 0.0

    def run(self, norm: Norm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Live outputs, and the gradients of x, weight and bias."""
        leaves = [t.clone().requires_grad_() for t in (self.x, self.weight, self.bias)]
        out = norm(leaves[0], self.row, leaves[1], leaves[2], EPS)
        found = torch.autograd.grad(out, leaves, self.cotangent)
        return (out.detach()[self.row], *found)


def close(a: object, b: object, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("live", LIVE.values(), ids=LIVE)
def test_equals_its_plain_definition(live: list[int]) -> None:
    case = Case(live)
    close(case.run(masked_norm), case.run(masked_norm_plain))


@pytest.mark.parametrize("live", LIVE.values(), ids=LIVE)
def test_dead_outputs_equal_the_plain_definition_too(live: list[int]) -> None:
    case = Case(live)
    arguments = (case.x, case.row, case.weight, case.bias, EPS)
    close(masked_norm(*arguments), masked_norm_plain(*arguments))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("live", LIVE.values(), ids=LIVE)
def test_equals_batch_norm_on_the_live_rows(live: list[int], dtype: torch.dtype) -> None:
    case, tolerance = Case(live, dtype), 1e-11 if dtype == torch.float64 else 1e-4
    out, grad_x, grad_weight, grad_bias = case.run(masked_norm)
    assert out.dtype == grad_x.dtype == dtype
    expected = torch.zeros_like(case.x)
    for lane, num in enumerate(live):
        norm = nn.BatchNorm2d(2, eps=EPS, track_running_stats=False).to(dtype)
        with torch.no_grad():
            norm.weight.copy_(case.weight[lane])
            norm.bias.copy_(case.bias[lane])
        x = case.x[:num, lane].clone().requires_grad_()
        own = norm(x)
        own.backward(case.cotangent[:num, lane])
        expected[:num, lane] = own.detach()
        close(grad_x[:num, lane], x.grad, tolerance)
        close(grad_weight[lane], norm.weight.grad, tolerance)
        close(grad_bias[lane], norm.bias.grad, tolerance)
    close(out, expected[case.row], tolerance)
    assert grad_x[case.dead].count_nonzero() == 0


@pytest.mark.parametrize("live", [[1], [2, 5, 1]], ids=str)
def test_gradcheck(live: list[int]) -> None:
    case = Case(live, side=2)
    leaves = [t.requires_grad_() for t in (case.x, case.weight, case.bias)]
    assert torch.autograd.gradcheck(
        lambda x, weight, bias: masked_norm(x, case.row, weight, bias, EPS)[case.row], leaves
    )


@pytest.mark.parametrize(
    ("garbage", "dtype"),
    [(0.0, torch.float32), (-1e6, torch.float32), (1e15, torch.float32), (1e100, torch.float64)],
)
@pytest.mark.parametrize("live", [[3], [5, 2], [1, 4, 5]], ids=str)
def test_dead_rows_change_nothing(live: list[int], garbage: float, dtype: torch.dtype) -> None:
    """Not a bit: what a dead row holds is multiplied by zero everywhere."""
    case = Case(live, dtype)
    expected = case.run(masked_norm)
    case.x[case.dead] = garbage
    for a, b in zip(case.run(masked_norm), expected, strict=True):
        assert torch.equal(a, b)


def test_a_cotangent_of_dead_rows_is_ignored() -> None:
    case = Case([2, 4])
    expected = case.run(masked_norm)
    case.cotangent[case.dead] = 1e6
    for a, b in zip(case.run(masked_norm), expected, strict=True):
        assert torch.equal(a, b)


def test_a_lane_without_live_rows_is_finite_and_has_no_gradient() -> None:
    case = Case([0, 3])
    assert masked_norm(case.x, case.row, case.weight, case.bias, EPS).isfinite().all()
    _, grad_x, grad_weight, grad_bias = case.run(masked_norm)
    assert grad_x[:, 0].count_nonzero() == 0
    assert grad_weight[0].count_nonzero() == 0
    assert grad_bias[0].count_nonzero() == 0


def test_lanes_share_nothing() -> None:
    """Another lane's rows, live or dead, do not enter a lane's result."""
    case = Case([3, 4, 2])
    expected = masked_norm(case.x, case.row, case.weight, case.bias, EPS)
    case.x[:, [0, 2]] = 7.0 * case.x[:, [0, 2]] - 3.0
    out = masked_norm(case.x, case.row, case.weight, case.bias, EPS)
    assert torch.equal(out[:, 1], expected[:, 1])


def test_a_view_of_stacked_channels_will_do() -> None:
    """As the grouped lowering calls it: channels_last, lanes side by side."""
    case = Case([3, 5])
    stacked = case.x.flatten(1, 2).contiguous(memory_format=torch.channels_last)
    expected = case.run(masked_norm)
    case.x = stacked.unflatten(1, (2, 2))
    close(case.run(masked_norm), expected)


def test_a_constant_channel_stays_finite() -> None:
    case = Case([3])
    case.x[:, :, 0] = 5.0
    for found in case.run(masked_norm):
        assert found.isfinite().all()


def pulled(norm: Norm) -> Callable[..., tuple[Tensor, ...]]:
    """(x, row, weight, bias, cotangent) -> output and gradients, through torch.func.vjp."""

    def run(x: Tensor, row: Tensor, weight: Tensor, bias: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        out, pull = torch.func.vjp(
            lambda *leaves: norm(leaves[0], row, *leaves[1:], EPS), x, weight, bias
        )
        return (out, *pull(v))

    return run


def test_under_vjp() -> None:
    case = Case([2, 5])
    arguments = (case.x, case.row, case.weight, case.bias, case.cotangent)
    out, *found = pulled(masked_norm)(*arguments)
    expected = case.run(masked_norm)
    close((out[case.row], *found), expected)
    close(pulled(masked_norm)(*arguments), pulled(masked_norm_plain)(*arguments))


def test_under_vmap() -> None:
    """A stack of cases at once, values and gradients, equals one case after another."""
    cases = [Case(live, seed=seed) for seed, live in enumerate(([1, 5], [4, 2], [3, 3]))]
    fields = ("x", "row", "weight", "bias", "cotangent")
    stacked = [torch.stack([getattr(case, name) for case in cases]) for name in fields]
    together = torch.func.vmap(pulled(masked_norm))(*stacked)
    for i, case in enumerate(cases):
        alone = pulled(masked_norm_plain)(*(getattr(case, name) for name in fields))
        close(tuple(t[i] for t in together), alone)


def test_under_vmap_with_a_shared_weight() -> None:
    """in_dims None for the parameters: the vmap rule must not expect them stacked."""
    cases = [Case([2, 4], seed=seed) for seed in range(2)]
    first = cases[0]
    together = torch.func.vmap(lambda x: masked_norm(x, first.row, first.weight, first.bias, EPS))(
        torch.stack([case.x for case in cases])
    )
    for out, case in zip(together, cases, strict=True):
        close(out, masked_norm_plain(case.x, first.row, first.weight, first.bias, EPS))


def test_vjp_over_vmap() -> None:
    """As the vmap lowering is differentiated: the pullback of a vmapped function."""
    cases = [Case([live], seed=live) for live in (1, 3, 5)]
    x, row, weight, bias, v = (
        torch.stack([getattr(case, name) for case in cases])
        for name in ("x", "row", "weight", "bias", "cotangent")
    )
    _, pull = torch.func.vjp(
        lambda x, weight, bias: torch.func.vmap(masked_norm, (0, 0, 0, 0, None))(
            x, row, weight, bias, EPS
        ),
        x,
        weight,
        bias,
    )
    found = pull(v)
    for i, case in enumerate(cases):
        close(tuple(t[i] for t in found), case.run(masked_norm_plain)[1:])
