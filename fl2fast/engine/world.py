"""What a round closes over, and what it changes.

Shapes: S seeds, N clients, K cohort, L = S*K lanes, M rows of a client, D rows of the dataset,
P columns of a learner's row, Q columns that a client keeps.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
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

    @property
    def num_lanes(self) -> int:
        """Learners that train at once, if nothing bounds them."""
        cohort = 1 if self.method.client is None else self.experiment.cohort
        return self.experiment.seeds * cohort

    def models(self, state: "ServerState") -> Tensor:
        """The networks that label and are tested: [S, parameters]."""
        return self.method.learner.model(self.network, state.params_SP)

    def with_chunk(self, chunk: int) -> "World":
        """The same world, at most so many lanes at once."""
        return replace(
            self,
            experiment=replace(self.experiment, chunk=chunk),
            clients=Cores(self.clients.network, chunk),
            server=Cores(self.server.network, chunk),
        )


class ServerState(NamedTuple):
    """The global model of every seed, at a round boundary: fine-tuned and recalibrated."""

    params_SP: Tensor
    server_momentum_SP: Tensor
    aggregate_momentum_SP: Tensor
    stats_S: tuple[Stats, ...]


Key = tuple[int, int]  # seed, client


@dataclass(frozen=True)
class ClientStore:
    """What clients that have taken part hold; one that has not holds nothing.

    Neither a store nor a row of it ever changes, so that an old one stays a whole snapshot.
    """

    rows: Mapping[Key, Tensor] = field(default_factory=dict)  # momentum
    kept: Mapping[Key, Tensor] = field(default_factory=dict)  # what the method keeps there

    def take(self, keys: list[Key], like_P: Tensor) -> Tensor:
        return _stacked(self.rows, keys, like_P)

    def put(self, keys: list[Key], buffer_LP: Tensor) -> "ClientStore":
        return replace(self, rows=_with(self.rows, keys, buffer_LP))

    def recall(self, keys: list[Key], like_Q: Tensor) -> Tensor:
        return _stacked(self.kept, keys, like_Q)

    def remember(self, keys: list[Key], kept_LQ: Tensor) -> "ClientStore":
        return replace(self, kept=_with(self.kept, keys, kept_LQ))

    def where(self, takes: Callable[[int], bool], other: "ClientStore") -> "ClientStore":
        """This store's rows of the seeds that `takes` holds for, the other's of the rest."""

        def mixed(ours: Mapping[Key, Tensor], theirs: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
            rest = {key: row for key, row in theirs.items() if not takes(key[0])}
            return rest | {key: row for key, row in ours.items() if takes(key[0])}

        return ClientStore(mixed(self.rows, other.rows), mixed(self.kept, other.kept))


def _stacked(rows: Mapping[Key, Tensor], keys: list[Key], like: Tensor) -> Tensor:
    zero = torch.zeros_like(like)
    return torch.stack([rows.get(key, zero) for key in keys])


def _with(rows: Mapping[Key, Tensor], keys: list[Key], stack: Tensor) -> dict[Key, Tensor]:
    # clone: a row must not keep its whole stack alive
    return {**rows, **{key: row.clone() for key, row in zip(keys, stack, strict=True)}}


class Divergence(NamedTuple):
    """A seed whose numbers stopped being finite, and is frozen as it was before that round."""

    seed: int
    round: int
    where: str

    def __str__(self) -> str:
        return f"seed {self.seed} diverged in round {self.round}: {self.where}"


class Federation(NamedTuple):
    """All that changes from round to round: what a checkpoint holds."""

    round: int  # the last whole one; 0 after the warm-up
    state: ServerState
    store: ClientStore
    diverged: tuple[Divergence, ...] = ()

    @property
    def frozen(self) -> frozenset[int]:
        """Seeds that take no further part."""
        return frozenset(found.seed for found in self.diverged)


class Finite(NamedTuple):
    """Whether what a round made are numbers; on the device, not yet read."""

    client_L: Tensor | None  # a client's weights, momentum and vote; None: no client took part
    params_S: Tensor  # the server's weights and momenta
    stats_S: Tensor  # static batch-norm statistics

    @staticmethod
    def rows(*tensors: Tensor) -> Tensor:
        """Of each row of all tensors together: bool."""
        return torch.stack([tensor.flatten(1).isfinite().all(-1) for tensor in tensors]).all(0)

    @staticmethod
    def of(state: ServerState, client_L: Tensor | None) -> "Finite":
        params_S = Finite.rows(*state[:3])
        stats = [(s.mean_Q.isfinite() & s.var_Q.isfinite()).all() for s in state.stats_S]
        return Finite(client_L, params_S, torch.stack(stats) if stats else params_S)


class Lanes(NamedTuple):
    """Independent learners and the rows each may see."""

    seed_L: np.ndarray
    client_L: np.ndarray
    size_L: np.ndarray
    row_LM: Tensor  # rows of the training set, device; padded with row 0
    live_LM: Tensor  # bool, device

    def taking_part(self, frozen: Collection[int]) -> np.ndarray:
        """bool [L]: lanes of seeds that are not frozen."""
        return ~np.isin(self.seed_L, list(frozen))

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
