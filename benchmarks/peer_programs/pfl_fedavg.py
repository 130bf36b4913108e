# pyright: reportMissingImports=false
"""FedAvg in pfl: python pfl_fedavg.py FOLDER RESULT, or the same under torchrun

pfl trains one client after another in a process; its way to several cores is several processes,
which torchrun starts and which add up their clients' updates.
"""

import dataclasses
import os
import sys
from collections.abc import Iterator

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from protocol import Stopwatch, Work, load, make_model, test_accuracy, write_result
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Classifier(nn.Module):
    """The network with the two functions that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict:
        return {}


class LeanFederatedAveraging(FederatedAveraging):
    """Without the evaluation on clients, which pfl's first round cannot be told to leave out."""

    def get_next_central_contexts(self, *args, **kwargs):
        contexts, model, metrics = super().get_next_central_contexts(*args, **kwargs)
        if contexts is not None:
            contexts = tuple(dataclasses.replace(c, do_evaluation=False) for c in contexts)
        return contexts, model, metrics


class Rounds(TrainingProcessCallback):
    """Time the rounds, and test the global model when it is due."""

    def __init__(self, work: Work, watch: Stopwatch) -> None:
        self.work, self.watch = work, watch

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.watch.start()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        due = self.work.due(central_iteration + 1)
        self.watch.finish_round(test_accuracy(self.work, model.pytorch_model) if due else None)
        return False, Metrics()


def planned_clients(work: Work) -> FederatedDataset:
    """Clients as the plan names them: a user's id is (round, place in its cohort)."""
    num_rounds, cohort = work.cohort_RK.shape

    def places() -> Iterator[tuple[int, int]]:
        for round in range(1, num_rounds + 1):
            yield from ((round, place) for place in range(cohort))

    return FederatedDataset(
        lambda user: PyTorchTensorDataset(work.client_rows(*user), user_id=str(user)),
        places().__next__,
    )


def main(folder: str, result: str) -> None:
    np.random.seed(0)  # pfl's processes must agree on their own draws
    work, watch = load(folder), Stopwatch()
    settings = work.settings
    classifier = Classifier(make_model(work))
    model = PyTorchModel(
        classifier,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    clients = planned_clients(work)
    LeanFederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=settings["rounds"],
            evaluation_frequency=settings["rounds"],
            train_cohort_size=settings["cohort"],
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=settings["lr"],
            local_batch_size=settings["batch_size"],
        ),
        callbacks=[Rounds(work, watch)],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", 0)) == 0:
        processes = os.environ.get("WORLD_SIZE", "1")
        how = f"{processes} processes, {torch.get_num_threads()} threads each"
        write_result(result, watch, classifier.network.state_dict(), ["pfl", "torch"], how)


if __name__ == "__main__":
    main(*sys.argv[1:])
