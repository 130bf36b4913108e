"""The library's parts against the oracle's or plain autograd: values, special cases and cost.

Shapes: L lanes, B rows, M rows of a client, Y classes, P parameters.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fl2fast.engine.cores import Cores, Stream
from fl2fast.engine.local import train_lanes
from fl2fast.engine.server import aggregate, aggregation_weights, mean_moments
from fl2fast.methods import METHODS
from fl2fast.methods.flfl import flfl
from fl2fast.methods.method import Batch, GradFn, PseudoLabels, ServerPart
from fl2fast.methods.parts import adaptive_threshold, ce_grads, sacr_grads
from fl2fast.models.network import Network, Stats
from fl2fast.models.wrn import WideResNet
from fl2fast.optim import SGD

LOWERINGS = ("loop", "vmap", "grouped", "cores")
CLASSES, SIDE, RHO, ETA = 4, 8, 0.3, 0.02
F64 = torch.zeros((), dtype=torch.float64)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with oracle.one_thread():
        yield


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def network(lowering: str = "grouped") -> Network:
    return Network.of(WideResNet(10, 1, CLASSES), lowering, F64)


def models(num: int) -> list[nn.Module]:
    """Learners apart from each other, their norms' weights and all biases off their defaults."""
    made = [oracle.make_model(10, 1, CLASSES, seed) for seed in range(num)]
    gen = torch.Generator().manual_seed(99)
    for model in made:
        oracle.load(
            model,
            {
                name: p + 0.05 * torch.randn(p.shape, generator=gen, dtype=p.dtype)
                for name, p in oracle.values(model).items()
            },
        )
    return made


def row_of(net: Network, model: nn.Module) -> Tensor:
    return net.layout.join(oracle.values(model))


