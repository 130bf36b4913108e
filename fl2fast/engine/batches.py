"""From a plan to batches on the device: gather, augment and normalise, some waves at a time.

Shapes: L lanes, M rows of a client, G lanes of one wave, B rows of a batch, R rows of a block,
C, H, W of an image.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl2fast.data.augment import ship
from fl2fast.data.mixing import draw_shares
from fl2fast.data.plan import Wave
from fl2fast.data.views import draw_views
from fl2fast.engine.cores import Stream
from fl2fast.engine.side_stream import on_side_stream
from fl2fast.engine.world import Lanes, World
from fl2fast.experiment import Experiment
from fl2fast.methods.method import Batch, Mix, Mixed, View

AUGMENT_ROWS = 2048  # views made in one call: enough to fill a device, little to hold


class Targets(NamedTuple):
    """What the rows of each lane are trained towards, on the device."""

    y_LM: Tensor
    keep_LM: Tensor
    sure_LM: Tensor | None


class Mixing(NamedTuple):
    """A round's partners, drawn on the host."""

    mix: Mix
    partner_LEM: np.ndarray  # positions


class Source(NamedTuple):
    """Whose rows are shown, and which views of them."""

    world: World
    lanes: Lanes
    views: tuple[View, ...]
    purpose: str
    round: int
    mixing: Mixing | None = None


class Block(NamedTuple):
    """Some waves with their views, on the device; R rows, wave after wave."""

    waves: Sequence[Wave]
    views_RCHW: list[Tensor]
    lane_R: Tensor
    position_R: Tensor
    masks: list[Tensor]  # of the waves that have dead rows
    partner_R: Tensor | None
    shares: list[Tensor]  # of every wave, if rows are mixed


def block_rows(experiment: Experiment) -> int:
    """Views that one call makes in the client phase: whole waves."""
    e = experiment
    lanes = e.seeds * e.cohort
    wave = min(e.chunk or lanes, lanes) * e.batch_size
    return -(-AUGMENT_ROWS // wave) * wave


def make_batches(
    source: Source, streams: Sequence[Sequence[Wave]], targets: Targets
) -> list[Stream[Batch]]:
    """The batches of every stream's waves; views are drawn by (seed, round, client, epoch, row)."""
    device = source.world.device
    round = torch.full((), source.round, device=device)

    def batches(waves: Sequence[Wave]) -> Iterator[Batch]:
        blocks = (_make_block(source, some) for some in _in_blocks(waves))
        for block in on_side_stream(blocks, device):
            yield from (own._replace(round=round) for own in _batches_of(block, targets))

    return [Stream(len(waves), batches(waves)) for waves in streams]


def _make_block(source: Source, waves: Sequence[Wave]) -> Block:
    world, lanes, mixing = source.world, source.lanes, source.mixing
    lane_R = np.concatenate([np.repeat(w.lane_G, w.position_GB.shape[1]) for w in waves])
    epoch_R = np.concatenate([np.repeat(w.epoch_G, w.position_GB.shape[1]) for w in waves])
    position_R = np.concatenate([w.position_GB.ravel() for w in waves])
    place = (source.round, lanes.client_L[lane_R], epoch_R, position_R)
    lane, position = _ship_all(world.device, lane_R, position_R)
    row_R = lanes.row_LM[lane, position]

    def view_of(row_R: Tensor, purpose: str, view: View) -> Tensor:
        draws = draw_views(lanes.seed_L[lane_R], purpose, *place, int(view == "strong"))
        return world.inputs.views(row_R, draws, view)

    views = []
    for number, view in enumerate(source.views):
        again = view in source.views[:number]
        views.append(view_of(row_R, f"second {source.purpose}" if again else source.purpose, view))
    partner, shares = None, []
    if mixing is not None:
        (partner,) = _ship_all(world.device, mixing.partner_LEM[lane_R, epoch_R, position_R])
        views.append(view_of(lanes.row_LM[lane, partner], "mix view", "weak"))
        shares = _ship_all(world.device, *(_shares_of(source, mixing.mix, w) for w in waves))
    masks = [w.row_GB for w in waves if w.row_GB is not None]
    shipped = _ship_all(world.device, *masks) if masks else []
    return Block(waves, views, lane, position, shipped, partner, shares)


def _shares_of(source: Source, mix: Mix, wave: Wave) -> np.ndarray:
    lanes, first_G = source.lanes, wave.position_GB[:, 0]
    seed_G, client_G = lanes.seed_L[wave.lane_G], lanes.client_L[wave.lane_G]
    place = {"round": source.round, "epoch_G": wave.epoch_G, "first_G": first_G}
    return draw_shares(mix, seed_G, client_G, **place)


def _batches_of(block: Block, targets: Targets) -> Iterator[Batch]:
    masks = iter(block.masks)
    start = 0
    for number, wave in enumerate(block.waves):
        shape = wave.position_GB.shape
        stop = start + wave.position_GB.size
        lane_GB = block.lane_R[start:stop].view(shape)
        position_GB = block.position_R[start:stop].view(shape)
        row_GB = None if wave.row_GB is None else next(masks)
        keep_GB = targets.keep_LM[lane_GB, position_GB]
        if row_GB is not None:
            keep_GB = keep_GB & row_GB
        sure_LM = targets.sure_LM
        views = [view[start:stop].unflatten(0, shape) for view in block.views_RCHW]
        mixed = None
        if block.partner_R is not None:
            partner_GB = block.partner_R[start:stop].view(shape)
            share_G = block.shares[number].to(views[0].dtype)
            mixed = Mixed(views.pop(), targets.y_LM[lane_GB, partner_GB], share_G)
        yield Batch(
            lane_L=lane_GB[:, 0],
            view_LBCHW=views[0],
            y_LB=targets.y_LM[lane_GB, position_GB],
            row_LB=row_GB,
            keep_LB=keep_GB,
            sure_LB=torch.zeros_like(keep_GB)
            if sure_LM is None
            else keep_GB & sure_LM[lane_GB, position_GB],
            sureness=wave.sureness,
            more_views=tuple(views[1:]),
            mixed=mixed,
        )
        start = stop


def _in_blocks(waves: Sequence[Wave]) -> Iterator[Sequence[Wave]]:
    start, rows = 0, 0
    for index, wave in enumerate(waves):
        rows += wave.position_GB.size
        if rows >= AUGMENT_ROWS or index + 1 == len(waves):
            yield waves[start : index + 1]
            start, rows = index + 1, 0


def _ship_all(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """Move many small host arrays of one type in a single copy."""
    flat = ship(np.concatenate([array.ravel() for array in arrays]), device)
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
