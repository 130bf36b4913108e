"""How clients meet the global model, and what they keep of a round.

Shapes: S seeds, N clients, L lanes, P columns of a learner's row, Q columns that a client keeps.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from fl2fast import rng
from fl2fast.engine.world import ClientStore, Key, ServerState, World
from fl2fast.methods.method import Crowd, Memory, Visit


def start_rows(
    world: World,
    memory: Memory | None,
    state: ServerState,
    store: ClientStore,
    keys: list[Key],
    round: int,
) -> Tensor:
    """The rows that the cohort starts with: the global ones, if it keeps nothing."""
    global_LP = state.params_SP.repeat_interleave(world.experiment.cohort, dim=0)
    if memory is None:
        return global_LP
    like_Q = next(iter(store.kept.values()), None)
    if like_Q is None:
        like_Q = memory.keep(world.network, global_LP[:1], probe(world))[0]
    seen_L = torch.tensor([key in store.kept for key in keys], device=world.device)
    visit = Visit(
        global_LP,
        store.recall(keys, like_Q),
        seen_L,
        round,
        partial(_crowd, world, store, keys, like_Q),
    )
    return memory.start(world.network, visit)


def _crowd(world: World, store: ClientStore, keys: list[Key], like_Q: Tensor) -> Crowd:
    seeds, num_clients = world.experiment.seed_list, world.experiment.clients
    everyone = [[(seed, client) for client in range(num_clients)] for seed in seeds]
    seen = [[key in store.kept for key in own] for own in everyone]
    place = [(seeds.index(seed), client) for seed, client in keys]
    seed_L, client_L = torch.tensor(place, device=world.device).T
    return Crowd(
        torch.stack([store.recall(own, like_Q) for own in everyone]),
        torch.tensor(seen, device=world.device),
        seed_L,
        client_L,
    )


def probe(world: World) -> Tensor:
    """One fixed noise image, the same in every run: [C, H, W]."""
    size = int(np.prod(world.inputs.shape))
    normal = rng.generator(0, "probe").standard_normal(size)
    return world.inputs.noise(torch.from_numpy(normal).to(world.device))