class Lane:
    """The live rows of one learner: views, labels, which are accepted and which of them sure."""

    def __init__(self, keep: str, sure: str, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.keep, self.sure = (torch.tensor([c == "1" for c in text]) for text in (keep, sure))
        self.sure = self.sure & self.keep
        self.x = torch.randn(len(keep), 3, SIDE, SIDE, generator=gen, dtype=torch.float64)
        self.y = torch.randint(CLASSES, (len(keep),), generator=gen)


def stack(lanes: list[Lane], width: int = 0, garbage: float = 3.0) -> Batch:
    """One batch of the lanes, short ones padded; all are of one kind, as the plan ensures."""
    width = max([width] + [len(lane.y) for lane in lanes])
    num = len(lanes)
    views = torch.full((num, width, 3, SIDE, SIDE), garbage, dtype=torch.float64)
    y = torch.zeros(num, width, dtype=torch.int64)
    row, keep, sure = (torch.zeros(num, width, dtype=torch.bool) for _ in range(3))
    kinds = set()
    for i, lane in enumerate(lanes):
        live = slice(0, len(lane.y))
        views[i, live], y[i, live], row[i, live] = lane.x, lane.y, True
        keep[i, live], sure[i, live] = lane.keep, lane.sure
        kinds.add("all" if lane.sure.all() else "some" if lane.sure.any() else "none")
    (kind,) = kinds
    return Batch(torch.arange(num), views, y, None if row.all() else row, keep, sure, kind)


def accepted(*sure: str) -> list[Lane]:
    return [Lane("1" * len(text), text, seed) for seed, text in enumerate(sure)]


# -- one step: values ------------------------------------------------------------------------------

# Sure rows of each lane; every row is accepted, as in batches that are drawn from accepted rows.
BATCHES = {
    "none": ["00000"],
    "all": ["11111"],
    "some": ["10110"],
    "one sure row": ["1"],
    "one unsure row": ["0"],
    "none, lanes": ["0000", "00", "0"],
    "all, lanes": ["1111", "1", "111"],
    "some, lanes": ["1001", "10", "110"],
    "some, full lanes": ["100", "011", "110"],
}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("sure", BATCHES.values(), ids=BATCHES)
def test_sacr_equals_the_reference_order(sure: list[str], lowering: str) -> None:
    net, learners, lanes = network(lowering), models(len(sure)), accepted(*sure)
    params = torch.stack([row_of(net, model) for model in learners])
    found = sacr_grads(RHO, eta=ETA)(net, params, stack(lanes))
    for model, lane, own in zip(learners, lanes, found, strict=True):
        expected = oracle.client_grads(model, lane.x, lane.y, lane.sure, rho=RHO, eta=ETA)
        close(own, net.layout.join(expected))


@pytest.mark.parametrize("sure", ["111", "010", "000"])
@pytest.mark.parametrize(("w_a", "w_cs"), [(2.0, 0.5), (0.0, 1.0), (1.0, 0.0)])
def test_loss_weights(sure: str, w_a: float, w_cs: float) -> None:
    """With w_a = 0 the perturbation must still come from the sure rows."""
    net, (model,), (lane,) = network(), models(1), accepted(sure)
    weights = {"rho": RHO, "eta": ETA, "w_a": w_a, "w_cs": w_cs}
    found = sacr_grads(**weights)(net, row_of(net, model)[None], stack([lane]))
    expected = oracle.client_grads(model, lane.x, lane.y, lane.sure, **weights)
    close(found[0], net.layout.join(expected))


@pytest.mark.parametrize("sure", ["0000", "1111", "1010"])
def test_padding_changes_nothing(sure: str) -> None:
    net, (model,), lanes = network(), models(1), accepted(sure)
    params, grads = row_of(net, model)[None], sacr_grads(RHO, eta=ETA)
    found = grads(net, params, stack(lanes, width=6))
    close(found, grads(net, params, stack(lanes)))
    assert torch.equal(found, grads(net, params, stack(lanes, width=6, garbage=-1e4)))


def test_no_sure_row_is_a_cross_entropy_step() -> None:
    net, (model,), lanes = network(), models(1), accepted("000")
    params, batch = row_of(net, model)[None], stack(lanes)
    assert torch.equal(sacr_grads(RHO)(net, params, batch), ce_grads(net, params, batch))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_cross_entropy_step_equals_autograd(lowering: str) -> None:
    """Over the kept rows of the live ones; batch statistics over all live ones."""
    net, learners = network(lowering), models(3)
    lanes = [Lane("1101", "0000", 0), Lane("01", "00", 1), Lane("1", "0", 2)]
    params = torch.stack([row_of(net, model) for model in learners])
    found = ce_grads(net, params, stack(lanes))
    for model, lane, own in zip(learners, lanes, found, strict=True):
        model.zero_grad()
        F.cross_entropy(model(lane.x)[lane.keep], lane.y[lane.keep]).backward()
        close(own, net.layout.join(oracle.grads(model)))


# -- one step: options -----------------------------------------------------------------------------


def plain_sacr(
    model: nn.Module,
    lane: Lane,
    *,
    perturbation: str = "asam",
    divergence: str = "forward",
    consistency_rows: str = "sure",
    batches: str = "kept",
) -> dict[str, Tensor]:
    """The formula of every option, one learner, by autograd on ordinary modules."""
    x, y, keep, sure, names = lane.x, lane.y, lane.keep, lane.sure, dict(model.named_parameters())

    def grad(loss: Tensor) -> dict[str, Tensor]:
        return dict(zip(names, torch.autograd.grad(loss, names.values()), strict=True))

    target = model(x).detach()
    loss_a = F.cross_entropy(model(x)[keep], y[keep], reduction="sum")
    grad_a = grad(loss_a / (int(keep.sum()) if batches == "kept" else len(y)))
    if not sure.any():
        return grad_a
    grad_p = grad(F.cross_entropy(model(x)[sure], y[sure]))

    scale = {
        name: p.detach().abs() + ETA
        if perturbation == "asam" and "weight" in name
        else torch.ones_like(p)
        for name, p in names.items()
    }
    norm = torch.cat([(scale[name] * g).flatten() for name, g in grad_p.items()]).norm()
    before = oracle.values(model)
    oracle.shift(model, {n: RHO * scale[n] ** 2 * g / norm for n, g in grad_p.items()}, +1)

    q, p = model(x).log_softmax(1), target.log_softmax(1)
    left, right = (p, q) if divergence == "forward" else (q, p)
    kl = (left.exp() * (left - right)).sum(1)
    rows = sure if consistency_rows == "sure" else keep
    grad_cs = grad(kl[rows].sum() / len(y))
    oracle.load(model, before)
    return {name: grad_a[name] + grad_cs[name] for name in names}


OPTIONS: list[dict[str, str]] = [
    {},
    {"perturbation": "sam"},
    {"divergence": "reverse"},
    {"consistency_rows": "kept"},
    {"batches": "all"},
    {"batches": "all", "consistency_rows": "kept", "divergence": "reverse", "perturbation": "sam"},
]
ROWS = {  # accepted and sure rows of each lane
    "mixed": [("11111", "10110")],
    "all sure": [("1111", "1111")],
    "none sure": [("1111", "0000")],
    "one row": [("1", "1")],
    "lanes": [("1111", "0110"), ("11", "01")],
}
WITH_REJECTED = {  # only where batches are drawn from every row
    "rejected": [("10111", "00110")],
    "rejected, none sure": [("0110", "0000")],
    "nothing accepted": [("000", "000")],
    "rejected, lanes": [("1101", "1000"), ("011", "010")],
}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(
    ("rows", "options"),
    [
        pytest.param(rows, options, id=f"{name}-{'-'.join(options.values()) or 'default'}")
        for options in OPTIONS
        for name, rows in (ROWS | WITH_REJECTED if "batches" in options else ROWS).items()
    ],
)
def test_options(rows: list[tuple[str, str]], options: dict[str, str], lowering: str) -> None:
    net, learners = network(lowering), models(len(rows))
    lanes = [Lane(keep, sure, seed) for seed, (keep, sure) in enumerate(rows)]
    params = torch.stack([row_of(net, model) for model in learners])
    client = flfl(rho=RHO, eta=ETA, **options).client  # type: ignore[arg-type]
    assert client is not None
    assert client.batches == options.get("batches", "kept")
    found = client.grads(net, params, stack(lanes))
    for model, lane, own in zip(learners, lanes, found, strict=True):
        close(own, net.layout.join(plain_sacr(model, lane, **options)))


def test_the_options_differ() -> None:
    """Each option moves the gradient, so that the comparisons above tell them apart."""
    net, (model,), lane = network(), models(1), Lane("11101", "01100", 0)
    params, seen = row_of(net, model)[None], []
    for options in OPTIONS:
        client = flfl(rho=RHO, eta=ETA, **options).client  # type: ignore[arg-type]
        assert client is not None
        seen.append(client.grads(net, params, stack([lane]))[0])
    for i, a in enumerate(seen):
        for b in seen[:i]:
            assert (a - b).abs().max() > 1e-6


# -- one step: cost --------------------------------------------------------------------------------


def flops(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("width", [4, 5])  # all rows live, and padded
@pytest.mark.parametrize(
    ("sure", "forwards", "backwards"), [("0000", 1, 1), ("1111", 2, 2), ("0110", 2, 3)]
)
def test_cost_of_a_step(
    sure: str, forwards: int, backwards: int, width: int, lowering: str
) -> None:
    """By the arithmetic that convolutions and products really do, not by calls."""
    net, learners, lanes = network(lowering), models(2), accepted(sure, sure)
    params, batch = torch.stack([row_of(net, m) for m in learners]), stack(lanes, width)
    one = flops(lambda: net.forward(params, batch.view_LBCHW, batch.row_LB))
    both = flops(lambda: ce_grads(net, params, batch))
    back = both - one
    assert one > 0
    assert back > one
    grads = sacr_grads(RHO)
    assert flops(lambda: grads(net, params, batch)) == forwards * one + backwards * back


@pytest.mark.parametrize("sure", ["0000", "1111", "0110"])
def test_the_reference_order_costs_more(sure: str) -> None:
    """4F + 3B whatever is sure: the oracle is not the library in disguise."""
    (model,), (lane,) = models(1), accepted(sure)
    with torch.no_grad():
        one = flops(lambda: model(lane.x))
    back = flops(lambda: F.cross_entropy(model(lane.x), lane.y).backward()) - one
    cost = flops(lambda: oracle.client_grads(model, lane.x, lane.y, lane.sure, rho=RHO, eta=ETA))
    assert cost == 4 * one + 3 * back


# -- local training --------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [1.0, 0.01, 0.0])
@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay"), [(0.9, True, 5e-4), (0.5, False, 0.1), (0.9, True, 0.0)]
)
@pytest.mark.parametrize("fresh", [True, False])
def test_sgd(momentum: float, nesterov: bool, decay: float, clip: float, fresh: bool) -> None:
    """Two lanes, one with small and one with large gradients, which are clipped one by one."""
    gen = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        return torch.randn(2, 7, generator=gen, dtype=torch.float64)

    size = torch.tensor([[0.1], [10.0]])
    params, buffer = draw(), torch.zeros(2, 7, dtype=torch.float64) if fresh else draw()
    sgd = SGD(momentum, nesterov, decay, clip)
    leaves = [nn.Parameter(p.clone()) for p in params]
    options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}
    optimisers = [torch.optim.SGD([leaf], lr=0.1, **options) for leaf in leaves]
    if not fresh:
        for leaf, own, optimiser in zip(leaves, buffer, optimisers, strict=True):
            optimiser.state[leaf]["momentum_buffer"] = own.clone()
    for _ in range(4):
        grad = size * draw()
        params, buffer = sgd.step(params, buffer, grad, 0.1)
        for lane, (leaf, optimiser) in enumerate(zip(leaves, optimisers, strict=True)):
            leaf.grad = grad[lane].clone()
            if clip:
                nn.utils.clip_grad_norm_([leaf], clip)
            optimiser.step()
            close(params[lane], leaf.detach(), 1e-13)
            close(buffer[lane], optimiser.state[leaf]["momentum_buffer"], 1e-13)


