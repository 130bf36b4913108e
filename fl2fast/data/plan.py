"""Who takes part, and which lanes take which step together.

Lanes are independent, so only the order of a lane's own steps is fixed. A wave is a set of lanes
whose next batches are of one kind (how wide; no row sure, some, or all), so that full batches run
the native batch norm, little is padded, cheap steps stay cheap, a finished lane costs nothing, and
a cap on the lanes of a wave bounds memory. All of this is decided on the host before any step runs.

Batches of like width go together: up to a quarter, a half, three quarters or all of a batch. With
`steady` these are the widths and the number of lanes is one of two, for steps that are compiled or
captured per shape; a wave is filled up with lanes that are in it already and compute the same.

Shapes: S seeds, K cohort, L lanes, G lanes of one wave, M rows of a client, B rows of a batch.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np

from fl2fast import rng
from fl2fast.methods.method import Sureness


class LaneBatch(NamedTuple):
    """One step of one lane."""

    epoch: int
    position_B: np.ndarray  # positions among the client's M rows


class Kind(NamedTuple):
    """What the batches of one wave have in common."""

    width: int
    full: bool  # every row is live
    sureness: Sureness


class Wave(NamedTuple):
    lane_G: np.ndarray
    epoch_G: np.ndarray
    position_GB: np.ndarray  # dead rows repeat the lane's first position
    row_GB: np.ndarray | None  # None: every row is live
    sureness: Sureness


def select(seeds: list[int], num_clients: int, cohort: int, round: int) -> np.ndarray:
    """The cohort of every seed, ids ascending: [S, K]."""
    seed_S1 = np.array(seeds)[:, None]
    keys_SN = rng.shuffle_keys(seed_S1, "select", round, np.arange(num_clients))
    return np.sort(np.argsort(keys_SN, axis=1, kind="stable")[:, :cohort], axis=1)


def shuffled_batches(
    keep_LM: np.ndarray,
    seed_L: np.ndarray,
    client_L: np.ndarray,
    *,
    purpose: str,
    round: int,
    epochs: int,
    batch_size: int,
) -> list[list[LaneBatch]]:
    """Every lane's steps: each epoch a keyed shuffle of its kept rows, the last batch short."""
    num_lanes, num_rows = keep_LM.shape
    epoch, row = np.arange(epochs), np.arange(num_rows)
    place = (round, client_L[:, None, None], epoch[:, None], row)
    keys_LEM = rng.shuffle_keys(seed_L[:, None, None], purpose, *place)
    plan = []
    for lane in range(num_lanes):
        kept = np.flatnonzero(keep_LM[lane])
        steps = []
        for e in range(epochs):
            order = kept[np.argsort(keys_LEM[lane, e, kept], kind="stable")]
            cuts = range(0, len(order), batch_size)
            steps += [LaneBatch(e, order[cut : cut + batch_size]) for cut in cuts]
        plan.append(steps)
    return plan


def make_waves(
    steps: Sequence[Sequence[LaneBatch]],
    sure_LM: np.ndarray | None,
    *,
    batch_size: int,
    chunk: int = 0,
    steady: bool = False,
) -> list[Wave]:
    """Greedily run the kind of step that most lanes are ready for; `chunk` caps a wave's lanes."""
    cap = min(chunk or len(steps), len(steps))
    kinds = [
        [_kind(batch, lane, sure_LM, batch_size) for batch in own] for lane, own in enumerate(steps)
    ]
    done = [0] * len(steps)
    waves = []
    while True:
        ready: dict[Kind, list[int]] = defaultdict(list)
        for lane, own in enumerate(kinds):
            if done[lane] < len(own):
                ready[own[done[lane]]].append(lane)
        if not ready:
            return waves
        kind, lanes = max(ready.items(), key=lambda group: (len(group[1]), group[0]))
        for cut in range(0, len(lanes), cap):
            members = lanes[cut : cut + cap]
            if steady:
                count = next(n for n in lane_counts(cap) if n >= len(members))
                members = list(islice(cycle(members), count))
            batches = [steps[lane][done[lane]] for lane in members]
            waves.append(_wave(members, batches, kind.sureness, kind if steady else None))
        for lane in lanes:
            done[lane] += 1


def make_streams(
    steps: Sequence[Sequence[LaneBatch]],
    sure_LM: np.ndarray | None,
    *,
    batch_size: int,
    chunk: int = 0,
    steady: bool = False,
    alone: bool = False,
) -> list[list[Wave]]:
    """Waves in streams that do not depend on each other: one stream, or, `alone`, one a lane."""
    if not alone:
        return [make_waves(steps, sure_LM, batch_size=batch_size, chunk=chunk, steady=steady)]
    return [
        [_wave([lane], [batch], _sureness(batch, lane, sure_LM)) for batch in own]
        for lane, own in enumerate(steps)
        if own
    ]


def lane_counts(cap: int) -> list[int]:
    """The numbers of lanes that steady waves may have: a quarter of the cap, or all of it."""
    return sorted({-(-cap // 4), cap})


def widths(batch_size: int) -> list[int]:
    """The widths that waves may have."""
    return sorted({-(-batch_size * quarter // 4) for quarter in (1, 2, 3, 4)})


def _kind(batch: LaneBatch, lane: int, sure_LM: np.ndarray | None, batch_size: int) -> Kind:
    size = len(batch.position_B)
    width = next(width for width in widths(batch_size) if width >= size)
    return Kind(width, size == batch_size, _sureness(batch, lane, sure_LM))


def _sureness(batch: LaneBatch, lane: int, sure_LM: np.ndarray | None) -> Sureness:
    if sure_LM is None:
        return "none"
    sure = sure_LM[lane, batch.position_B]
    return "all" if sure.all() else "some" if sure.any() else "none"


def _wave(
    lanes: Sequence[int], batches: list[LaneBatch], sureness: Sureness, kind: Kind | None = None
) -> Wave:
    """The lanes' batches side by side, as wide as their kind is; None: as the widest of them."""
    sizes = np.array([len(batch.position_B) for batch in batches])
    width = kind.width if kind else sizes.max()
    live = kind.full if kind else (sizes == width).all()
    position_GB = np.repeat([batch.position_B[:1] for batch in batches], width, axis=1)
    for own, batch in zip(position_GB, batches, strict=True):
        own[: len(batch.position_B)] = batch.position_B
    row_GB = None if live else np.arange(width) < sizes[:, None]
    epoch_G = np.array([batch.epoch for batch in batches])
    return Wave(np.array(lanes), epoch_G, position_GB, row_GB, sureness)
