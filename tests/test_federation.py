"""The whole federation: every fast path against the plain one, in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fl2fast
from fl2fast.data.plan import select
from fl2fast.simulate import RoundReport

# Ragged on purpose: Dirichlet sizes, an accepted share that differs per client, partial batches.
BASE: dict[str, Any] = {
    "labels": 20,
    "partition": "dirichlet:0.3",
    "clients": 5,
    "cohort": 4,
    "rounds": 3,
    "epochs": 2,
    "batch_size": 16,
    "pretrain": 3,
    "sure": 0.5,
    "dtype": "float64",
    "seed": 5,
}


Run = Callable[..., list[RoundReport]]


@pytest.fixture(scope="module")
def run(small_digits: str) -> Run:
    def go(**changes: Any) -> list[RoundReport]:
        made = fl2fast.experiment(**BASE | {"dataset": small_digits} | changes)
        return list(fl2fast.simulate(fl2fast.build_world(made)))

    return go


def assert_same(actual: list[RoundReport], expected: list[RoundReport], seed: int = 0) -> None:
    """Metrics and weights of the expected run's only seed, and of seed number `seed` of another."""
    for ours, theirs in zip(actual, expected, strict=True):
        for name, value in theirs.metrics[0].items():
            close = value if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)
            assert ours.metrics[seed][name] == close, name
        state, truth = ours.state, theirs.state
        for field in ("params_SP", "server_momentum_SP", "aggregate_momentum_SP"):
            gap = getattr(state, field)[seed] - getattr(truth, field)[0]
            assert gap.abs().max() <= 1e-9 * getattr(truth, field)[0].abs().max(), field
        for a, b in zip(state.stats_S[seed], truth.stats_S[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def truth(run: Run) -> list[RoundReport]:
    """One client at a time: loop, with waves one lane wide, so that nothing is ever padded."""
    return run(lowering="loop", chunk=1)


@pytest.fixture(scope="module")
def grouped(run: Run) -> list[RoundReport]:
    return run(lowering="grouped")


@pytest.mark.parametrize(
    ("lowering", "chunk"),
    [
        ("loop", 0),
        ("vmap", 0),
        ("vmap", 3),
        ("grouped", 0),
        ("grouped", 3),
        ("grouped", 1),
        ("cores", 0),
    ],
)
@pytest.mark.usefixtures("no_unkeyed_draws")
def test_lowerings_and_chunks_agree(
    run: Run, truth: list[RoundReport], lowering: str, chunk: int
) -> None:
    assert_same(run(lowering=lowering, chunk=chunk), truth)


def test_a_seed_in_a_stack_equals_the_seed_alone(run: Run, truth: list[RoundReport]) -> None:
    stacked = run(seed=4, seeds=3)
    assert_same(stacked, truth, seed=1)
    for number, seed in ((0, 4), (2, 6)):
        assert_same(stacked, run(seed=seed), seed=number)


def test_the_truth_is_ragged_and_learns(truth: list[RoundReport], small_digits: str) -> None:
    """Else the comparisons above would prove little."""
    world = fl2fast.build_world(fl2fast.experiment(dataset=small_digits, **BASE))
    assert len({len(rows) for rows in world.splits[0].clients}) > 3
    assert 0 < truth[0].metrics[0]["label_ratio"] < 100
    start, end = truth[0].state.params_SP, truth[-1].state.params_SP
    assert not torch.allclose(start, end)


@pytest.mark.parametrize("method", ["supervised", "fedavg"])
def test_bounds_agree_under_every_lowering(run: Run, method: str) -> None:
    expected = run(method=method, lowering="loop", chunk=1, rounds=2)
    for lowering in ("vmap", "grouped", "cores"):
        assert_same(run(method=method, lowering=lowering, rounds=2), expected)


def test_supervised_trains_no_client(run: Run) -> None:
    (report,) = run(method="supervised", rounds=1)
    assert report.num_trained == 0
    assert report.metrics[0]["label_ratio"] is None


def test_fedavg_trains_on_every_row_and_has_no_pseudo_labels(run: Run, small_digits: str) -> None:
    (report,) = run(method="fedavg", rounds=1)
    world = fl2fast.build_world(fl2fast.experiment(dataset=small_digits, **BASE))
    cohort = select([BASE["seed"]], BASE["clients"], BASE["cohort"], 1)[0]
    rows = sum(len(world.splits[0].clients[c]) for c in cohort)
    assert report.num_trained == BASE["epochs"] * rows
    assert report.metrics[0]["label_ratio"] is None


@pytest.mark.parametrize(
    "change",
    [
        {"perturbation": "sam"},
        {"batches": "all"},
        {"consistency_rows": "kept"},
        {"divergence": "reverse"},
        {"aggregation": "uniform"},
        {"aggregate_momentum": 0.0},
        {"client_momentum": "fresh"},
        {"schedule": "constant"},
        {"clip": 0.0},
        {"pretrain": 0},
        {"flip": False},
        {"crop": 0.25},
        {"sbn_data": "active"},
        {"sbn_order": "shuffled"},
        {"sbn_weight": "per_sample"},
        {"sbn_labelled_batch": 4},
        {"sbn_unlabelled_batch": 100},
        {"momentum": 0.5},
        {"weight_decay": 0.0},
        {"rho": 0.5},
    ],
    ids=lambda change: "-".join(map(str, change)),
)
def test_every_option_changes_the_result(
    run: Run, grouped: list[RoundReport], change: dict[str, Any]
) -> None:
    changed = run(rounds=2, **change)[-1].state.params_SP
    assert torch.isfinite(changed).all()
    assert not torch.equal(changed, grouped[1].state.params_SP)
