"""Every method's steps against one plain learner, and small cases worked out by hand.

Shapes: L lanes, B rows, M rows of a client, Y classes, P columns of a learner's row.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import oracle
import pytest
import torch
import zoo_oracle as plain
from test_oracle import CLASSES, ETA, LOWERINGS, RHO, SIDE, close, models, network
from torch import Tensor, nn
from zoo_oracle import Rows

from fl2fast.data.mixing import draw_partners, draw_shares
from fl2fast.engine.cores import Cores, Stream
from fl2fast.engine.local import train_lanes
from fl2fast.methods import METHODS, fedcon, fedmatch, find_method, semifl
from fl2fast.methods.fedmatch import Lambdas, client_grads
from fl2fast.methods.helpers import majority, nearest
from fl2fast.methods.method import Batch, Crowd, Labelled, Method, Mix, Mixed, Part, Visit
from fl2fast.methods.self_adaptive import averaged, fresh_state, thresholds
from fl2fast.models.linear import LinearClassifier
from fl2fast.models.network import Network
from fl2fast.optim import SGD

F64 = torch.float64
SIZES = ((5, 3, 4), (4, 4, 4))  # rows of each lane in a step: padded, then not
HIDDEN, LABELLED = 6, 3
LAMBDAS = {"s": 3.0, "i": 0.7, "a": 0.9, "l1": 0.01, "l2": 0.05}
CENTRAL = {"ema": 0.6, "weights_ema": 0.7, "lambda_f": 0.3, "decay": 0.02}


# -- batches, as one learner sees them and as all lanes do -----------------------------------------


def make_rows(size: int, seed: int, sure: str, views: int) -> Rows:
    gen = torch.Generator().manual_seed(seed)

    def images(num: int) -> Tensor:
        return torch.randn(num, 3, SIDE, SIDE, generator=gen, dtype=F64)

    def labels(num: int) -> Tensor:
        return torch.randint(CLASSES, (num,), generator=gen)

    chosen = {
        "none": torch.zeros(size, dtype=torch.bool),
        "some": torch.arange(size) % 2 == seed % 2,
        "all": torch.ones(size, dtype=torch.bool),
    }[sure]
    share = float(torch.rand((), generator=gen, dtype=F64))
    return Rows(
        *(tuple(images(size) for _ in range(views)), labels(size), chosen),
        *(images(size), labels(size), share, images(LABELLED), labels(LABELLED), 30),
    )


def padded(tensors: list[Tensor], garbage: float) -> Tensor:
    width = max(map(len, tensors))
    out = torch.full((len(tensors), width, *tensors[0].shape[1:]), garbage, dtype=F64)
    for own, tensor in zip(out, tensors, strict=True):
        own[: len(tensor)] = tensor
    return out.to(tensors[0].dtype)


def stack(lanes: list[Rows], sure: str) -> Batch:
    live = padded([torch.ones_like(own.y, dtype=torch.bool) for own in lanes], 0)
    first, *others = (
        padded([own.views[v] for own in lanes], 3.0 + v) for v in range(len(lanes[0].views))
    )
    share = torch.tensor([own.share for own in lanes], dtype=F64)
    return Batch(
        lane_L=torch.arange(len(lanes)),
        view_LBCHW=first,
        y_LB=padded([own.y for own in lanes], 0),
        row_LB=None if live.all() else live,
        keep_LB=live,
        sure_LB=padded([own.sure for own in lanes], 0),
        sureness=sure,  # type: ignore[arg-type]
        more_views=tuple(others),
        mixed=Mixed(
            padded([own.partner for own in lanes], -2.0),
            padded([own.partner_y for own in lanes], 0),
            share,
        ),
        labelled=Labelled(
            torch.stack([own.labelled for own in lanes]),
            torch.stack([own.labelled_y for own in lanes]),
        ),
        round=torch.tensor(lanes[0].round),
    )


# -- the plain learner of every method -------------------------------------------------------------


class Case(NamedTuple):
    """`tail` completes a plain learner's columns to those of the method's row."""

    make: Callable[[nn.Module, int], Any]  # model, number of the lane -> a plain learner
    options: Mapping[str, Any] = MappingProxyType({})
    sure: str = "some"
    part: str = "client"
    sgd: SGD = SGD(0.9, True, 5e-4, clip=plain.CLIP)
    tail: Callable[[Network, int], Tensor] = lambda net, lane: torch.zeros(0, dtype=F64)


def nudged(model: nn.Module, seed: int, size: float = 0.1) -> nn.Module:
    """A copy with other values."""
    gen = torch.Generator().manual_seed(seed)
    made = deepcopy(model)
    noise = {n: torch.randn(p.shape, generator=gen, dtype=F64) for n, p in made.named_parameters()}
    oracle.shift(made, {n: size * t for n, t in noise.items()}, +1)
    return made


def psi_of(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """Zero where there is none: norms and biases."""
    values = oracle.values(nudged(model, seed))
    return {n: 0.3 * t if t.dim() > 1 else torch.zeros_like(t) for n, t in values.items()}


def make_fedmatch(part: str, helped: Callable[[int], bool]) -> Callable[[nn.Module, int], Any]:
    def make(model: nn.Module, lane: int) -> plain.Decomposed:
        helpers = [psi_of(model, 50 + 10 * h + lane) for h in range(2)] if helped(lane) else []
        psi, given = psi_of(model, lane), {"helpers": helpers, "confidence": 0.4}
        return plain.Decomposed(model, psi, part, LAMBDAS, **given)

    return make


def head_of(seed: int) -> plain.Head:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = plain.Head(64, HIDDEN).double()
    return nudged(head, seed)  # type: ignore[return-value]


def make_contrast(model: nn.Module, lane: int) -> plain.Contrast:
    copy, slow = nudged(model, 20 + lane), nudged(model, 30 + lane)
    return plain.Contrast(model, copy, head_of(lane), slow, 0.8)


def sacr(model: nn.Module, _: int) -> plain.Sacr:
    return plain.Sacr(model, RHO, ETA)


def central(sure: float | None, clip_time: bool) -> Callable[[nn.Module, int], plain.Central]:
    return lambda model, _: plain.Central(model, CLASSES, sure, clip_time=clip_time, **CENTRAL)


PERTURBED = {"rho": RHO, "eta": ETA}
FEDMATCH = {f"lambda_{name}": value for name, value in LAMBDAS.items()} | {"confidence": 0.4}
FEDCON = {"hidden": HIDDEN, "ema": 0.8}
UNCLIPPED = SGD(0.9, True, 0.0, clip=0.0)


def cross_entropy(model: nn.Module, _: int) -> plain.CrossEntropy:
    return plain.CrossEntropy(model)


def sam(reading: str) -> Case:
    def make(model: nn.Module, _: int) -> plain.Sam:
        return plain.Sam(model, RHO, ETA, reading)

    return Case(make, PERTURBED | {"reading": reading})


def head_and_slow(net: Network, lane: int) -> Tensor:
    return plain.flat([*head_of(lane).parameters(), torch.ones(net.layout.width, dtype=F64)])


CASES = {
    "flfl": Case(sacr, PERTURBED),
    "fixmatch": Case(cross_entropy, sure="all"),
    "sacr-fixmatch": Case(sacr, PERTURBED, sure="all"),
    "cat": Case(cross_entropy, sure="none"),
    "cat-sacr": Case(sacr, PERTURBED),
    "cat-sacr-all": Case(sacr, PERTURBED, sure="all"),
    "cat-sacr-correct": Case(sacr, PERTURBED),
    "cat-sam": sam("added"),
    "cat-sam, replaced": sam("replaced"),
    "semifl": Case(lambda model, _: plain.FixAndMix(model), sure="all"),
    "semifl, no mix loss": Case(cross_entropy, {"mix_loss": False}, sure="all"),
    "fedmatch": Case(make_fedmatch("psi", lambda lane: False), FEDMATCH, sure="none"),
    "fedmatch, helped": Case(
        make_fedmatch("psi", lambda lane: True),
        FEDMATCH,
        sure="none",
        tail=lambda net, lane: torch.ones(1, dtype=F64),
    ),
    "fedmatch, server": Case(
        make_fedmatch("sigma", lambda lane: False), FEDMATCH, sure="none", part="server"
    ),
    "fedcon": Case(make_contrast, FEDCON, sure="none"),
    "fedcon, server": Case(
        lambda model, lane: plain.CalmServer(model, nudged(model, 20 + lane), 0.8),
        FEDCON,
        sure="none",
        part="server",
        tail=head_and_slow,
    ),
    "supervised": Case(cross_entropy, sure="none", part="server"),
    "fedavg": Case(cross_entropy, sure="none"),
    "freematch": Case(
        central(None, False), CENTRAL | {"clip_time": False}, "none", "central", UNCLIPPED
    ),
    "freematch, clipped": Case(
        central(None, True), CENTRAL | {"clip_time": True}, "none", "central", UNCLIPPED
    ),
    "fixmatch-central": Case(
        central(0.4, False),
        {"sure": 0.4, "weights_ema": 0.7, "decay": 0.02},
        "none",
        "central",
        UNCLIPPED,
    ),
}


def method_of(name: str) -> Method:
    return find_method(name.partition(",")[0])(**CASES[name].options)


def test_every_method_has_a_plain_learner() -> None:
    assert {name.partition(",")[0] for name in CASES} == set(METHODS)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", CASES)
def test_steps_equal_one_plain_learner(name: str, lowering: str) -> None:
    case, net = CASES[name], network(lowering)
    part: Part = getattr(method_of(name), case.part)
    alone = [case.make(model, lane) for lane, model in enumerate(models(3))]
    start = torch.stack([torch.cat((own.row(), case.tail(net, i))) for i, own in enumerate(alone)])
    steps = [
        [make_rows(size, 10 * t + i, case.sure, len(part.views)) for i, size in enumerate(sizes)]
        for t, sizes in enumerate(SIZES)
    ]
    batches = [stack(lanes, case.sure) for lanes in steps]
    streams = [Stream(len(batches), iter(batches))]
    lr = plain.CONFIG["lr"]
    found, _ = train_lanes(Cores(net), part, case.sgd, lr, start, torch.zeros_like(start), streams)
    for lanes in steps:
        for own, rows in zip(alone, lanes, strict=True):
            own.step(rows)
    for i, own in enumerate(alone):
        expected = torch.cat((own.row(), case.tail(net, i)))
        assert not torch.allclose(expected, start[i])
        close(found[i], expected, 1e-9)


def test_a_client_without_helpers_beside_one_with() -> None:
    """The column that says so decides, whatever stands in the helpers' place."""
    net, grads = network(), client_grads(Lambdas(*LAMBDAS.values()), 0.4)
    alone = [make_fedmatch("psi", lambda lane: True)(m, i) for i, m in enumerate(models(2))]
    rows = [make_rows(4, i, "none", 2) for i in range(2)]
    has = torch.tensor([[1.0], [0.0]], dtype=F64)
    start = torch.cat((torch.stack([own.row() for own in alone]), has), 1)
    found = grads(net, start, stack(rows, "none"))
    width = net.layout.width
    without = grads(net, start[1:, : 2 * width], stack(rows[1:], "none"))
    close(found[1, : 2 * width], without[0])
    with_helpers = grads(net, torch.cat((start[1:, :-1], has[:1]), 1), stack(rows[1:], "none"))
    assert not torch.allclose(with_helpers[0, : 2 * width], without[0])


