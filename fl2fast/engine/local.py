"""Local training of stacked learners. Shapes: L lanes, G lanes of one wave, P columns of a row."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fl2fast.engine.cores import Cores, Stream
from fl2fast.experiment import Experiment
from fl2fast.kernels.sgd_step import sgd_step
from fl2fast.methods.method import Batch, GradFn, Part, SettleFn
from fl2fast.models.network import Network
from fl2fast.optim import SGD

BACKEND = "inductor"  # of torch.compile
MOST_GRAPHS = 256  # kinds of waves are few (see data.plan), but each network has its own


def make_sgd(experiment: Experiment) -> SGD:
    """The optimiser that clients and server share."""
    e = experiment
    return SGD(e.momentum, weight_decay=e.weight_decay, clip=e.clip)


class Step(NamedTuple):
    """What a method's part does in one step."""

    grads: GradFn
    trained_P: Tensor | None  # bool: the columns that SGD moves; None: all
    settle: SettleFn | None

    @staticmethod
    def of(part: Part, network: Network, row_P: Tensor) -> "Step":
        trained_P = None if part.trains is None else part.trains(network, row_P)
        return Step(part.grads, trained_P, part.settle)


def local_step(
    network: Network,
    step: Step,
    sgd: SGD,
    lr: Tensor,
    params_LP: Tensor,
    buffer_LP: Tensor,
    batch: Batch,
) -> None:
    """One step of the batch's lanes, in place; every other lane stays untouched."""
    params_GP, buffer_GP = params_LP[batch.lane_L], buffer_LP[batch.lane_L]
    rate = lr if batch.lr is None else batch.lr
    move = _compiled(network.weights_P.device.type) if network.execution.compiled else moved
    params_GP, buffer_GP = move(network, step, sgd, rate, params_GP, buffer_GP, batch)
    params_LP.index_copy_(0, batch.lane_L, params_GP)
    buffer_LP.index_copy_(0, batch.lane_L, buffer_GP)


def moved(
    network: Network,
    step: Step,
    sgd: SGD,
    lr: Tensor,
    params_GP: Tensor,
    buffer_GP: Tensor,
    batch: Batch,
) -> tuple[Tensor, Tensor]:
    """The batch's lanes after one step, (params_GP, buffer_GP): what is compiled."""
    grad_GP, trained_P = step.grads(network, params_GP, batch), step.trained_P
    slope_GP = grad_GP if trained_P is None else torch.where(trained_P, grad_GP, 0.0)
    moved_GP, moved_buffer_GP = _descend(network, sgd, lr, params_GP, buffer_GP, slope_GP)
    if trained_P is not None:
        moved_GP = torch.where(trained_P, moved_GP, params_GP + grad_GP)
        moved_buffer_GP = torch.where(trained_P, moved_buffer_GP, buffer_GP)
    return moved_GP if step.settle is None else step.settle(network, moved_GP), moved_buffer_GP


def _descend(
    network: Network, sgd: SGD, lr: Tensor, params_GP: Tensor, buffer_GP: Tensor, grad_GP: Tensor
) -> tuple[Tensor, Tensor]:
    if "sgd" in network.execution.kernels:
        sgd_options = sgd.momentum, sgd.weight_decay, sgd.clip, sgd.nesterov
        return sgd_step(params_GP, buffer_GP, grad_GP, lr, *sgd_options)
    return sgd.step(params_GP, buffer_GP, grad_GP, lr)


@cache
def _compiled(device_type: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """`moved` as one graph per kind of wave; on CUDA replayed without the host's part of it.

    A step's results are copied out before the next step may overwrite them.
    """
    mode = "reduce-overhead" if device_type == "cuda" else None
    compile: Any = torch.compile  # whose types know no recompile_limit
    return compile(
        moved,
        fullgraph=True,
        dynamic=False,
        backend=BACKEND,
        mode=mode,
        recompile_limit=MOST_GRAPHS,
    )


def train_lanes(
    cores: Cores,
    part: Part,
    sgd: SGD,
    lr: float,
    params_LP: Tensor,
    buffer_LP: Tensor,
    streams: Sequence[Stream[Batch]],
) -> tuple[Tensor, Tensor]:
    """Fold the batches into the learners: the trained (params_LP, buffer_LP)."""
    params_LP, buffer_LP = params_LP.clone(), buffer_LP.clone()
    rate = params_LP.new_tensor(lr)  # a tensor: another value is no other program
    step = Step.of(part, cores.network, params_LP[0])

    def take(network: Network, batch: Batch) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        local_step(network, step, sgd, rate, params_LP, buffer_LP, batch)

    cores.fold(take, streams)
    return params_LP, buffer_LP
