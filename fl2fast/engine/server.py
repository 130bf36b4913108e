"""What the server does with the clients' models and its own labels.

Shapes: S seeds, K cohort, R labelled rows, P parameters, Q norm channels.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from fl2fast import rng
from fl2fast.data.plan import select
from fl2fast.engine.batches import Source, Targets, make_batches
from fl2fast.engine.local import make_sgd, train_lanes
from fl2fast.engine.streams import plan_streams
from fl2fast.engine.world import Lanes, ServerState, World
from fl2fast.methods.method import ClientPart
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


def absorb(
    world: World, client: ClientPart, state: ServerState, clients_LP: Tensor, weight_L: Tensor
) -> tuple[ServerState, Tensor]:
    """Aggregate the columns that clients share: the new state, and the weights used, beta_SK."""
    e = world.experiment
    weight_SK = weight_L.to(clients_LP.dtype).view(e.seeds, e.cohort)
    beta_SK = aggregation_weights(weight_SK)
    old = state.params_SP, state.aggregate_momentum_SP
    clients_SKP = clients_LP.unflatten(0, weight_SK.shape)
    new = aggregate(*old, clients_SKP, beta_SK, e.aggregate_momentum)
    moves_SP = torch.ones_like(old[0], dtype=torch.bool)
    if client.shares is not None:
        moves_SP &= client.shares(world.network, old[0][0])
    if client.waits:
        moves_SP &= weight_SK.sum(-1, keepdim=True) > 0
    params_SP, momentum_SP = (torch.where(moves_SP, b, a) for a, b in zip(old, new, strict=True))
    return state._replace(params_SP=params_SP, aggregate_momentum_SP=momentum_SP), beta_SK


def fine_tune(
    world: World,
    state: ServerState,
    round: int,
    lr: float,
    call: int = 0,
    frozen: Collection[int] = (),
) -> ServerState:
    """The server trains on its labelled rows, all seeds stacked, but for frozen ones."""
    e, server = world.experiment, world.method.server
    if server is None:
        return state
    lanes = Lanes.of(
        e.seed_list,
        [call] * e.seeds,
        [split.labelled for split in world.splits],
        world.device,
    )
    streams = plan_streams(
        world.server,
        lanes,
        np.ones(lanes.row_LM.shape, dtype=bool) & lanes.taking_part(frozen)[:, None],
        None,
        purpose="server shuffle",
        round=round,
        epochs=e.server_epochs,
        batch_size=e.server_batch_size,
        chunk=e.chunk,
    )
    source = Source(world, lanes, server.views, "server view", round)
    targets = Targets(world.truth[lanes.row_LM], lanes.live_LM, None)
    params_SP, momentum_SP = train_lanes(
        world.server,
        server,
        make_sgd(e),
        lr,
        state.params_SP,
        state.server_momentum_SP,
        make_batches(source, streams, targets),
    )
    return state._replace(params_SP=params_SP, server_momentum_SP=momentum_SP)


def mean_moments(seen: Sequence[tuple[Stats, int]]) -> Stats:
    """sBN: the weighted mean over batches of each batch's mean and unbiased variance."""
    total = sum(weight for _, weight in seen)
    mean_Q = torch.stack([weight * stats.mean_Q for stats, weight in seen]).sum(0)
    var_Q = torch.stack([weight * stats.var_Q for stats, weight in seen]).sum(0)
    return Stats(mean_Q / total, var_Q / total)


@torch.no_grad()
def recalibrate_all(world: World, state: ServerState, round: int) -> ServerState:
    """New statistics for every seed's global model, for the test now and the labels next round."""
    e = world.experiment
    if not world.network.norms.names:
        none = state.params_SP.new_zeros(0)
        return state._replace(stats_S=(Stats(none, none),) * e.seeds)
    cohorts = select(e.seed_list, e.clients, e.cohort, round + 1)
    plans = [_recalibration_batches(world, s, cohorts[s], round) for s in range(e.seeds)]
    models_S = world.models(state)

    def moments(network: Network, batch: tuple[int, np.ndarray]) -> Stats:
        s, rows = batch
        x = world.inputs.clean(torch.from_numpy(rows).to(world.device))
        return network.moments(models_S[s], x)

    seen: list[list[tuple[Stats, int]]] = [[] for _ in plans]
    for part in (0, 1):  # labelled batches are small, the others large: one kind at a time
        batches = [(s, rows) for s, plan in enumerate(plans) for rows in plan[part]]
        for (s, rows), found in zip(batches, world.clients.map(moments, batches), strict=True):
            seen[s].append((found, len(rows) if e.sbn_weight == "per_sample" else 1))
    return state._replace(stats_S=tuple(map(mean_moments, seen)))


def _recalibration_batches(
    world: World, s: int, cohort: np.ndarray, round: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Batches of labelled rows, and of unlabelled ones: everybody's, or the next cohort's."""
    e, split = world.experiment, world.splits[s]
    unlabelled = split.unlabelled
    if e.sbn_data == "active":
        unlabelled = unlabelled[
            np.isin(unlabelled, np.concatenate([split.clients[c] for c in cohort]))
        ]
    if e.sbn_order == "shuffled":
        order = rng.generator(e.seed_list[s], "recalibration order", round)
        unlabelled = order.permutation(unlabelled)
    sizes = (e.sbn_labelled_batch, e.sbn_unlabelled_batch)
    labelled, unlabelled = (
        np.split(rows, range(size, len(rows), size))
        for rows, size in zip((split.labelled, unlabelled), sizes, strict=True)
    )
    return labelled, unlabelled
