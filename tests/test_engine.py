"""Parts of the engine on their own: no host sync in a step, and what a finished lane keeps."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fl2fast
from fl2fast.data.plan import select
from fl2fast.engine.cores import Cores, Stream
from fl2fast.engine.local import Step, local_step, train_lanes
from fl2fast.engine.server import aggregation_weights
from fl2fast.engine.world import ClientStore
from fl2fast.methods import flfl
from fl2fast.methods.method import Batch, ServerPart
from fl2fast.methods.parts import ce_grads
from fl2fast.models import find_model
from fl2fast.models.network import Network
from fl2fast.optim import SGD


def batch_of(sureness: str, masked: bool, lanes: torch.Tensor) -> Batch:
    shape = (len(lanes), 4)
    row = torch.ones(shape, dtype=torch.bool) if masked else None
    sure = torch.full(shape, sureness == "all")
    sure[:, 0] = sureness != "none"
    return Batch(
        lane_L=lanes,
        view_LBCHW=torch.zeros(*shape, 3, 16, 16),
        y_LB=torch.zeros(shape, dtype=torch.int64),
        row_LB=row,
        keep_LB=torch.ones(shape, dtype=torch.bool),
        sure_LB=sure,
        sureness=sureness,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("lowering", ["loop", "vmap", "grouped", "cores"])
@pytest.mark.parametrize("sureness", ["none", "some", "all"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_step_never_reads_a_value(lowering: str, sureness: str, masked: bool) -> None:
    """Fake tensors hold no data: .item() and its kin raise, on a CPU as on a GPU."""
    client = flfl().client
    assert client is not None
    network = Network.of(find_model("wrn-10-1")(10), lowering, torch.zeros(()))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        lanes = mode.from_tensor(torch.tensor([0, 3, 4]))
        params = torch.zeros(5, network.layout.width)
        batch = batch_of(sureness, masked, lanes)
        rate = torch.zeros(())
        step = Step.of(client, network, params[0])
        local_step(network, step, SGD(), rate, params, params.clone(), batch)


def test_lanes_outside_a_batch_stay_untouched() -> None:
    client = flfl().client
    assert client is not None
    network = Network.of(find_model("cnn")(10), "grouped", torch.zeros(()))
    draws = torch.Generator().manual_seed(0)
    params = torch.randn(5, network.layout.width, generator=draws)
    buffer = torch.randn(5, network.layout.width, generator=draws)
    batch = batch_of("some", True, torch.tensor([0, 3]))
    moved, moved_buffer = train_lanes(
        Cores(network), client, SGD(), 0.1, params, buffer, [Stream(2, iter([batch, batch]))]
    )
    for lane in range(5):
        still = lane not in (0, 3)
        assert torch.equal(moved[lane], params[lane]) == still
        assert torch.equal(moved_buffer[lane], buffer[lane]) == still


def test_selection_is_a_keyed_sorted_subset() -> None:
    chosen = select([3, 4], 20, 7, round=2)
    assert chosen.shape == (2, 7)
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen[1], select([4], 20, 7, round=2)[0])
    assert not np.array_equal(chosen[0], select([3], 20, 7, round=3)[0])
    counts = np.bincount(np.concatenate([select([0], 20, 5, r)[0] for r in range(400)]))
    assert counts.min() > 60  # expected 100, deviation 8.7


def test_weights_sum_to_one_and_survive_zero() -> None:
    beta = aggregation_weights(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    assert beta.tolist() == [[0.25, 0.75], [0.5, 0.5]]


def test_momentum_is_kept_per_client_that_trained() -> None:
    store = ClientStore()
    like = torch.zeros(3)
    assert torch.equal(store.take([(0, 1)], like), torch.zeros(1, 3))
    store = store.put([(0, 1), (1, 1)], torch.tensor([[1.0, 1, 1], [2, 2, 2]]))
    assert store.take([(1, 1), (0, 2), (0, 1)], like)[:, 0].tolist() == [2.0, 0.0, 1.0]
    assert len(store.rows) == 2


def test_the_schedule_is_stepped_once_a_round() -> None:
    made = fl2fast.experiment(rounds=4, lr=0.1)
    rates = [made.learning_rate(r) for r in (1, 2, 3, 4)]
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=4)
    for rate in rates:
        assert rate == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    constant = fl2fast.experiment(rounds=4, lr=0.1, schedule="constant")
    assert constant.learning_rate(4) == 0.1


def test_empty_clients_vote_with_the_broadcast_weights() -> None:
    """A lane without a step returns what it was given (released code; never happens under CAT)."""
    cores = Cores(Network.of(find_model("cnn")(10), "loop", torch.zeros(())))
    params = torch.ones(2, 3)
    moved, _ = train_lanes(cores, ServerPart(ce_grads), SGD(), 0.1, params, params, [])
    assert torch.equal(moved, params)


@pytest.mark.cuda
def test_a_round_on_cuda_equals_the_cpu(cuda: torch.device) -> None:
    settings = {"train_size": 400, "test_size": 80, "labels": 20, "clients": 4, "cohort": 2}
    runs = []
    for device in ("cpu", str(cuda)):
        made = fl2fast.experiment(
            device=device, dtype="float64", rounds=1, pretrain=1, epochs=1, **settings
        )
        runs.append(next(fl2fast.simulate(fl2fast.build_world(made))).state.params_SP.cpu())
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-8, atol=1e-8)
