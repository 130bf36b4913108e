"""One communication round, in the order in which it happens.

Shapes: S seeds, K cohort, L = S*K lanes, M rows of a client, Y classes, P parameters.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl2fast.data.plan import Wave, make_streams, select, shuffled_batches
from fl2fast.engine.batches import Targets, make_batches
from fl2fast.engine.label import pseudo_label
from fl2fast.engine.local import make_sgd, train_lanes
from fl2fast.engine.server import (
    aggregate,
    aggregation_weights,
    fine_tune,
    recalibrate_all,
)
from fl2fast.engine.world import ClientStore, Lanes, ServerState, World
from fl2fast.methods.method import ClientPart, PseudoLabels

Phase = Callable[[str], AbstractContextManager[None]]


class LabelReport(NamedTuple):
    """A round's pseudo-labels on the host, for its plan and its record: one lane a row."""

    live_LM: np.ndarray
    row_LM: np.ndarray
    y_LM: np.ndarray
    keep_LM: np.ndarray
    sure_LM: np.ndarray | None
    tau_L: np.ndarray | None
    num_trained: int = 0  # rows that clients trained on, over all steps


def warm_up(world: World, state: ServerState, phase: Phase) -> ServerState:
    """Pretraining on the labels, then the first statistics: the state before round 1."""
    with phase("pretrain"):
        for call in range(world.experiment.pretrain):
            state = fine_tune(world, state, 0, world.experiment.lr, call)
    with phase("recalibrate"):
        return recalibrate_all(world, state, 0)


def run_round(
    world: World, state: ServerState, store: ClientStore, round: int, phase: Phase, *, tested: bool
) -> tuple[ServerState, LabelReport | None]:
    """Clients, aggregation, server, statistics: the next state, and what the clients labelled.

    Statistics that neither a test of this round nor the next labels would read are not made.
    """
    client, report = world.method.client, None
    if client is not None:
        state, report = _client_phase(world, client, state, store, round, phase)
    with phase("fine_tune"):
        state = fine_tune(world, state, round, world.experiment.learning_rate(round))
    if tested or (client is not None and client.predicts):
        with phase("recalibrate"):
            state = recalibrate_all(world, state, round)
    return state, report


def _client_phase(
    world: World,
    client: ClientPart,
    state: ServerState,
    store: ClientStore,
    round: int,
    phase: Phase,
) -> tuple[ServerState, LabelReport]:
    e = world.experiment
    ids_SK = select(e.seed_list, e.clients, e.cohort, round)
    lanes = _lanes_of(world, ids_SK)
    with phase("pseudo_label"):
        labels = pseudo_label(world, client, state, lanes, round)
        report = _read_labels(lanes, labels)
    with phase("plan"):
        rows_LM = report.keep_LM if client.batches == "kept" else report.live_LM
        steps = shuffled_batches(
            rows_LM,
            lanes.seed_L,
            lanes.client_L,
            purpose="client shuffle",
            round=round,
            epochs=e.epochs,
            batch_size=e.batch_size,
        )
        streams = make_streams(
            steps,
            report.sure_LM,
            batch_size=e.batch_size,
            chunk=e.chunk,
            steady=world.network.execution.compiled,
            alone=world.network.execution.alone,
        )
    with phase("local_training"):
        params_LP = _train_clients(
            world, client, state, store, ids_SK, lanes, labels, streams, round
        )
    with phase("aggregate"):
        weight_SK = client.weight(labels).to(params_LP.dtype).view(ids_SK.shape)
        params_SP, momentum_SP = aggregate(
            state.params_SP,
            state.aggregate_momentum_SP,
            params_LP.unflatten(0, ids_SK.shape),
            aggregation_weights(weight_SK),
            e.aggregate_momentum,
        )
    state = state._replace(params_SP=params_SP, aggregate_momentum_SP=momentum_SP)
    return state, report._replace(num_trained=e.epochs * int(rows_LM.sum()))


def _train_clients(
    world: World,
    client: ClientPart,
    state: ServerState,
    store: ClientStore,
    ids_SK: np.ndarray,
    lanes: Lanes,
    labels: PseudoLabels,
    streams: list[list[Wave]],
    round: int,
) -> Tensor:
    """The cohort's models after local training: params_LP. Their momentum goes to the store."""
    e = world.experiment
    anchor_LP = state.params_SP.repeat_interleave(e.cohort, dim=0)
    keys = [(seed, int(c)) for seed, ids in zip(e.seed_list, ids_SK, strict=True) for c in ids]
    batches = make_batches(
        world,
        streams,
        lanes,
        Targets(labels.y_LM, labels.keep_LM, labels.sure_LM),
        view=client.view,
        purpose="client view",
        round=round,
    )
    persists = e.client_momentum == "persist"
    buffer_LP = store.take(keys, anchor_LP[0]) if persists else torch.zeros_like(anchor_LP)
    params_LP, buffer_LP = train_lanes(
        world.clients,
        client.grads,
        make_sgd(e),
        e.learning_rate(round),
        anchor_LP,
        buffer_LP,
        batches,
    )
    if persists:
        trained = sorted({int(lane) for waves in streams for w in waves for lane in w.lane_G})
        store.put([keys[lane] for lane in trained], buffer_LP[trained])
    return params_LP


def _lanes_of(world: World, ids_SK: np.ndarray) -> Lanes:
    e = world.experiment
    rows = [split.clients[c] for split, ids in zip(world.splits, ids_SK, strict=True) for c in ids]
    seeds = [seed for seed in e.seed_list for _ in range(e.cohort)]
    return Lanes.of(seeds, list(map(int, ids_SK.ravel())), rows, world.device)


def _read_labels(lanes: Lanes, labels: PseudoLabels) -> LabelReport:
    """The one place where a round's values leave the device."""

    def host(tensor: Tensor | None) -> np.ndarray | None:
        return None if tensor is None else tensor.cpu().numpy()

    return LabelReport(*map(host, (lanes.live_LM, lanes.row_LM, *labels[:4])))  # type: ignore[arg-type]
