"""Every method as a whole federation: all lowerings and seeds alike, and nobody peeks."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from test_federation import BASE, assert_same

import fl2fast
from fl2fast.engine.auto import made_up_batch
from fl2fast.engine.local import Step, moved
from fl2fast.forecast import forecast
from fl2fast.methods import METHODS
from fl2fast.models.cnn import SmallCNN
from fl2fast.models.network import Network
from fl2fast.optim import SGD
from fl2fast.simulate import RoundReport

# Thresholds low enough for a fresh model to accept something, and reject something else.
OPTIONS: dict[str, dict[str, Any]] = {
    "fedmatch": {"confidence": 0.2, "helper_every": 1, "lambda_i": 1.0, "lambda_a": 1.0},
    "fedcon": {"hidden": 8},
}
SMALL = {"rounds": 2, "epochs": 1, "sure": 0.25, "batch_size": 16, "pretrain": 1}
SEES_TRUTH = {"fedavg", "cat-sam", "cat-sacr-correct"}

Run = Callable[..., list[RoundReport]]


@pytest.fixture(scope="module")
def settings(small_digits: str) -> dict[str, Any]:
    return BASE | SMALL | {"dataset": small_digits}


@pytest.fixture(scope="module")
def run(settings: dict[str, Any]) -> Run:
    def go(method: str, **changes: Any) -> list[RoundReport]:
        made = fl2fast.experiment(
            **settings | {"method": method, "options": OPTIONS.get(method, {})} | changes
        )
        return list(fl2fast.simulate(fl2fast.build_world(made)))

    return go


@pytest.fixture(scope="module")
def truth(run: Run) -> Run:
    """One client at a time."""
    return cache(lambda method: run(method, lowering="loop", chunk=1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lowering", ["vmap", "grouped", "cores"])
@pytest.mark.usefixtures("no_unkeyed_draws")
def test_lowerings_agree(run: Run, truth: Run, method: str, lowering: str) -> None:
    assert_same(run(method, lowering=lowering), truth(method))


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_in_a_stack_equals_the_seed_alone(run: Run, truth: Run, method: str) -> None:
    assert_same(run(method, seed=4, seeds=2, lowering="grouped", chunk=3), truth(method), seed=1)


@pytest.mark.parametrize("method", METHODS)
def test_true_labels_reach_oracles_only(settings: dict[str, Any], method: str) -> None:
    """Scramble what clients must not know: only those that declare it notice."""
    made = fl2fast.experiment(
        **settings | {"method": method, "options": OPTIONS.get(method, {}), "lowering": "grouped"}
    )
    world = fl2fast.build_world(made)
    hidden = torch.ones_like(world.truth, dtype=torch.bool)
    hidden[torch.from_numpy(world.splits[0].labelled)] = False
    scrambled = replace(world, truth=torch.where(hidden, (world.truth + 1) % 10, world.truth))
    honest, blind = (list(fl2fast.simulate(w))[-1].state.params_SP for w in (world, scrambled))
    assert torch.equal(honest, blind) == (method not in SEES_TRUTH)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"supervised"}))
def test_unlabelled_rows_matter(run: Run, truth: Run, method: str) -> None:
    """Else the comparisons above would prove little; a seed's other clients give another model."""
    ends = [truth(method)[-1].state.params_SP]
    ends.append(run(method, lowering="grouped", partition="iid")[-1].state.params_SP)
    assert torch.isfinite(ends[0]).all()
    if METHODS[method]().client is None:
        assert torch.equal(ends[0].round(decimals=6), ends[1].round(decimals=6))
    else:
        assert not torch.allclose(*ends)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("semifl", {"beta": 5.0}),
    ("semifl", {"mix_loss": False}),
    ("semifl", {"partners": "kept"}),
    ("cat-sam", {"reading": "replaced"}),
    ("cat-sacr", {"eta": 1.0}),
    ("fedmatch", {"confidence": 0.15}),
    ("fedmatch", {"helpers": 1}),
    ("fedmatch", {"helper_every": 3}),
    ("fedmatch", {"psi_factor": 0.5}),
    ("fedmatch", {"lambda_s": 0.1}),
    ("fedmatch", {"lambda_i": 0.1}),
    ("fedmatch", {"lambda_a": 0.1}),
    ("fedmatch", {"lambda_l1": 0.1}),
    ("fedmatch", {"lambda_l2": 0.1}),
    ("fedmatch", {"sparse": 0.01}),
    ("fedcon", {"ema": 0.5}),
    ("fedcon", {"hidden": 4}),
    ("freematch", {"ema": 0.5}),
    ("freematch", {"weights_ema": 0.5}),
    ("freematch", {"lambda_f": 0.5}),
    ("freematch", {"decay": 0.0}),
    ("fixmatch-central", {"weights_ema": 0.5}),
    ("fixmatch-central", {"decay": 0.0}),
]


@pytest.mark.parametrize(("method", "change"), CHANGES, ids=lambda value: str(value))
def test_every_option_changes_the_result(
    run: Run, truth: Run, method: str, change: dict[str, Any]
) -> None:
    options = OPTIONS.get(method, {}) | change
    changed = run(method, lowering="grouped", options=options, rounds=2)[-1].state.params_SP
    before = truth(method)[-1].state.params_SP
    assert torch.isfinite(changed).all()
    assert changed.shape != before.shape or not torch.allclose(changed, before, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_every_step_is_one_graph(method: str) -> None:
    """What torch.compile needs: no branch on a value, no host sync, nothing made on the way."""
    torch.compiler.reset()  # the methods share one limit of recompilations
    made = METHODS[method](**OPTIONS.get(method, {}))
    net = Network.of(SmallCNN(10), "grouped", torch.zeros((), dtype=torch.float64))
    like = net.weights_P
    params_P = torch.linspace(-1, 1, len(like), dtype=like.dtype)
    row_P = made.learner.init(net, params_P, lambda num: params_P[:1].expand(num))
    for part in (made.client, made.server, made.central):
        if part is None:
            continue
        rows_LP, batch = row_P.repeat(2, 1), made_up_batch(part, 2, 0, 4, (3, 16, 16), like)
        step = Step.of(part, net, row_P)
        given = (net, step, SGD(), like.new_tensor(0.1), rows_LP, torch.zeros_like(rows_LP), batch)
        graph = torch.compile(moved, fullgraph=True, dynamic=False, backend="eager")
        for ours, plain in zip(graph(*given), moved(*given), strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_forecast(method: str) -> None:
    made = fl2fast.experiment(method=method, lowering="grouped", train_size=600)
    found = forecast(made, here=False)
    assert all(flops > 0 for flops in found["flops"].values())
    assert ("local_training" in found["flops"]) == (method != "supervised")


def test_idle_clients_vote_only_if_asked(run: Run) -> None:
    """At a threshold that some clients do not reach; at one that nobody does, nothing moves."""
    some, none = 0.6, 1.0
    ends = {
        (sure, idle): run("semifl", lowering="grouped", sure=sure, options={"idle": idle})
        for sure in (some, none)
        for idle in ("excluded", "kept")
    }
    accepted = ends[some, "excluded"][0].diagnostics[0]["accepted"]
    assert min(accepted) == 0 < max(accepted)
    assert not torch.allclose(
        *(ends[some, idle][-1].state.params_SP for idle in ("excluded", "kept"))
    )
    moved = ends[none, "excluded"][-1].state.aggregate_momentum_SP
    assert torch.equal(moved, torch.zeros_like(moved))
