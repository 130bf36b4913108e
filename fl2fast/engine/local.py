"""Local training of stacked learners. Shapes: L lanes, G lanes of one wave, P parameters."""

from collections.abc import Sequence

from torch import Tensor

from fl2fast.engine.cores import Cores, Stream
from fl2fast.experiment import Experiment
from fl2fast.methods.method import Batch, GradFn
from fl2fast.models.network import Network
from fl2fast.optim import SGD


def make_sgd(experiment: Experiment) -> SGD:
    """The optimiser that clients and server share."""
    e = experiment
    return SGD(e.momentum, weight_decay=e.weight_decay, clip=e.clip)


def local_step(
    network: Network,
    grads: GradFn,
    sgd: SGD,
    lr: Tensor,
    params_LP: Tensor,
    buffer_LP: Tensor,
    batch: Batch,
) -> None:
    """One step of the batch's lanes, in place; every other lane stays untouched."""
    params_GP, buffer_GP = params_LP[batch.lane_L], buffer_LP[batch.lane_L]
    params_GP, buffer_GP = _moved(network, grads, sgd, lr, params_GP, buffer_GP, batch)
    params_LP.index_copy_(0, batch.lane_L, params_GP)
    buffer_LP.index_copy_(0, batch.lane_L, buffer_GP)


def _moved(
    network: Network,
    grads: GradFn,
    sgd: SGD,
    lr: Tensor,
    params_GP: Tensor,
    buffer_GP: Tensor,
    batch: Batch,
) -> tuple[Tensor, Tensor]:
    return sgd.step(params_GP, buffer_GP, grads(network, params_GP, batch), lr)


def train_lanes(
    cores: Cores,
    grads: GradFn,
    sgd: SGD,
    lr: float,
    params_LP: Tensor,
    buffer_LP: Tensor,
    streams: Sequence[Stream[Batch]],
) -> tuple[Tensor, Tensor]:
    """Fold the batches into the learners: the trained (params_LP, buffer_LP)."""
    params_LP, buffer_LP = params_LP.clone(), buffer_LP.clone()
    rate = params_LP.new_tensor(lr)  # a tensor: another value is no other program

    def step(network: Network, batch: Batch) -> None:
        local_step(network, grads, sgd, rate, params_LP, buffer_LP, batch)

    cores.fold(step, streams)
    return params_LP, buffer_LP
