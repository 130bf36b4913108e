"""What the programs share: one folder of inputs, one evaluation, one form of result.

`benchmarks.peers` writes the folder. It fixes everything that is drawn: the initial weights, who is
in each round's cohort, and the order in which a client sees its rows. All programs therefore
compute the same numbers up to rounding, and a program that computes something else is found out.

A program is called as `python PROGRAM FOLDER RESULT` and stands alone: its framework is installed
in an environment of its own, which this repository's environment never sees.
"""

import json
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from small_cnn import small_cnn
from torch import Tensor, nn

EVALUATION_ROWS = 1000


class Work(NamedTuple):
    """The whole task in memory; images are normalised once, not once per batch."""

    settings: dict[str, Any]
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    cohort_RK: np.ndarray  # the clients of every round
    rows_RKM: np.ndarray  # the rows of each, in the order of training
    initial: dict[str, Tensor]

    def client_rows(self, round: int, place: int) -> tuple[Tensor, Tensor]:
        """Images and labels of one client of a cohort; rounds count from 1."""
        rows = torch.from_numpy(self.rows_RKM[round - 1, place])
        return self.images[rows], self.labels[rows]

    def due(self, round: int) -> bool:
        """Whether the global model is tested after this round."""
        return round % self.settings["eval_every"] == 0 or round == self.settings["rounds"]


@cache
def load(folder: str) -> Work:
    """Read the folder, once in a process."""
    here = Path(folder)
    settings = json.loads((here / "settings.json").read_text())
    mean, std = (torch.tensor(settings[name]).view(-1, 1, 1) for name in ("mean", "std"))

    def images(split: str) -> Tensor:
        return (torch.from_numpy(np.load(here / f"{split}_images.npy")) / 255 - mean) / std

    def labels(split: str) -> Tensor:
        return torch.from_numpy(np.load(here / f"{split}_labels.npy"))

    with np.load(here / "plan.npz") as plan:
        cohort_RK, rows_RKM = plan["cohort"], plan["rows"]
    with np.load(here / "initial.npz") as initial:
        weights = {name: torch.from_numpy(initial[name]) for name in initial}
    return Work(
        settings,
        images("train"),
        labels("train"),
        images("test"),
        labels("test"),
        cohort_RK,
        rows_RKM,
        weights,
    )


def make_model(work: Work) -> nn.Module:
    """The network with the weights that every program starts from."""
    model = small_cnn(work.settings["classes"])
    model.load_state_dict(work.initial)
    return model


@torch.no_grad()
def test_accuracy(work: Work, model: nn.Module) -> float:
    """In percent."""
    batches = zip(
        work.test_images.split(EVALUATION_ROWS),
        work.test_labels.split(EVALUATION_ROWS),
        strict=True,
    )
    correct = sum(int((model(x).argmax(-1) == y).sum()) for x, y in batches)
    return 100.0 * correct / len(work.test_labels)


class Stopwatch:
    """Seconds of every round, its evaluation included; what came before is start-up."""

    def __init__(self) -> None:
        self.round_seconds: list[float] = []
        self.accuracy: dict[int, float] = {}
        self._last = 0.0

    def start(self) -> None:
        self._last = time.perf_counter()

    def finish_round(self, accuracy: float | None) -> None:
        now = time.perf_counter()
        self.round_seconds.append(now - self._last)
        if accuracy is not None:
            self.accuracy[len(self.round_seconds)] = accuracy
        self._last = now


def write_result(
    path: str, watch: Stopwatch, weights: dict[str, Tensor], packages: list[str], how: str
) -> None:
    """PATH is the JSON; the final weights lie beside it."""
    result = {
        "round_seconds": watch.round_seconds,
        "accuracy": watch.accuracy,
        "versions": {name: metadata.version(name) for name in packages},
        "how": how,
    }
    Path(path).write_text(json.dumps(result))
    arrays = {name: value.detach().numpy() for name, value in weights.items()}
    np.savez(Path(path).with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