def test_a_zero_gradient_is_clipped_to_zero() -> None:
    params = torch.ones(1, 3)
    moved, _ = SGD(weight_decay=0.0).step(params, torch.zeros(1, 3), torch.zeros(1, 3), 0.1)
    assert torch.equal(moved, params)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_train_lanes_equals_clients_one_by_one(lowering: str) -> None:
    """Lanes that take part in some of the batches only, each with its own momentum."""
    net, learners = network(lowering), models(3)
    params = torch.stack([row_of(net, model) for model in learners])
    config = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    plan = [([0, 2], ["1100", "01"]), ([0, 1], ["111", "11"]), ([2], ["000"]), ([2, 0], ["0", "0"])]
    batches, steps = [], []
    for number, (ids, sure) in enumerate(plan):
        lanes = [Lane("1" * len(s), s, 10 * number + i) for i, s in enumerate(sure)]
        batches.append(stack(lanes)._replace(lane_L=torch.tensor(ids)))
        steps += zip(ids, lanes, strict=True)
    before = params.clone()
    found, buffer = train_lanes(
        Cores(net),
        ServerPart(sacr_grads(RHO, eta=ETA)),
        SGD(0.9, True, 5e-4, clip=1.0),
        0.05,
        params,
        torch.zeros_like(params),
        [Stream(len(batches), iter(batches))],
    )
    assert torch.equal(params, before)
    optimisers = [oracle.make_sgd(model, config, None) for model in learners]
    for i, lane in steps:
        oracle.client_grads(learners[i], lane.x, lane.y, lane.sure, rho=RHO, eta=ETA)
        oracle.clipped_step(learners[i], optimisers[i], 1.0)
    for i, (model, optimiser) in enumerate(zip(learners, optimisers, strict=True)):
        close(found[i], row_of(net, model), 1e-9)
        close(buffer[i], net.layout.join(oracle.buffers(model, optimiser)), 1e-9)


