"""How large a reproduction is: the paper's protocol, or a stated reduction of it."""

from typing import Any, NamedTuple

from fl2fast.errors import UsageError


class Scale(NamedTuple):
    """Settings over a preset, for any dataset; and over these, for a dataset of its own."""

    sentence: str
    preset: str
    any: dict[str, Any]
    own: dict[str, dict[str, Any]]


SCALES: dict[str, Scale] = {
    "paper": Scale(
        "the paper's protocol: 100 clients of which 10 train in a round, 800 rounds, 5 local "
        "epochs, WideResNets, all images",
        "paper",
        any={},
        own={"agnews": {"epochs": 20}},
    ),
    "mini": Scale(
        "not the paper's setting: a small CNN, or AG News's own linear model, fewer clients, "
        "rounds, epochs and images and a higher learning rate, for a CPU; its accuracies are not "
        "to be held against the paper's",
        "quick",
        any={"train_size": 6_000, "test_size": 2_000, "eval_every": 3},
        own={},
    ),
}


def settings(scale: str, dataset: str, method: str) -> dict[str, Any]:
    """What this scale changes for a method on a dataset, its preset included."""
    if scale not in SCALES:
        raise UsageError(f"unknown scale {scale!r}: choose {' or '.join(SCALES)}")
    chosen = SCALES[scale]
    found = chosen.any | chosen.own.get(dataset, {}) | {"preset": chosen.preset}
    if method == "semifl" and dataset == "agnews":
        found["options"] = {"mix_loss": False}  # the paper's rows have none
    return found
