"""What a round closes over, and what it changes.

Shapes: S seeds, N clients, K cohort, L = S*K lanes, M rows of a client, D images, P parameters.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl2fast.data.partition import Split
from fl2fast.data.views import Augment
from fl2fast.engine.cores import Cores
from fl2fast.experiment import Experiment
from fl2fast.methods.method import Method
from fl2fast.models.network import Network, Stats


@dataclass(frozen=True)
class World:
    """The frozen bundle: experiment, resident data, who holds what, network and method."""

    experiment: Experiment
    images: Tensor  # uint8 [D, C, H, W], resident
    truth: Tensor  # int64 [D], resident
    truth_host: np.ndarray
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    splits: tuple[Split, ...]  # one per seed
    clients: Cores  # what runs the clients' networks, and every pass of the global models
    server: Cores  # what runs the server's own training
    method: Method
    augment: Augment
    mean: Tensor
    std: Tensor

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def network(self) -> Network:
        return self.clients.network


class ServerState(NamedTuple):
    """The global model of every seed, at a round boundary: fine-tuned and recalibrated."""

    params_SP: Tensor
    server_momentum_SP: Tensor
    aggregate_momentum_SP: Tensor
    stats_S: tuple[Stats, ...]


@dataclass
class ClientStore:
    """Momentum of the clients that have trained; one that has not holds nothing."""

    rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def take(self, keys: list[tuple[int, int]], like_P: Tensor) -> Tensor:
        zero_P = torch.zeros_like(like_P)
        return torch.stack([self.rows.get(key, zero_P) for key in keys])

    def put(self, keys: list[tuple[int, int]], buffer_LP: Tensor) -> None:
        # clone: a row must not keep its whole stack alive
        self.rows.update((key, row.clone()) for key, row in zip(keys, buffer_LP, strict=True))


class Lanes(NamedTuple):
    """Independent learners and the rows each may see."""

    seed_L: np.ndarray
    client_L: np.ndarray
    size_L: np.ndarray
    row_LM: Tensor  # rows of the training set, device; padded with row 0
    live_LM: Tensor  # bool, device

    @staticmethod
    def of(
        seeds: list[int], clients: list[int], rows: list[np.ndarray], device: torch.device
    ) -> "Lanes":
        size_L = np.array([len(own) for own in rows])
        row_LM = np.zeros((len(rows), size_L.max()), dtype=np.int64)
        for lane, own in enumerate(rows):
            row_LM[lane, : len(own)] = own
        live_LM = np.arange(size_L.max()) < size_L[:, None]
        return Lanes(
            np.array(seeds),
            np.array(clients),
            size_L,
            torch.from_numpy(row_LM).to(device),
            torch.from_numpy(live_LM).to(device),
        )
