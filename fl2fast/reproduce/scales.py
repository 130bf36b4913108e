"""How large a reproduction is: the paper's protocol, or a stated reduction of it."""

from typing import Any, NamedTuple

from fl2fast.errors import UsageError


class Scale(NamedTuple):
    """Settings over a preset, for any dataset; and over these, for a dataset of its own."""

    sentence: str
    preset: str
    any: dict[str, Any]
    own: dict[str, dict[str, Any]]
    labels: dict[str, dict[int, int]]  # of a dataset: the paper's number to ours, where another
    options: dict[str, dict[str, Any]]  # of a method


SCALES: dict[str, Scale] = {
    "paper": Scale(
        "the paper's protocol: 100 clients of which 10 train in a round, 800 rounds, 5 local "
        "epochs, WideResNets, all images",
        "paper",
        any={},
        own={"agnews": {"epochs": 20}},
        labels={},
        options={},
    ),
    "mini": Scale(
        "not the paper's setting: a small CNN, or AG News's own linear model, fewer clients, "
        "rounds, epochs and images, and on house numbers more labels, for a CPU; its accuracies "
        "are not to be held against the paper's",
        "quick",
        any={"train_size": 6_000, "test_size": 2_000, "eval_every": 3},
        # quick's rate is made for streetdigits; on photographs its warm-up diverges
        own={name: {"lr": 0.03} for name in ("svhn", "cifar10", "cifar100", "fashion-mnist")},
        # with fewer the CNN's first pseudo-labels are no better than chance
        labels={"svhn": {40: 250, 250: 1_000}, "streetdigits": {40: 60}},
        options={"fedcon": {"hidden": 64}},  # a head as small as the CNN
    ),
}


def settings(scale: str, dataset: str, method: str, labels: int) -> dict[str, Any]:
    """What this scale makes of a method on a dataset with so many labels, its preset included."""
    if scale not in SCALES:
        raise UsageError(f"unknown scale {scale!r}: choose {' or '.join(SCALES)}")
    chosen = SCALES[scale]
    found = chosen.any | chosen.own.get(dataset, {}) | {"preset": chosen.preset}
    found["labels"] = chosen.labels.get(dataset, {}).get(labels, labels)
    options = dict(chosen.options.get(method, {}))
    if method == "semifl" and dataset == "agnews":
        options["mix_loss"] = False  # the paper's rows have none
    if options:
        found["options"] = options
    return found
