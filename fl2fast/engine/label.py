"""Pseudo-labels of a cohort, from the global models on one weak view of every row.

Shapes: S seeds, K cohort, L = S*K lanes, M rows of a client, Y classes.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fl2fast.data.augment import draw_views, normalise, weak
from fl2fast.engine.world import Lanes, ServerState, World
from fl2fast.methods.method import ClientPart, PseudoLabels

INFER_ROWS = 1024  # static statistics: rows are independent, so the batch size is free


@torch.no_grad()
def pseudo_label(
    world: World, client: ClientPart, state: ServerState, lanes: Lanes, round: int
) -> PseudoLabels:
    truth_LM = world.truth[lanes.row_LM] if client.sees_truth else None
    return client.label(lambda: predict(world, state, lanes, round), lanes.live_LM, truth_LM)


def predict(world: World, state: ServerState, lanes: Lanes, round: int) -> Tensor:
    """Softmax of each lane's global model: probs_LMY; padding rows are zero."""
    e, probs = world.experiment, []
    for s, seed in enumerate(e.seed_list):
        own = np.arange(s * e.cohort, (s + 1) * e.cohort)
        lane = torch.from_numpy(np.repeat(own, lanes.size_L[own]))
        position = torch.from_numpy(np.concatenate([np.arange(lanes.size_L[i]) for i in own]))
        for lane_R, position_R in zip(
            lane.split(INFER_ROWS), position.split(INFER_ROWS), strict=True
        ):
            place = (round, lanes.client_L[lane_R], 0, position_R)
            draws = draw_views(seed, "pseudo-label view", *place, 0)
            rows = lanes.row_LM[lane_R.to(world.device), position_R.to(world.device)]
            pixels = weak(world.images[rows], draws, flip=e.flip, crop=e.crop)
            x = normalise(pixels, world.mean, world.std)
            probs.append(world.network.infer(state.params_SP[s], state.stats_S[s], x).softmax(-1))
    return pad_sequence(
        list(torch.cat(probs).split(list(map(int, lanes.size_L)))), batch_first=True
    )