# -- labels ----------------------------------------------------------------------------------------

PROBS = torch.tensor(
    [[0.9, 0.1], [0.3, 0.7], [0.55, 0.45], [0.2, 0.8], [0.5, 0.5]], dtype=F64
)  # confidence .9 .7 .55 .8, and a row of padding


def labels_of(name: str, truth: Tensor | None = None, **options: Any) -> Any:
    client = find_method(name)(**options).client
    assert client is not None
    live = torch.tensor([[True, True, True, True, False]])
    return client.label(lambda: PROBS[None], live, truth)


def test_a_fixed_threshold_by_hand() -> None:
    for name in ("fixmatch", "sacr-fixmatch", "semifl"):
        found = labels_of(name, sure=0.7)
        assert found.y_LM[0, :4].tolist() == [0, 1, 0, 1]
        assert found.keep_LM.tolist() == [[True, True, False, True, False]]  # reached, not passed
        assert torch.equal(found.keep_LM, found.sure_LM)


def test_adaptive_thresholds_by_hand() -> None:
    """tau = .7375; the mean prediction is (.4875, .5125), so tau_0 = .7375 * .4875 / .5125."""
    tau = 0.7375
    for name in ("cat", "cat-sacr", "cat-sacr-all", "flfl"):
        found = labels_of(name)
        close(found.tau_L, torch.tensor([tau], dtype=F64))
        close(found.tau_LY, torch.tensor([[tau * 0.4875 / 0.5125, tau]], dtype=F64))
        assert found.keep_LM.tolist() == [[True, False, False, True, False]]
    assert labels_of("cat").sure_LM is None
    assert labels_of("cat-sacr", sure=0.85).sure_LM.tolist() == [[True] + 4 * [False]]
    everything = labels_of("cat-sacr-all")
    assert torch.equal(everything.sure_LM, everything.keep_LM)


