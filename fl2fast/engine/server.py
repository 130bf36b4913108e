"""What the server does with the clients' models and its own labels.

Shapes: S seeds, K cohort, R labelled rows, P parameters, Q norm channels.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fl2fast import rng
from fl2fast.data.augment import normalise
from fl2fast.data.plan import make_waves, select, shuffled_batches
from fl2fast.engine.batches import Targets, make_batches
from fl2fast.engine.local import make_sgd, train_lanes
from fl2fast.engine.world import Lanes, ServerState, World
from fl2fast.models.network import Network, Stats


def aggregation_weights(weight_SK: Tensor) -> Tensor:
    """Weights that sum to one over each cohort; uniform where a cohort's are all zero."""
    total_S1 = weight_SK.sum(-1, keepdim=True)
    share = weight_SK / torch.where(total_S1 > 0, total_S1, 1.0)
    return torch.where(total_S1 > 0, share, 1.0 / weight_SK.shape[-1])


def aggregate(
    params_SP: Tensor, momentum_SP: Tensor, clients_SKP: Tensor, beta_SK: Tensor, decay: float
) -> tuple[Tensor, Tensor]:
    """W <- W - buf with buf <- decay*buf + (W - sum_k beta_k W_k): the new (params, buf)."""
    mean_SP = torch.einsum("sk,skp->sp", beta_SK, clients_SKP)
    momentum_SP = decay * momentum_SP + (params_SP - mean_SP)
    return params_SP - momentum_SP, momentum_SP


def fine_tune(
    world: World, state: ServerState, round: int, lr: float, call: int = 0
) -> ServerState:
    """Cross-entropy on the server's labelled rows, all seeds stacked."""
    e = world.experiment
    lanes = Lanes.of(
        e.seed_list,
        [call] * e.seeds,
        [split.labelled for split in world.splits],
        world.device,
    )
    steps = shuffled_batches(
        np.ones(lanes.row_LM.shape, dtype=bool),
        lanes.seed_L,
        lanes.client_L,
        purpose="server shuffle",
        round=round,
        epochs=e.server_epochs,
        batch_size=e.server_batch_size,
    )
    waves = make_waves(steps, None, batch_size=e.server_batch_size, chunk=e.chunk)
    targets = Targets(world.truth[lanes.row_LM], lanes.live_LM, None)
    params_SP, momentum_SP = train_lanes(
        world.network,
        world.method.server_grads,
        make_sgd(e, lr),
        state.params_SP,
        state.server_momentum_SP,
        make_batches(world, waves, lanes, targets, view="weak", purpose="server view", round=round),
    )
    return state._replace(params_SP=params_SP, server_momentum_SP=momentum_SP)


@torch.no_grad()
def recalibrate(
    network: Network, params_P: Tensor, batches: Iterable[Tensor], *, per_sample: bool = False
) -> Stats:
    """sBN: the mean over batches of each batch's mean and unbiased variance."""
    mean_Q, var_Q, total = 0.0, 0.0, 0
    for x_BCHW in batches:
        moments = network.moments(params_P, x_BCHW)
        weight = len(x_BCHW) if per_sample else 1
        mean_Q, var_Q = mean_Q + weight * moments.mean_Q, var_Q + weight * moments.var_Q
        total += weight
    assert isinstance(mean_Q, Tensor), "recalibration needs at least one batch"
    assert isinstance(var_Q, Tensor)
    return Stats(mean_Q / total, var_Q / total)


def recalibrate_all(world: World, state: ServerState, round: int) -> ServerState:
    """New statistics for every seed's global model, for the test now and the labels next round."""
    e = world.experiment
    cohorts = select(e.seed_list, e.clients, e.cohort, round + 1)
    stats = []
    for s in range(e.seeds):
        rows = _recalibration_batches(world, s, cohorts[s], round)
        batches = (clean_views(world, batch) for batch in rows)
        per_sample = e.sbn_weight == "per_sample"
        stats.append(recalibrate(world.network, state.params_SP[s], batches, per_sample=per_sample))
    return state._replace(stats_S=tuple(stats))


def _recalibration_batches(
    world: World, s: int, cohort: np.ndarray, round: int
) -> list[np.ndarray]:
    """Labelled rows, then unlabelled ones: everybody's, or the next cohort's."""
    e, split = world.experiment, world.splits[s]
    unlabelled = split.unlabelled
    if e.sbn_data == "active":
        unlabelled = unlabelled[
            np.isin(unlabelled, np.concatenate([split.clients[c] for c in cohort]))
        ]
    if e.sbn_order == "shuffled":
        order = rng.generator(e.seed_list[s], "recalibration order", round)
        unlabelled = order.permutation(unlabelled)
    return [
        *np.split(
            split.labelled, range(e.sbn_labelled_batch, len(split.labelled), e.sbn_labelled_batch)
        ),
        *np.split(
            unlabelled, range(e.sbn_unlabelled_batch, len(unlabelled), e.sbn_unlabelled_batch)
        ),
    ]


def clean_views(world: World, rows: np.ndarray) -> Tensor:
    """Un-augmented, normalised training images."""
    chosen = world.images[torch.from_numpy(rows).to(world.device)]
    return normalise(chosen, world.mean, world.std)
