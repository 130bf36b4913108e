"""One communication round, in the order in which it happens.

Shapes: S seeds, K cohort, L = S*K lanes, M rows of a client, Y classes, P parameters.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch

from fl2fast.data.plan import make_waves, select, shuffled_batches
from fl2fast.engine.batches import Targets, make_batches
from fl2fast.engine.label import pseudo_label
from fl2fast.engine.local import train_lanes
from fl2fast.engine.server import (
    aggregate,
    aggregation_weights,
    fine_tune,
    recalibrate_all,
    server_sgd,
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
    report = None
    lr = world.experiment.learning_rate(round)
    if world.method.client is not None:
        state, report = _client_phase(world, world.method.client, state, store, round, lr, phase)
    with phase("fine_tune"):
        state = fine_tune(world, state, round, lr)
    if tested or (world.method.client is not None and world.method.client.predicts):
        with phase("recalibrate"):
            state = recalibrate_all(world, state, round)
    return state, report


def _client_phase(
    world: World,
    client: ClientPart,
    state: ServerState,
    store: ClientStore,
    round: int,
    lr: float,
    phase: Phase,
) -> tuple[ServerState, LabelReport]:
    e = world.experiment
    ids_SK = select(e.seed_list, e.clients, e.cohort, round)
    lanes = _lanes_of(world, ids_SK)
    with phase("pseudo_label"):
        labels = pseudo_label(world, client, state, lanes, round)
        report = _read_labels(lanes, labels)
    with phase("plan"):
        steps = shuffled_batches(
            report.keep_LM if client.batches == "kept" else report.live_LM,
            lanes.seed_L,
            lanes.client_L,
            purpose="client shuffle",
            round=round,
            epochs=e.epochs,
            batch_size=e.batch_size,
        )
        waves = make_waves(steps, report.sure_LM, batch_size=e.batch_size, chunk=e.chunk)
    with phase("local_training"):
        keys = [(seed, int(c)) for seed, ids in zip(e.seed_list, ids_SK, strict=True) for c in ids]
        anchor_LP = state.params_SP.repeat_interleave(e.cohort, dim=0)
        fresh = e.client_momentum == "fresh"
        buffer_LP = torch.zeros_like(anchor_LP) if fresh else store.take(keys, anchor_LP[0])
        targets = Targets(labels.y_LM, labels.keep_LM, labels.sure_LM)
        batches = make_batches(
            world, waves, lanes, targets, view=client.view, purpose="client view", round=round
        )
        params_LP, buffer_LP = train_lanes(
            world.network, client.grads, server_sgd(world, lr), anchor_LP, buffer_LP, batches
        )
        if not fresh:
            trained = [lane for lane, own in enumerate(steps) if own]
            store.put([keys[lane] for lane in trained], buffer_LP[trained])
    with phase("aggregate"):
        weight_SK = client.weight(labels).to(params_LP.dtype).view(ids_SK.shape)
        params_SP, momentum_SP = aggregate(
            state.params_SP,
            state.aggregate_momentum_SP,
            params_LP.unflatten(0, ids_SK.shape),
            aggregation_weights(weight_SK),
            e.aggregate_momentum,
        )
    num_trained = sum(len(batch.position_B) for own in steps for batch in own)
    state = state._replace(params_SP=params_SP, aggregate_momentum_SP=momentum_SP)
    return state, report._replace(num_trained=num_trained)


def _lanes_of(world: World, ids_SK: np.ndarray) -> Lanes:
    e = world.experiment
    rows = [split.clients[c] for split, ids in zip(world.splits, ids_SK, strict=True) for c in ids]
    seeds = [seed for seed in e.seed_list for _ in range(e.cohort)]
    return Lanes.of(seeds, list(map(int, ids_SK.ravel())), rows, world.device)


def _read_labels(lanes: Lanes, labels: PseudoLabels) -> LabelReport:
    """The one place where a round's values leave the device."""

    def host(tensor: torch.Tensor | None) -> np.ndarray | None:
        return None if tensor is None else tensor.cpu().numpy()

    return LabelReport(*map(host, (lanes.live_LM, lanes.row_LM, *labels[:4])))  # type: ignore[arg-type]
