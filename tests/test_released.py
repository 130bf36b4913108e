"""The baseline of the benchmarks computes what fl2fast computes, at the released code's cost.

Both run in float64 from the same state on the same rows and views. Shapes: L lanes, B rows,
M rows of a client.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fl2fast
from benchmarks.released import Draws, Labels, Released, Views, client_grads, make_model
from fl2fast.clock import Clock
from fl2fast.data.views import draw_views
from fl2fast.engine.round import run_round, warm_up
from fl2fast.engine.server import aggregate, aggregation_weights, recalibrate_all
from fl2fast.engine.world import ClientStore, Federation, ServerState, World
from fl2fast.evaluate import evaluate
from fl2fast.methods.method import Batch
from fl2fast.record import named_tensors
from fl2fast.simulate import initial_state

PHASES = "pseudo_label local_training aggregate fine_tune recalibrate evaluate"
NUM_CONVS = 3  # of the small CNN
SURE = {"none": [False] * 5, "some": [True, False, True, True, False], "all": [True] * 5}

Warm = tuple[World, ServerState]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """The baseline computes in torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def federation(small_digits: str) -> Warm:
    """A warm-up that leaves rows of all kinds: rejected, accepted, and of these some sure."""
    made = fl2fast.experiment(
        dataset=small_digits,
        labels=60,
        clients=4,
        cohort=3,
        epochs=2,
        pretrain=6,
        batch_size=16,
        sure=0.6,
        dtype="float64",
        augment="torch",
        sbn_unlabelled_batch=150,
    )
    world = fl2fast.build_world(made)
    made = warm_up(world, initial_state(world), Clock(world.device).phase)
    return world, made.federation.state


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def batch_of(world: World, num: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weak and strong views of a client's first rows, as the baseline makes them, and labels."""
    row_M = world.splits[0].clients[1]
    baseline = Released(world)
    views = Views(world, baseline.train_DHWC, row_M, "weak strong", Draws("client view", 1, 1))
    (batch,) = baseline.load(views, [[(0, i) for i in range(num)]])
    return batch[0], batch[1], world.truth[torch.from_numpy(row_M[:num])]


def test_rounds_end_at_the_same_model(federation: Warm) -> None:
    """Two rounds, so that the second starts with the momentum that the first left behind."""
    world, state = federation
    baseline, theirs = Released(world), dict[tuple[int, int], torch.Tensor]()
    ours = Federation(0, state, ClientStore())
    for round in (1, 2):
        cost = baseline.run_round(ours.state, theirs, round)
        phase = Clock(world.device).phase
        ours, report, _ = run_round(world, ours, phase, tested=True)
        assert report is not None
        assert report.sure_LM is not None
        assert 0 < report.sure_LM.sum() < report.keep_LM.sum() < report.live_LM.sum()
        assert cost.num_trained == report.num_trained
        assert list(cost.seconds) == PHASES.split()
        close(tuple(cost.state), tuple(ours.state))
        close(theirs, ours.store.rows)
        close(cost.accuracy, evaluate(world, ours.state)[0].accuracy)


def test_views_are_the_same(federation: Warm) -> None:
    world, _ = federation
    rows = torch.from_numpy(world.splits[0].clients[1][:40])
    for i, (view, made) in enumerate(zip(("weak", "strong"), batch_of(world, 40), strict=False)):
        draws = draw_views(world.experiment.seed, "client view", 1, 1, 0, np.arange(40), i)
        close(made, world.inputs.views(rows, draws, view))


@pytest.mark.parametrize("sure", SURE)
def test_a_step_has_the_same_gradient(federation: Warm, sure: Any) -> None:
    """5F + 3B and 2F + 3B or less are the same mathematics; the weights come back to W."""
    world, state = federation
    assert world.method.client is not None
    weak, strong, y_B = batch_of(world, 5)
    sure_B, keep_LB = torch.tensor(SURE[sure]), torch.ones(1, 5, dtype=torch.bool)
    model = make_model(world, named_tensors(world, state), track=False)
    client_grads(model, weak, strong, y_B, sure_B, world.experiment.rho)

    batch = Batch(torch.tensor([0]), strong[None], y_B[None], None, keep_LB, sure_B[None], sure)
    grad_LP = world.method.client.grads(world.network, state.params_SP, batch)
    split = world.network.layout.split
    close({name: p.grad for name, p in model.named_parameters()}, split(grad_LP[0]))
    close(dict(model.state_dict()), split(state.params_SP[0]))


@pytest.mark.parametrize("sure", SURE)
def test_a_step_takes_five_forwards_and_three_backwards(federation: Warm, sure: str) -> None:
    world, state = federation
    model = make_model(world, named_tensors(world, state), track=False)
    weak, strong, y_B = batch_of(world, 5)
    with Calls() as calls:
        client_grads(model, weak, strong, y_B, torch.tensor(SURE[sure]), world.experiment.rho)
    assert calls.num["convolution"] == 5 * NUM_CONVS
    assert calls.num["convolution_backward"] == 3 * NUM_CONVS


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.num: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_statistics_are_the_same(federation: Warm) -> None:
    world, state = federation
    baseline = Released(world)
    model = baseline.recalibrate(world.network.layout.split(state.params_SP[0]), round=1)
    close(tuple(baseline.stats_of(model)), tuple(recalibrate_all(world, state, 1).stats_S[0]))


def test_aggregation_is_the_same(federation: Warm) -> None:
    world, state = federation
    split, params_SP = world.network.layout.split, state.params_SP
    clients_SKP = torch.stack([params_SP + 0.1 * (k * params_SP).cos() for k in (1, 2, 3)], dim=1)
    tau_SK, momentum_SP = torch.tensor([[0.2, 0.9, 0.5]]), 0.01 * params_SP.sin()
    nothing = torch.zeros(0)
    params, momentum = Released(world).aggregate(
        named_tensors(world, state),
        split(momentum_SP[0]),
        [split(params_P) for params_P in clients_SKP[0]],
        [Labels(nothing, nothing, nothing, tau) for tau in tau_SK[0].tolist()],
    )
    beta_SK = aggregation_weights(1 - tau_SK)
    expected = aggregate(params_SP, momentum_SP, clients_SKP, beta_SK, 0.5)
    close((params, momentum), tuple(split(row_SP[0]) for row_SP in expected))


def test_a_choice_the_released_code_lacks_is_refused(federation: Warm) -> None:
    world, _ = federation
    other = fl2fast.experiment(perturbation="sam")
    with pytest.raises(ValueError, match="knows no perturbation = sam"):
        Released(replace(world, experiment=other))
