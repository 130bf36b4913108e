"""Local training of stacked learners. Shapes: L lanes, G lanes of one wave, P parameters."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fl2fast.engine.cores import Cores, Stream
from fl2fast.experiment import Experiment
from fl2fast.kernels.sgd_step import sgd_step
from fl2fast.methods.method import Batch, GradFn
from fl2fast.models.network import Network
from fl2fast.optim import SGD

BACKEND = "inductor"  # of torch.compile
MOST_GRAPHS = 256  # kinds of waves are few (see data.plan), but each network has its own


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
    moved = _compiled(network.weights_P.device.type) if network.execution.compiled else _moved
    params_GP, buffer_GP = moved(network, grads, sgd, lr, params_GP, buffer_GP, batch)
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
    grad_GP = grads(network, params_GP, batch)
    if "sgd" in network.execution.kernels:
        sgd_options = sgd.momentum, sgd.weight_decay, sgd.clip, sgd.nesterov
        return sgd_step(params_GP, buffer_GP, grad_GP, lr, *sgd_options)
    return sgd.step(params_GP, buffer_GP, grad_GP, lr)


@cache
def _compiled(device_type: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """`_moved` as one graph per kind of wave; on CUDA replayed without the host's part of it.

    A step's results are copied out before the next step may overwrite them.
    """
    mode = "reduce-overhead" if device_type == "cuda" else None
    compile: Any = torch.compile  # whose types know no recompile_limit
    return compile(
        _moved,
        fullgraph=True,
        dynamic=False,
        backend=BACKEND,
        mode=mode,
        recompile_limit=MOST_GRAPHS,
    )


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
        torch.compiler.cudagraph_mark_step_begin()
        local_step(network, grads, sgd, rate, params_LP, buffer_LP, batch)

    cores.fold(step, streams)
    return params_LP, buffer_LP
