"""Who holds which rows: the server's labelled split, and the clients' parts of the rest."""

import math
import time
from typing import NamedTuple

import numpy as np

from fl2fast import rng
from fl2fast.errors import UsageError, brief

MIN_DIRICHLET_ROWS = 10
MAX_DIRICHLET_DRAWS = 1000
MAX_DIRICHLET_SECONDS = 20.0
MOST_SHARDS = 1_000_000

PARTITION_NAMES = "iid, dirichlet:ALPHA (such as dirichlet:0.3) or shards:S (such as shards:2)"


class Split(NamedTuple):
    """Row numbers of the training set, for one seed."""

    labelled: np.ndarray
    unlabelled: np.ndarray  # class after class, random inside a class
    clients: tuple[np.ndarray, ...]


def check_partition(text: str) -> None:
    """Refuse a partition that cannot be parsed, before anything is loaded."""
    _parse(text)


def split_rows(
    labels: np.ndarray, num_classes: int, num_labels: int, partition: str, clients: int, seed: int
) -> Split:
    """Class-balanced labelled rows, and the other rows dealt to the clients."""
    labelled, by_class = _labelled_split(labels, num_classes, num_labels, seed)
    unlabelled = np.concatenate(by_class)
    if len(unlabelled) < clients:
        raise UsageError(
            f"{clients} clients cannot share {len(unlabelled)} unlabelled images: ask for fewer "
            "clients or labels"
        )
    kind, value = _parse(partition)
    draws = rng.generator(seed, "partition")
    if kind == "iid":
        parts = _iid(unlabelled, clients, draws)
    elif kind == "dirichlet":
        parts = _dirichlet(by_class, clients, value, draws)
    else:
        parts = _shards(by_class, clients, int(value), draws)
    return Split(labelled, unlabelled, tuple(parts))


def _parse(text: str) -> tuple[str, float]:
    kind, _, value = text.partition(":")
    try:
        if kind == "iid" and not value:
            return kind, 0.0
        if kind == "dirichlet" and 0 < float(value) < math.inf:
            return kind, float(value)
        if kind == "shards" and 0 < int(value) <= MOST_SHARDS:
            return kind, int(value)
    except ValueError:
        pass
    raise UsageError(
        f"partition {brief(text)} is not one of {PARTITION_NAMES}; ALPHA and S must be above 0, S "
        f"at most {MOST_SHARDS:,}"
    )


def _labelled_split(
    labels: np.ndarray, num_classes: int, num_labels: int, seed: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    if num_labels > len(labels):
        raise UsageError(
            f"{num_labels} labels are more than the {len(labels)} training images: ask for fewer"
        )
    if num_labels < 1 or num_labels % num_classes:
        raise UsageError(
            f"{num_labels} labels cannot be balanced over {num_classes} classes: use a positive "
            f"multiple of {num_classes}"
        )
    per_class = num_labels // num_classes
    draws = rng.generator(seed, "labelled split")
    labelled, unlabelled = [], []
    for label in range(num_classes):
        rows = draws.permutation(np.flatnonzero(labels == label))
        if not len(rows):
            raise UsageError(
                f"class {label} has no training image: labels must be 0 to {num_classes - 1} "
                "without a gap"
            )
        if len(rows) < per_class:
            raise UsageError(
                f"{num_labels} labels need {per_class} images of every class, but class {label} "
                f"has {len(rows)}: ask for fewer labels"
            )
        labelled.append(rows[:per_class])
        unlabelled.append(rows[per_class:])
    return np.concatenate(labelled), unlabelled


def _iid(rows: np.ndarray, clients: int, draws: np.random.Generator) -> list[np.ndarray]:
    """Equal random parts; the remainder belongs to no client."""
    size = len(rows) // clients
    shuffled = draws.permutation(rows)
    return [shuffled[c * size : (c + 1) * size] for c in range(clients)]


def _dirichlet(
    by_class: list[np.ndarray], clients: int, alpha: float, draws: np.random.Generator
) -> list[np.ndarray]:
    """Class proportions ~ Dir(alpha) over the clients, redrawn until every client has 10 rows."""
    total = sum(map(len, by_class))
    impossible = UsageError(
        f"dirichlet:{alpha:g} gave no split of {total} images in which each of {clients} clients "
        f"has {MIN_DIRICHLET_ROWS}: use fewer clients or a larger ALPHA"
    )
    if total < MIN_DIRICHLET_ROWS * clients:
        raise impossible
    deadline = time.monotonic() + MAX_DIRICHLET_SECONDS
    for _ in range(MAX_DIRICHLET_DRAWS):
        parts = _dirichlet_draw(by_class, clients, alpha, draws)
        if parts is not None and min(map(len, parts)) >= MIN_DIRICHLET_ROWS:
            return parts
        if time.monotonic() > deadline:
            break
    raise impossible


def _dirichlet_draw(
    by_class: list[np.ndarray], clients: int, alpha: float, draws: np.random.Generator
) -> list[np.ndarray] | None:
    total = sum(map(len, by_class))
    held = np.zeros(clients, dtype=np.int64)
    slices: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for rows in by_class:
        share = draws.dirichlet(np.full(clients, alpha))
        share[held >= total / clients] = 0.0  # a client that has its fair part takes no more
        if not share.sum() > 0:  # underflow at a tiny alpha
            return None
        cuts = np.floor(np.cumsum(share / share.sum())[:-1] * len(rows)).astype(np.int64)
        for client, part in enumerate(np.split(rows, cuts)):
            slices[client].append(part)
            held[client] += len(part)
    return [np.concatenate(own) for own in slices]


def _shards(
    by_class: list[np.ndarray], clients: int, num_shards: int, draws: np.random.Generator
) -> list[np.ndarray]:
    """Every client holds `num_shards` pieces, each of one class."""
    num_classes = len(by_class)
    per_class, remainder = divmod(clients * num_shards, num_classes)
    if remainder or min(map(len, by_class)) < per_class:
        raise UsageError(
            f"shards:{num_shards} for {clients} clients makes {clients * num_shards} pieces, which "
            f"cannot be cut evenly from {num_classes} classes: their number must be a multiple of "
            f"{num_classes}, with at least one image a piece"
        )
    pieces = [iter(np.array_split(rows, per_class)) for rows in by_class]
    deck = draws.permutation(np.repeat(np.arange(num_classes), per_class))
    return [
        np.concatenate(
            [next(pieces[label]) for label in deck[c * num_shards : (c + 1) * num_shards]]
        )
        for c in range(clients)
    ]
