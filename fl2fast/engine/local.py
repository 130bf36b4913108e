"""Local training of stacked learners. Shapes: L lanes, G lanes of one wave, P parameters."""

from collections.abc import Iterable

from torch import Tensor

from fl2fast.experiment import Experiment
from fl2fast.methods.method import Batch, GradFn
from fl2fast.models.network import Network
from fl2fast.optim import SGD


def make_sgd(experiment: Experiment, lr: float) -> SGD:
    """The optimiser that clients and server share."""
    e = experiment
    return SGD(lr, e.momentum, weight_decay=e.weight_decay, clip=e.clip)


def local_step(
    network: Network, grads: GradFn, sgd: SGD, params_LP: Tensor, buffer_LP: Tensor, batch: Batch
) -> None:
    """One step of the batch's lanes, in place; every other lane stays untouched."""
    params_GP, buffer_GP = params_LP[batch.lane_L], buffer_LP[batch.lane_L]
    grad_GP = grads(network, params_GP, batch)
    params_GP, buffer_GP = sgd.step(params_GP, buffer_GP, grad_GP)
    params_LP.index_copy_(0, batch.lane_L, params_GP)
    buffer_LP.index_copy_(0, batch.lane_L, buffer_GP)


def train_lanes(
    network: Network,
    grads: GradFn,
    sgd: SGD,
    params_LP: Tensor,
    buffer_LP: Tensor,
    batches: Iterable[Batch],
) -> tuple[Tensor, Tensor]:
    """Fold the batches into the learners: the trained (params_LP, buffer_LP)."""
    params_LP, buffer_LP = params_LP.clone(), buffer_LP.clone()
    for batch in batches:
        local_step(network, grads, sgd, params_LP, buffer_LP, batch)
    return params_LP, buffer_LP