@pytest.mark.parametrize("name", ["cat-sacr-correct", "cat-sam"])
def test_oracles_call_right_labels_sure(name: str) -> None:
    found = labels_of(name, torch.tensor([[0, 1, 0, 0, 0]]))
    assert found.keep_LM.tolist() == [[True, False, False, True, False]]
    assert found.sure_LM.tolist() == [[True, False, False, False, False]]
    assert found.y_LM[0, 3] == 1  # a wrong label is kept as it is


def test_who_votes() -> None:
    client = semifl().client
    idle = semifl(idle="kept").client
    assert client is not None
    assert idle is not None
    keep = torch.tensor([[True, False], [False, False]])
    labels = labels_of("semifl")._replace(keep_LM=keep)
    assert client.weight(labels).tolist() == [1.0, 0.0]
    assert idle.weight(labels).tolist() == [1.0, 1.0]


# -- worked out by hand ----------------------------------------------------------------------------


def test_the_mix_loss_by_hand() -> None:
    """One feature, two classes, all weights zero: every softmax is (1/2, 1/2).

    x = 1 strongly and 2 weakly, of class 0; partner 4, of class 1; share 1/4. m = 1/4 * 2 + 3/4 * 4
    = 3.5. d/dz0 is -1/2 for the strong row, 1/4 * -1/2 + 3/4 * 1/2 = 1/4 for the mixed one, and
    z1's are the opposite. So d/dw0 = -1/2 * 1 + 1/4 * 3.5 = 0.375 and d/db0 = -1/4.
    """
    net = Network.of(LinearClassifier(1, 2), "grouped", torch.zeros((), dtype=F64))
    row = torch.zeros(1, net.layout.width, dtype=F64)

    def pixel(value: float) -> Tensor:
        return torch.full((1, 1, 1, 1, 1), value, dtype=F64)

    every = torch.ones(1, 1, dtype=torch.bool)
    batch = Batch(
        *(torch.tensor([0]), pixel(1.0), torch.tensor([[0]]), None, every, every, "all"),
        more_views=(pixel(2.0),),
        mixed=Mixed(pixel(4.0), torch.tensor([[1]]), torch.tensor([0.25], dtype=F64)),
    )
    client = semifl().client
    assert client is not None
    found = net.layout.split(client.grads(net, row, batch)[0])
    close(found["head.weight"][:, 0], torch.tensor([0.375, -0.375], dtype=F64))
    close(found["head.bias"], torch.tensor([-0.25, 0.25], dtype=F64))


