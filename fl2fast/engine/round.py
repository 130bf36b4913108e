"""One communication round, in the order in which it happens.

Shapes: S seeds, K cohort, L = S*K lanes, M rows of a client, Y classes, P columns of a learner's
row.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl2fast.data.mixing import draw_partners
from fl2fast.data.plan import select
from fl2fast.engine.batches import Mixing, Source, Targets, make_batches
from fl2fast.engine.central import train_centrally
from fl2fast.engine.cores import Stream
from fl2fast.engine.label import pseudo_label
from fl2fast.engine.local import make_sgd, train_lanes
from fl2fast.engine.server import absorb, fine_tune, recalibrate_all
from fl2fast.engine.streams import plan_streams
from fl2fast.engine.visit import probe, start_rows
from fl2fast.engine.world import ClientStore, Federation, Finite, Lanes, ServerState, World
from fl2fast.methods.method import Batch, ClientPart, Mix, PseudoLabels

Phase = Callable[[str], AbstractContextManager[None]]


class LabelReport(NamedTuple):
    """A round's pseudo-labels on the host, for its plan and its record: one lane a row."""

    live_LM: np.ndarray
    row_LM: np.ndarray
    y_LM: np.ndarray
    keep_LM: np.ndarray
    sure_LM: np.ndarray | None
    tau_L: np.ndarray | None
    tau_LY: np.ndarray | None
    weight_L: np.ndarray  # as the method gives them
    client_L: np.ndarray
    num_trained: int = 0  # rows that clients trained on, over all steps


class Outcome(NamedTuple):
    """What a round made."""

    federation: Federation
    labels: LabelReport | None  # None: no client took part
    finite: Finite


def warm_up(world: World, state: ServerState, phase: Phase) -> Outcome:
    """Pretraining on the labels, then the first statistics: what round 1 starts from."""
    with phase("pretrain"):
        for call in range(world.experiment.pretrain):
            state = fine_tune(world, state, 0, world.experiment.lr, call)
    with phase("recalibrate"):
        state = recalibrate_all(world, state, 0)
    return Outcome(Federation(0, state, ClientStore()), None, Finite.of(state, None))


def run_round(world: World, before: Federation, phase: Phase, *, tested: bool) -> Outcome:
    """Clients, aggregation, server, statistics: the next federation, nothing of `before` changed.

    Statistics that neither a test of this round nor the next labels would read are not made.
    """
    method, report, finite_L = world.method, None, None
    round, state, store = before.round + 1, before.state, before.store
    if method.client is not None:
        state, store, report, finite_L = _client_phase(world, method.client, before, phase)
    if method.central is not None:
        with phase("local_training"):
            state = train_centrally(world, method.central, state, round, before.frozen)
    if method.server is not None:
        with phase("fine_tune"):
            lr = world.experiment.learning_rate(round)
            state = fine_tune(world, state, round, lr, frozen=before.frozen)
    if tested or (method.client is not None and method.client.predicts):
        with phase("recalibrate"):
            state = recalibrate_all(world, state, round)
    after = before._replace(round=round, state=state, store=store)
    return Outcome(after, report, Finite.of(state, finite_L))


def _client_phase(
    world: World, client: ClientPart, before: Federation, phase: Phase
) -> tuple[ServerState, ClientStore, LabelReport, Tensor]:
    e, round, state = world.experiment, before.round + 1, before.state
    ids_SK = select(e.seed_list, e.clients, e.cohort, round)
    lanes = _lanes_of(world, ids_SK)
    with phase("pseudo_label"):
        labels = pseudo_label(world, client, state, lanes, round)
        weight_L = client.weight(labels)
        report = _read_labels(lanes, labels, weight_L)
    with phase("plan"):
        rows_LM = report.keep_LM if client.batches == "kept" else report.live_LM
        rows_LM = rows_LM & lanes.taking_part(before.frozen)[:, None]
        streams = plan_streams(
            world.clients,
            lanes,
            rows_LM,
            report.sure_LM,
            purpose="client shuffle",
            round=round,
            epochs=e.epochs,
            batch_size=e.batch_size,
            chunk=e.chunk,
        )
        mixing = None if client.mix is None else _mixing(client.mix, lanes, report, round, e.epochs)
        source = Source(world, lanes, client.views, "client view", round, mixing)
        batches = make_batches(source, streams, Targets(*labels[:3]))
    with phase("local_training"):
        active = sorted({int(lane) for waves in streams for w in waves for lane in w.lane_G})
        params_LP, store, finite_L = _train_clients(world, client, before, lanes, active, batches)
        finite_L = finite_L & weight_L.isfinite()
    with phase("aggregate"):
        state, _ = absorb(world, client, state, params_LP, weight_L)
    return state, store, report._replace(num_trained=e.epochs * int(rows_LM.sum())), finite_L


def _train_clients(
    world: World,
    client: ClientPart,
    before: Federation,
    lanes: Lanes,
    active: list[int],
    batches: list[Stream[Batch]],
) -> tuple[Tensor, ClientStore, Tensor]:
    """What the cohort reports after local training, params_LP; what it keeps; what is finite."""
    e, network, round = world.experiment, world.network, before.round + 1
    state, store = before.state, before.store
    keys = [(int(seed), int(c)) for seed, c in zip(lanes.seed_L, lanes.client_L, strict=True)]
    start_LP = start_rows(world, client.memory, state, store, keys, round)
    width = state.params_SP.shape[-1]
    buffer_LP = torch.zeros_like(start_LP)
    persists = e.client_momentum == "persist"
    if persists:
        buffer_LP[:, :width] = store.take(keys, state.params_SP[0])
    params_LP, buffer_LP = train_lanes(
        world.clients,
        client,
        make_sgd(e),
        e.learning_rate(round),
        start_LP,
        buffer_LP,
        batches,
    )
    finite_L = Finite.rows(params_LP, buffer_LP)
    if client.report is not None:
        params_LP = client.report(network, start_LP, params_LP)
    trained = [keys[lane] for lane in active]
    if persists:
        store = store.put(trained, buffer_LP[active, :width])
    params_LP = params_LP[:, :width]
    if client.memory is not None:
        kept_LQ = client.memory.keep(network, params_LP[active], probe(world))
        store = store.remember(trained, kept_LQ)
    return params_LP, store, finite_L


def _mixing(mix: Mix, lanes: Lanes, report: LabelReport, round: int, epochs: int) -> Mixing:
    drawn = draw_partners(
        mix,
        report.live_LM,
        report.keep_LM,
        lanes.seed_L,
        lanes.client_L,
        round=round,
        epochs=epochs,
    )
    return Mixing(mix, drawn)


def _lanes_of(world: World, ids_SK: np.ndarray) -> Lanes:
    e = world.experiment
    rows = [split.clients[c] for split, ids in zip(world.splits, ids_SK, strict=True) for c in ids]
    seeds = [seed for seed in e.seed_list for _ in range(e.cohort)]
    return Lanes.of(seeds, list(map(int, ids_SK.ravel())), rows, world.device)


def _read_labels(lanes: Lanes, labels: PseudoLabels, weight_L: Tensor) -> LabelReport:
    """The one place where a round's values leave the device."""

    def host(tensor: Tensor | None) -> np.ndarray | None:
        return None if tensor is None else tensor.cpu().numpy()

    on_host = map(host, (lanes.live_LM, lanes.row_LM, *labels, weight_L))
    return LabelReport(*on_host, lanes.client_L)  # type: ignore[arg-type]
