"""What a round closes over, and what it changes.

Shapes: S seeds, N clients, K cohort, L = S*K lanes, M rows of a client, D rows of the dataset,
P columns of a learner's row, Q columns that a client keeps.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl2fast.data.inputs import Inputs
from fl2fast.data.partition import Split
from fl2fast.engine.cores import Cores
from fl2fast.experiment import Experiment
from fl2fast.methods.method import Method
from fl2fast.models.network import Network, Stats


@dataclass(frozen=True)
class World:
    """The frozen bundle: experiment, resident data, who holds what, network and method."""

    experiment: Experiment
    inputs: Inputs  # of D training rows, resident
    truth: Tensor  # int64 [D], resident
    truth_host: np.ndarray
    test_labels: Tensor
    num_classes: int
    splits: tuple[Split, ...]  # one per seed
    clients: Cores  # what runs the clients' networks, and every pass of the global models
    server: Cores  # what runs the server's own training
    method: Method

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    @property
    def network(self) -> Network:
        return self.clients.network

    def models(self, state: "ServerState") -> Tensor:
        """The networks that label and are tested: [S, parameters]."""
        return self.method.learner.model(self.network, state.params_SP)


class ServerState(NamedTuple):
    """The global model of every seed, at a round boundary: fine-tuned and recalibrated."""

    params_SP: Tensor
    server_momentum_SP: Tensor
    aggregate_momentum_SP: Tensor
    stats_S: tuple[Stats, ...]


Key = tuple[int, int]  # seed, client


@dataclass
class ClientStore:
    """What clients that have taken part hold; one that has not holds nothing."""

    rows: dict[Key, Tensor] = field(default_factory=dict)  # momentum
    kept: dict[Key, Tensor] = field(default_factory=dict)  # what the method keeps there

    def take(self, keys: list[Key], like_P: Tensor) -> Tensor:
        return _stacked(self.rows, keys, like_P)

    def put(self, keys: list[Key], buffer_LP: Tensor) -> None:
        _put(self.rows, keys, buffer_LP)

    def recall(self, keys: list[Key], like_Q: Tensor) -> Tensor:
        return _stacked(self.kept, keys, like_Q)

    def remember(self, keys: list[Key], kept_LQ: Tensor) -> None:
        _put(self.kept, keys, kept_LQ)


def _stacked(rows: dict[Key, Tensor], keys: list[Key], like: Tensor) -> Tensor:
    zero = torch.zeros_like(like)
    return torch.stack([rows.get(key, zero) for key in keys])


def _put(rows: dict[Key, Tensor], keys: list[Key], stack: Tensor) -> None:
    # clone: a row must not keep its whole stack alive
    rows.update((key, row.clone()) for key, row in zip(keys, stack, strict=True))


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