def test_a_majority_by_hand() -> None:
    """Three voters on four rows: two against one, all alike, all apart, all apart."""
    votes = [(2, 1, 0, 3), (1, 1, 2, 2), (2, 1, 1, 1)]
    answers = tuple(torch.eye(4)[list(own)][None] for own in votes)
    assert majority(answers).tolist() == [[2, 1, 0, 1]]


def test_the_nearest_clients_by_hand() -> None:
    """Clients are known by their last column: 0, 5, 1, 3 and one that nobody has seen."""
    psi_and_place = [[10.0, 0.0], [11.0, 5.0], [12.0, 1.0], [13.0, 3.0], [0.0, 0.0]]
    kept_SNQ = torch.tensor([psi_and_place])
    seen_SN = torch.tensor([[True, True, True, True, False]])
    clients = torch.tensor([0, 1, 4])
    crowd = Crowd(kept_SNQ, seen_SN, torch.zeros(3, dtype=torch.int64), clients)
    visit = Visit(torch.zeros(3, 2), kept_SNQ[0, clients], seen_SN[0, clients], 10, lambda: crowd)
    psi_LHP, has_L = nearest(visit, 1, 2)
    assert psi_LHP[..., 0].tolist()[:2] == [[12.0, 13.0], [13.0, 12.0]]
    assert has_L.tolist() == [True, True, False]  # the newcomer has no place yet
    assert nearest(visit, 1, 4)[1].tolist() == [False] * 3  # only three others were ever seen


