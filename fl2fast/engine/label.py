"""Pseudo-labels of a cohort, from the global models on one weak view of every row.

Shapes: S seeds, K cohort, L = S*K lanes, M rows of a client, R rows that are
predicted at once, Y classes.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fl2fast.data.augment import ship
from fl2fast.data.views import draw_views
from fl2fast.engine.world import Lanes, ServerState, World
from fl2fast.methods.method import ClientPart, PseudoLabels
from fl2fast.models.network import Network


def infer_rows(device: torch.device) -> int:
    """Rows of one forward with static statistics: they are independent, so their number is free.

    On a CPU few, so that the activations stay in a core's cache.
    """
    return 128 if device.type == "cpu" else 1024


@torch.no_grad()
def pseudo_label(
    world: World, client: ClientPart, state: ServerState, lanes: Lanes, round: int
) -> PseudoLabels:
    truth_LM = world.truth[lanes.row_LM] if client.sees_truth else None
    return client.label(lambda: predict(world, state, lanes, round), lanes.live_LM, truth_LM)


def predict(world: World, state: ServerState, lanes: Lanes, round: int) -> Tensor:
    """Softmax of each lane's global model: probs_LMY; padding rows are zero."""
    e = world.experiment
    lane = np.repeat(np.arange(len(lanes.size_L)), lanes.size_L)
    position = np.concatenate([np.arange(size) for size in lanes.size_L])
    seeds = np.split(
        np.arange(len(lane)), np.searchsorted(lane, range(e.cohort, len(lanes.size_L), e.cohort))
    )
    step, models_S = infer_rows(world.device), world.models(state)
    parts = [
        (s, rows[cut : cut + step])
        for s, rows in enumerate(seeds)
        for cut in range(0, len(rows), step)
    ]

    def probs(network: Network, part: tuple[int, np.ndarray]) -> Tensor:
        s, rows = part
        lane_R, position_R = lane[rows], position[rows]
        place = (round, lanes.client_L[lane_R], 0, position_R)
        draws = draw_views(e.seed_list[s], "pseudo-label view", *place, 0)
        lane_on, position_on = ship(np.stack((lane_R, position_R)), world.device)
        x = world.inputs.views(lanes.row_LM[lane_on, position_on], draws, "weak")
        return network.infer(models_S[s], state.stats_S[s], x).softmax(-1)

    found = torch.cat(world.clients.map(probs, parts))
    return pad_sequence(list(found.split(list(map(int, lanes.size_L)))), batch_first=True)