# -- pseudo-labels ---------------------------------------------------------------------------------


def label(probs: list[Tensor], garbage: float, **options: Any) -> PseudoLabels:
    """Clients of different sizes side by side; padding rows hold `garbage`."""
    sizes = torch.tensor([len(p) for p in probs])
    padded = torch.full(
        (len(probs), int(sizes.max()), probs[0].shape[1]), garbage, dtype=probs[0].dtype
    )
    for own, p in zip(padded, probs, strict=True):
        own[: len(p)] = p
    live = torch.arange(int(sizes.max())) < sizes[:, None]
    return adaptive_threshold(**options)(lambda: padded, live, None)


def clients(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    gen = torch.Generator().manual_seed(0)
    return [
        (2.0 * torch.randn(num, CLASSES, generator=gen, dtype=torch.float64)).softmax(1).to(dtype)
        for num in (9, 1, 14, 2)
    ]


@pytest.mark.parametrize("garbage", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("sure", [0.5, 0.8, 1.0])
def test_threshold_equals_a_plain_loop(sure: float, garbage: float) -> None:
    probs = clients()
    labels = label(probs, garbage, sure=sure)
    assert labels.tau_L is not None
    assert labels.tau_LY is not None
    assert labels.sure_LM is not None
    for i, own in enumerate(probs):
        expected, num = oracle.threshold(own, sure), len(own)
        close(labels.tau_L[i], expected.tau, 1e-14)
        close(labels.tau_LY[i], expected.tau_c, 1e-14)
        assert torch.equal(labels.y_LM[i, :num], expected.y)
        assert torch.equal(labels.keep_LM[i, :num], expected.keep)
        assert torch.equal(labels.sure_LM[i, :num], expected.sure & expected.keep)
        assert not labels.keep_LM[i, num:].any()
        assert not labels.sure_LM[i, num:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_best_class_gets_tau_itself(dtype: torch.dtype) -> None:
    """tau * (pbar / max pbar) in this order: a client of one row accepts it in any precision."""
    labels = label(clients(dtype), 0.0, sure=0.95)
    assert labels.tau_L is not None
    assert labels.tau_LY is not None
    assert torch.equal(labels.tau_LY.amax(-1), labels.tau_L)
    assert labels.tau_L.dtype == dtype
    assert labels.keep_LM.any(1).all()
    assert labels.keep_LM[1, 0]


@pytest.mark.parametrize("strict", [False, True])
def test_a_row_at_its_threshold(strict: bool) -> None:
    """All rows equal: each meets the mean exactly, which is enough unless strict."""
    probs = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).repeat(4, 1)
    labels = label([probs], 0.0, sure=0.5, strict=strict)
    assert torch.equal(labels.keep_LM[0], oracle.threshold(probs, 0.5, strict=strict).keep)
    assert labels.keep_LM.all() if not strict else not labels.keep_LM.any()


def test_strict_reaches_the_method() -> None:
    probs = torch.tensor([[[0.5, 0.25, 0.25]]], dtype=torch.float64)
    for strict in (False, True):
        client = flfl(strict=strict).client
        assert client is not None
        found = client.label(lambda: probs, torch.ones(1, 1, dtype=torch.bool), None)
        assert bool(found.keep_LM.item()) is not strict


# -- the server ------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["lsaa", "uniform"])
def test_aggregation_weights(aggregation: str) -> None:
    client = flfl(aggregation=aggregation).client
    assert client is not None
    labels = label(clients(), 0.0, sure=0.95)
    beta = aggregation_weights(client.weight(labels).to(torch.float64)[None])[0]
    doubt = torch.stack([1 - oracle.threshold(p, 0.95).tau for p in clients()])
    expected = doubt / doubt.sum() if aggregation == "lsaa" else torch.full_like(doubt, 0.25)
    close(beta, expected, 1e-14)


def test_certain_clients_weigh_alike() -> None:
    """1 - tau = 0 for all: 0/0 must not reach the global model."""
    beta = aggregation_weights(torch.tensor([[0.0, 0.0], [1.0, 3.0]]))
    assert beta.tolist() == [[0.5, 0.5], [0.25, 0.75]]


def test_fedavg_weighs_rows() -> None:
    client = METHODS["fedavg"]().client
    assert client is not None
    live = torch.tensor([[1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    labels = client.label(lambda: torch.zeros(0), live, torch.zeros(2, 3, dtype=torch.int64))
    assert aggregation_weights(client.weight(labels)[None]).tolist() == [[0.75, 0.25]]


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.0])
def test_aggregate_is_sgd_on_pseudo_gradients(decay: float) -> None:
    gen = torch.Generator().manual_seed(0)
    num_seeds, cohort, width = 2, 3, 6

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    params, momentum = draw(num_seeds, width), torch.zeros(num_seeds, width, dtype=torch.float64)
    leaves = [nn.Parameter(p.clone()) for p in params]
    optimisers = [torch.optim.SGD([leaf], lr=1.0, momentum=decay) for leaf in leaves]
    for _ in range(4):
        trained, beta = draw(num_seeds, cohort, width), draw(num_seeds, cohort).softmax(-1)
        params, momentum = aggregate(params, momentum, trained, beta, decay)
        for s, (leaf, optimiser) in enumerate(zip(leaves, optimisers, strict=True)):
            leaf.grad = leaf.detach() - sum(b * w for b, w in zip(beta[s], trained[s], strict=True))
            optimiser.step()
            close(params[s], leaf.detach(), 1e-13)


def sbn_batches() -> list[Tensor]:
    gen = torch.Generator().manual_seed(0)
    return [
        torch.randn(num, 3, SIDE, SIDE, generator=gen, dtype=torch.float64) + num
        for num in (5, 1, 8, 3)
    ]


def recalibrate(net: Network, params_P: Tensor, *, per_sample: bool = False) -> Stats:
    batches = sbn_batches()
    return mean_moments([(net.moments(params_P, x), len(x) if per_sample else 1) for x in batches])


def test_recalibrate_equals_cumulative_running_statistics() -> None:
    net, (model,) = network(), models(1)
    expected = oracle.recalibrate(model, sbn_batches())
    stats = recalibrate(net, row_of(net, model))
    for kind, flat in (("mean", stats.mean_Q), ("var", stats.var_Q)):
        for name, own in net.norms.split(flat).items():
            close(own, expected[f"{name}.{kind}"])


def test_recalibrate_per_sample_weighs_batches_by_their_size() -> None:
    net, (model,), batches = network(), models(1), sbn_batches()
    single = [oracle.recalibrate(model, [x]) for x in batches]
    stats = recalibrate(net, row_of(net, model), per_sample=True)
    weight = np.array([len(x) for x in batches]) / sum(len(x) for x in batches)
    for kind, flat in (("mean", stats.mean_Q), ("var", stats.var_Q)):
        for name, own in net.norms.split(flat).items():
            close(own, sum(w * s[f"{name}.{kind}"] for w, s in zip(weight, single, strict=True)))


def test_inference_equals_eval_mode() -> None:
    net, (model,), x = network(), models(1), Lane("11111", "00000", 7).x
    oracle.recalibrate(model, sbn_batches())
    params = row_of(net, model)
    stats = recalibrate(net, params)
    with torch.no_grad():
        close(net.infer(params, stats, x), model(x))
        close(net.infer(params, stats, x[:1]), model(x)[:1])


def test_float32_steps_stay_float32() -> None:
    grads: list[GradFn] = [ce_grads, sacr_grads(RHO), sacr_grads(RHO, perturbation="sam")]
    net = Network.of(WideResNet(10, 1, CLASSES), "grouped", torch.zeros(()))
    params = torch.randn(2, net.layout.width) * 0.1
    batch = stack(accepted("1010", "10"))
    batch = batch._replace(view_LBCHW=batch.view_LBCHW.float())
    for own in grads:
        assert own(net, params, batch).dtype == torch.float32
