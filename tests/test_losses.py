"""Losses against torch's own, and their closed-form gradients against autograd."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fl2fast.losses import (
    cross_entropy,
    cross_entropy_cotangent,
    divergence,
    divergence_cotangent,
    reverse_divergence_cotangent,
)

LANES, ROWS, CLASSES = 3, 5, 4


def reverse_divergence(target: Tensor, moved: Tensor, rows: Tensor, num: Tensor) -> Tensor:
    return divergence(moved, target, rows, num)


# A divergence and its gradient with respect to the moved logits.
PAIRS = {
    "forward": (divergence, divergence_cotangent),
    "reverse": (reverse_divergence, reverse_divergence_cotangent),
}


def make(
    dtype: torch.dtype = torch.float64, spread: float = 2.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two sets of logits, labels, and rows of which lane 1 selects some and lane 2 all."""
    gen = torch.Generator().manual_seed(0)
    target, moved = (
        spread * torch.randn(LANES, ROWS, CLASSES, generator=gen, dtype=torch.float64)
        for _ in range(2)
    )
    y = torch.randint(CLASSES, (LANES, ROWS), generator=gen)
    rows = torch.tensor([[1, 0, 0, 0, 0], [1, 0, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    return target.to(dtype), moved.to(dtype), y, rows


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_cross_entropy_is_torchs_mean_over_the_rows() -> None:
    logits, _, y, rows = make()
    expected = [F.cross_entropy(a[r], b[r]) for a, b, r in zip(logits, y, rows, strict=True)]
    close(cross_entropy(logits, y, rows, rows.sum(-1)), torch.stack(expected))


def test_divergence_is_torchs_kl() -> None:
    target, moved, _, rows = make()
    kl = F.kl_div(moved.log_softmax(-1), target.softmax(-1), reduction="none").sum(-1)
    num = torch.full((LANES,), ROWS)
    expected = torch.stack([k[r].sum() / ROWS for k, r in zip(kl, rows, strict=True)])
    close(divergence(target, moved, rows, num), expected)


@pytest.mark.parametrize("over", ["selected", "batch"])
def test_cross_entropy_cotangent(over: str) -> None:
    logits, _, y, rows = make()
    num = rows.sum(-1) if over == "selected" else torch.full((LANES,), ROWS)
    logits.requires_grad_()
    (expected,) = torch.autograd.grad(cross_entropy(logits, y, rows, num).sum(), logits)
    close(cross_entropy_cotangent(logits.detach(), y, rows, num), expected)


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("over", ["selected", "batch"])
def test_divergence_cotangents(kind: str, over: str) -> None:
    loss, cotangent = PAIRS[kind]
    target, moved, _, rows = make()
    num = rows.sum(-1) if over == "selected" else torch.full((LANES,), ROWS)
    moved.requires_grad_()
    (expected,) = torch.autograd.grad(loss(target, moved, rows, num).sum(), moved)
    close(cotangent(target, moved.detach(), rows, num), expected)


@pytest.mark.parametrize("kind", PAIRS)
def test_divergence_of_equal_logits_pulls_nowhere(kind: str) -> None:
    target, _, _, rows = make()
    assert PAIRS[kind][1](target, target.clone(), rows, rows.sum(-1)).count_nonzero() == 0


def cotangents(
    dtype: torch.dtype = torch.float64, spread: float = 2.0
) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Each cotangent as a function of (rows, num)."""
    target, moved, y, _ = make(dtype, spread)
    return {
        "cross_entropy": lambda rows, num: cross_entropy_cotangent(target, y, rows, num),
        "forward": lambda rows, num: divergence_cotangent(target, moved, rows, num),
        "reverse": lambda rows, num: reverse_divergence_cotangent(target, moved, rows, num),
    }


NAMES = ("cross_entropy", "forward", "reverse")


@pytest.mark.parametrize("name", NAMES)
def test_rows_outside_the_selection_get_exactly_zero(name: str) -> None:
    *_, rows = make()
    assert cotangents()[name](rows, rows.sum(-1))[~rows].count_nonzero() == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_selection_gives_zero(name: str) -> None:
    """One lane empty, the others as they are without it."""
    *_, rows = make()
    full = cotangents()[name](rows, rows.sum(-1))
    rows[1] = False
    out = cotangents()[name](rows, rows.sum(-1))
    assert out[1].count_nonzero() == 0
    assert torch.equal(out[[0, 2]], full[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_the_dtype_stays(name: str, dtype: torch.dtype) -> None:
    *_, rows = make()
    assert cotangents(dtype)[name](rows, rows.sum(-1)).dtype == dtype


@pytest.mark.parametrize("name", NAMES)
def test_a_third_is_a_third_of_float64(name: str) -> None:
    """1/3 must not pass through float32: three times the mean is the sum to float64's last bits."""
    rows = torch.zeros(LANES, ROWS, dtype=torch.bool)
    rows[:, :3] = True
    mean = cotangents()[name](rows, rows.sum(-1))
    total = cotangents()[name](rows, torch.ones(LANES, dtype=torch.int64))
    torch.testing.assert_close(3 * mean, total, rtol=1e-15, atol=1e-16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits_stay_finite(name: str, dtype: torch.dtype) -> None:
    *_, rows = make()
    assert cotangents(dtype, spread=1e4)[name](rows, rows.sum(-1)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_lanes_share_nothing(name: str) -> None:
    """A lane's cotangent does not depend on how many lanes stand beside it."""
    target, moved, y, rows = make()
    num = rows.sum(-1)
    together = cotangents()[name](rows, num)
    for lane in range(LANES):
        own = slice(lane, lane + 1)
        alone = {
            "cross_entropy": lambda s: cross_entropy_cotangent(target[s], y[s], rows[s], num[s]),
            "forward": lambda s: divergence_cotangent(target[s], moved[s], rows[s], num[s]),
            "reverse": lambda s: reverse_divergence_cotangent(target[s], moved[s], rows[s], num[s]),
        }[name](own)
        assert torch.equal(together[own], alone)