def test_what_a_fedmatch_client_sends_and_tests_with() -> None:
    net = Network.of(LinearClassifier(2, 2), "grouped", torch.zeros((), dtype=F64))
    method = fedmatch(sparse=0.1, helper_every=2)
    client = method.client
    assert client is not None
    assert client.report is not None
    assert client.memory is not None
    row = torch.tensor([[1.0, 2, 3, 4, 5, 6, 0.5, 0.05, -0.1, -0.2, 0, 0]], dtype=F64)
    expected = torch.tensor([[1.5, 2, 3, 3.8, 5, 6]], dtype=F64)  # |psi| <= 0.1 does not act
    close(method.learner.model(net, row), expected)
    moved = row + torch.tensor([[0.0] * 6 + [0.3, 0.05, -0.11, 0, 0, 0]], dtype=F64)
    sent = client.report(net, row, moved)
    close(sent - row, torch.tensor([[0.0] * 6 + [0.3, 0, -0.11, 0, 0, 0]], dtype=F64))
    sigma = torch.arange(6.0, dtype=F64)
    born = method.learner.init(net, sigma, lambda num: torch.zeros(num))
    close(born, torch.cat((sigma, 0.2 * sigma * torch.tensor([1, 1, 1, 1, 0, 0]))))
    visit = Visit(row, torch.zeros(1, 8, dtype=F64), torch.tensor([False]), 1, lambda: None)  # type: ignore[arg-type,return-value]
    assert torch.equal(client.memory.start(net, visit), row)  # no helpers in an odd round


def test_a_slow_encoder_by_hand() -> None:
    """ema 3/4: 3/4 * 8 + 1/4 * 4 = 7, of the slow encoder only; the server's copy likewise."""
    net, width = network(), network().layout.width
    method = fedcon(ema=0.75, hidden=2)
    assert method.client is not None
    assert method.server is not None
    head = 2 * (2 * 64) + 2 * 2 + 64
    filled = ((width, 4.0), (width, 12.0), (head, 1.0), (width, 8.0))
    parts = [torch.full((1, num), value, dtype=F64) for num, value in filled]
    for part, changed, value in ((method.client, 3, 7.0), (method.server, 1, 10.0)):
        assert part.settle is not None
        after = part.settle(net, torch.cat(parts, 1))
        expected = [p.clone() for p in parts]
        expected[changed].fill_(value)
        assert torch.equal(after, torch.cat(expected, 1))


