"""Training on labelled and unlabelled rows in one place: one lane a seed, no clients.

A round is `epochs` passes over all training rows, ceil(rows / unlabelled batch) steps each. Every
step also takes labelled rows, from an endless row of shuffles of the server's.

Shapes: S seeds, G seeds of one wave, B unlabelled rows, R labelled rows.
"""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fl2fast import rng
from fl2fast.data.augment import ship
from fl2fast.data.plan import Wave
from fl2fast.data.views import draw_views
from fl2fast.engine.batches import Source, Targets, make_batches
from fl2fast.engine.cores import Stream
from fl2fast.engine.local import make_sgd, train_lanes
from fl2fast.engine.streams import plan_streams
from fl2fast.engine.world import Lanes, ServerState, World
from fl2fast.experiment import Experiment
from fl2fast.methods.method import Batch, CentralPart, Labelled


def train_centrally(
    world: World, central: CentralPart, state: ServerState, round: int, frozen: Collection[int]
) -> ServerState:
    """The round's steps of every seed that is not frozen; the rate falls from step to step."""
    e = world.experiment
    everything = [np.concatenate((split.unlabelled, split.labelled)) for split in world.splits]
    lanes = Lanes.of(e.seed_list, [0] * e.seeds, everything, world.device)
    num_rows = lanes.row_LM.shape[1]  # the same for every seed: all rows
    streams = plan_streams(
        world.server,
        lanes,
        np.ones(lanes.row_LM.shape, dtype=bool) & lanes.taking_part(frozen)[:, None],
        None,
        purpose="central shuffle",
        round=round,
        epochs=e.epochs,
        batch_size=central.num_unlabelled,
        chunk=e.chunk,
    )
    per_round = e.epochs * -(-num_rows // central.num_unlabelled)
    nothing_known = torch.zeros_like(lanes.row_LM)
    targets = Targets(nothing_known, lanes.live_LM, None)
    source = Source(world, lanes, central.views, "central view", round)
    batches = make_batches(source, streams, targets)
    params_SP, momentum_SP = train_lanes(
        world.server,
        central,
        make_sgd(e),
        e.lr,
        state.params_SP,
        state.server_momentum_SP,
        [
            Stream(own.size, _with_labels(source, central, own.items, waves, per_round))
            for own, waves in zip(batches, streams, strict=True)
        ],
    )
    return state._replace(params_SP=params_SP, server_momentum_SP=momentum_SP)


def num_rows_of_a_round(world: World) -> int:
    """Unlabelled and labelled rows that are trained on, all seeds together."""
    rows = (len(split.unlabelled) + len(split.labelled) for split in world.splits)
    return world.experiment.epochs * sum(rows)


def learning_rate(experiment: Experiment, share: float) -> float:
    """After a share of all steps: cos(7 pi share / 16), by custom; `schedule` has no say."""
    return experiment.lr * math.cos(7 * math.pi * share / 16)


def _with_labels(
    source: Source,
    central: CentralPart,
    batches: Iterator[Batch],
    waves: Sequence[Wave],
    per_round: int,
) -> Iterator[Batch]:
    """Every batch with its labelled rows and its learning rate; a wave's lanes are in step."""
    e = source.world.experiment
    first, last = (source.round - 1) * per_round, e.rounds * per_round
    done = np.zeros(e.seeds, dtype=np.int64)
    for batch, wave in zip(batches, waves, strict=True):
        step = first + int(done[wave.lane_G[0]])
        done[np.unique(wave.lane_G)] += 1
        lr = batch.view_LBCHW.new_full((), learning_rate(e, step / last))
        labelled = _labelled(source, wave.lane_G, step, central.num_labelled)
        yield batch._replace(labelled=labelled, lr=lr)


def _labelled(source: Source, lane_G: np.ndarray, step: int, num: int) -> Labelled:
    """Rows step*num .. step*num + num - 1 of every seed's endless row of shuffles."""
    world, place_R = source.world, step * num + np.arange(num)
    seed_G = source.lanes.seed_L[lane_G]
    rows_GR = np.stack(
        [
            _endless(world.splits[g].labelled, s, place_R)
            for g, s in zip(lane_G, seed_G, strict=True)
        ]
    )
    views: list[Tensor] = []
    for seed, rows in zip(seed_G, rows_GR, strict=True):
        draws = draw_views(int(seed), "server view", source.round, 0, step, place_R - place_R[0], 0)
        views.append(world.inputs.views(ship(rows, world.device), draws, "weak"))
    return Labelled(torch.stack(views), world.truth[ship(rows_GR, world.device)])


def _endless(rows: np.ndarray, seed: int, place_R: np.ndarray) -> np.ndarray:
    turn_R, within_R = np.divmod(place_R, len(rows))
    order = {
        int(turn): np.argsort(
            rng.shuffle_keys(int(seed), "central labelled", int(turn), 0, 0, np.arange(len(rows))),
            kind="stable",
        )
        for turn in np.unique(turn_R)
    }
    return np.array([rows[order[int(t)][w]] for t, w in zip(turn_R, within_R, strict=True)])
