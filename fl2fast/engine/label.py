"""Pseudo-labels of a cohort, from the global models on one weak view of every row.

Shapes: S seeds, K cohort, L = S*K lanes, M rows of a client, R rows that are
predicted at once, Y classes.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fl2fast.data.augment import normalise, ship
from fl2fast.data.views import draw_views
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
        lane = np.repeat(own, lanes.size_L[own])
        position = np.concatenate([np.arange(lanes.size_L[i]) for i in own])
        for start in range(0, len(lane), INFER_ROWS):
            chosen = slice(start, start + INFER_ROWS)
            lane_R, position_R = lane[chosen], position[chosen]
            place = (round, lanes.client_L[lane_R], 0, position_R)
            draws = draw_views(seed, "pseudo-label view", *place, 0)
            lane_on, position_on = ship(np.stack((lane_R, position_R)), world.device)
            images = world.images[lanes.row_LM[lane_on, position_on]]
            x = normalise(world.augment(images, draws, "weak"), world.mean, world.std)
            probs.append(world.network.infer(state.params_SP[s], state.stats_S[s], x).softmax(-1))
    return pad_sequence(
        list(torch.cat(probs).split(list(map(int, lanes.size_L)))), batch_first=True
    )
