"""From a plan to batches on the device: gather, augment and normalise, some waves at a time.

Shapes: L lanes, M rows of a client, G lanes of one wave, B rows of a batch.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl2fast.data.augment import draw_views, normalise, ship, strong, weak
from fl2fast.data.plan import Wave
from fl2fast.engine.world import Lanes, World
from fl2fast.methods.method import Batch

AUGMENT_ROWS = 2048  # views made in one call: enough to fill a device, little to hold


class Targets(NamedTuple):
    """What the rows of each lane are trained towards, on the device."""

    y_LM: Tensor
    keep_LM: Tensor
    sure_LM: Tensor | None


def make_batches(
    world: World,
    waves: Sequence[Wave],
    lanes: Lanes,
    targets: Targets,
    *,
    view: str,
    purpose: str,
    round: int,
) -> Iterator[Batch]:
    """The batches of the waves, in order; views are drawn by (seed, round, client, epoch, row)."""
    for block in _blocks(waves):
        lane_R = np.concatenate([np.repeat(w.lane_G, w.position_GB.shape[1]) for w in block])
        epoch_R = np.concatenate([np.repeat(w.epoch_G, w.position_GB.shape[1]) for w in block])
        position_R = np.concatenate([w.position_GB.ravel() for w in block])
        lane, position = torch.from_numpy(lane_R), torch.from_numpy(position_R)
        place = (round, lanes.client_L[lane], torch.from_numpy(epoch_R), position)
        draws = draw_views(lanes.seed_L[lane], purpose, *place, int(view == "strong"))

        lane, position = _ship_all(world.device, lane, position)
        images = world.images[lanes.row_LM[lane, position]]
        augment = strong if view == "strong" else weak
        e = world.experiment
        pixels = augment(images, draws, flip=e.flip, crop=e.crop)
        views = normalise(pixels, world.mean, world.std)
        yield from _batches_of(block, views, lane, position, targets)


def _batches_of(
    block: Sequence[Wave], views: Tensor, lane_R: Tensor, position_R: Tensor, targets: Targets
) -> Iterator[Batch]:
    masks = [w.row_GB for w in block if w.row_GB is not None]
    masks_device = iter(_ship_all(views.device, *map(torch.from_numpy, masks)) if masks else ())
    start = 0
    for wave in block:
        shape = wave.position_GB.shape
        stop = start + wave.position_GB.size
        lane_GB = lane_R[start:stop].view(shape)
        position_GB = position_R[start:stop].view(shape)
        row_GB = None if wave.row_GB is None else next(masks_device)
        keep_GB = targets.keep_LM[lane_GB, position_GB]
        if row_GB is not None:
            keep_GB = keep_GB & row_GB
        sure_LM = targets.sure_LM
        yield Batch(
            lane_L=lane_GB[:, 0],
            view_LBCHW=views[start:stop].unflatten(0, shape),
            y_LB=targets.y_LM[lane_GB, position_GB],
            row_LB=row_GB,
            keep_LB=keep_GB,
            sure_LB=torch.zeros_like(keep_GB)
            if sure_LM is None
            else keep_GB & sure_LM[lane_GB, position_GB],
            sureness=wave.sureness,
        )
        start = stop


def _blocks(waves: Sequence[Wave]) -> Iterator[Sequence[Wave]]:
    start, rows = 0, 0
    for index, wave in enumerate(waves):
        rows += wave.position_GB.size
        if rows >= AUGMENT_ROWS or index + 1 == len(waves):
            yield waves[start : index + 1]
            start, rows = index + 1, 0


def _ship_all(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Move many small host tensors of one type in a single copy."""
    flat = ship(torch.cat([t.reshape(-1) for t in tensors]), device)
    parts = flat.split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