def test_a_returning_client_brings_head_and_slow_encoder() -> None:
    net, width = network(), network().layout.width
    client = fedcon(hidden=2).client
    assert client is not None
    assert client.memory is not None
    head = 2 * (2 * 64) + 2 * 2 + 64
    sizes = (width, width, head, width)
    new = torch.cat([torch.full((2, n), float(v), dtype=F64) for v, n in enumerate(sizes)], 1)
    kept = client.memory.keep(net, new + 10, torch.zeros(3, SIDE, SIDE, dtype=F64))
    assert kept.shape[1] == head + width
    seen = torch.tensor([True, False])
    crowd: Any = None
    back, fresh = client.memory.start(net, Visit(new, kept, seen, 4, crowd)).split(1)
    values = [[float(p.unique()) for p in row[0].split(sizes)] for row in (back, fresh)]
    assert values == [[0.0, 1.0, 12.0, 13.0], [0.0, 1.0, 2.0, 0.0]]


def test_freematch_averages_by_hand() -> None:
    """Two classes from 1/2 at ema 3/4; live rows (.9, .1) and (.7, .3): t = .575, q = (.575, .425),
    g = (.625, .375); so tau_0 = .575 and tau_1 = .575 * .425 / .575 = .425."""
    probs = torch.tensor([[[0.9, 0.1], [0.7, 0.3], [0.1, 0.9]]], dtype=F64)
    live = torch.tensor([[True, True, False]])
    start = fresh_state(2, probs[0, 0])[None]
    found = averaged(start, probs, probs.argmax(-1), live, 0.75, clip_time=False)
    expected = torch.tensor([[0.575, 0.575, 0.425, 0.625, 0.375]], dtype=F64)
    close(found, expected)
    close(thresholds(found), torch.tensor([[0.575, 0.425]], dtype=F64))
    certain = torch.tensor([[[1.0, 0.0]]], dtype=F64)
    sure = torch.tensor([[0.99, 0.8, 0.2, 0.5, 0.5]], dtype=F64)
    clipped = averaged(sure, certain, certain.argmax(-1), live[:, :1], 0.75, clip_time=True)
    close(clipped, torch.tensor([[0.95, 0.85, 0.15, 0.625, 0.375]], dtype=F64))


# -- partners and shares ---------------------------------------------------------------------------


def partners(mix: Mix, kept: np.ndarray, live: np.ndarray, epochs: int = 3) -> np.ndarray:
    ids = np.zeros(1, dtype=np.int64)
    return draw_partners(mix, live[None], kept[None], ids, ids, round=1, epochs=epochs)[0]


def test_partners_are_drawn_from_the_right_rows() -> None:
    live = np.arange(600) < 500
    kept = live & (np.arange(600) % 5 == 0)
    everyone, accepted = (partners(Mix(0.75, p), kept, live)[:, kept] for p in ("all", "kept"))
    assert everyone.max() < 500
    assert (everyone % 5 != 0).mean() == pytest.approx(0.8, abs=0.1)
    assert not (everyone[0] == everyone[1]).all()
    assert (accepted % 5 == 0).all()
    multisets = np.sort(accepted, axis=1)  # once a round: every epoch shuffles the same draw
    assert (multisets == multisets[0]).all()
    assert not (accepted[0] == accepted[1]).all()
    assert len(np.unique(multisets[0])) < kept.sum()  # with replacement


def test_shares_are_beta_distributed() -> None:
    """Beta(b, b) has mean 1/2 and variance 1 / (4 (2b + 1))."""
    num = np.arange(4000)
    for beta in (0.75, 5.0):
        zero = np.zeros_like(num)
        share = draw_shares(Mix(beta, "all"), zero, zero, round=1, epoch_G=zero, first_G=num)
        assert share.mean() == pytest.approx(0.5, abs=0.02)
        assert share.var() == pytest.approx(1 / (4 * (2 * beta + 1)), rel=0.08)
        assert (share > 0).all()
        assert (share < 1).all()
