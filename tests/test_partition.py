"""Who holds what: the labelled split and the three partitions."""

import time

import numpy as np
import pytest

from fl2fast.data import partition
from fl2fast.data.partition import split_rows
from fl2fast.errors import UsageError

LABELS = np.random.Generator(np.random.Philox(1)).integers(0, 10, 3000)


@pytest.mark.parametrize("text", ["iid", "dirichlet:0.3", "dirichlet:5", "shards:2", "shards:3"])
def test_every_row_has_one_holder(text: str) -> None:
    split = split_rows(LABELS, 10, 40, text, 20, seed=3)
    held = np.concatenate(split.clients)
    assert len(split.clients) == 20
    assert len(np.unique(held)) == len(held)
    assert not np.intersect1d(held, split.labelled).size
    assert (np.bincount(LABELS[split.labelled]) == 4).all()
    assert np.isin(held, split.unlabelled).all()
    assert (np.diff(LABELS[split.unlabelled]) >= 0).all(), "stored class by class"
    dropped = len(split.unlabelled) - len(held)
    assert dropped == (len(split.unlabelled) % 20 if text == "iid" else 0)


def test_iid_parts_are_equal_and_random() -> None:
    split = split_rows(LABELS, 10, 40, "iid", 20, seed=3)
    assert {len(rows) for rows in split.clients} == {148}
    assert min(len(np.unique(LABELS[rows])) for rows in split.clients) == 10


def test_dirichlet_is_skewed_capped_and_at_least_ten() -> None:
    split = split_rows(LABELS, 10, 40, "dirichlet:0.1", 20, seed=3)
    sizes = [len(rows) for rows in split.clients]
    assert min(sizes) >= 10
    shares = [np.bincount(LABELS[rows], minlength=10).max() / len(rows) for rows in split.clients]
    assert np.mean(shares) > 0.5
    even = split_rows(LABELS, 10, 40, "dirichlet:1000", 20, seed=3)
    assert max(map(len, even.clients)) < 1.3 * len(even.unlabelled) / 20


def test_shards_are_of_one_class_each() -> None:
    split = split_rows(LABELS, 10, 40, "shards:2", 20, seed=3)
    assert max(len(np.unique(LABELS[rows])) for rows in split.clients) <= 2


def test_seeds_repeat_and_differ() -> None:
    one, again, other = (split_rows(LABELS, 10, 40, "dirichlet:0.3", 5, s) for s in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one.clients, again.clients, strict=True))
    assert not np.array_equal(one.labelled, other.labelled)


@pytest.mark.parametrize(
    ("labels", "text", "clients", "words"),
    [
        (45, "iid", 5, "multiple of 10"),
        (3010, "iid", 5, "more than the 3000"),
        (2990, "iid", 5, "class"),
        (40, "iid", 2961, "2960 unlabelled"),
        (40, "dirichlet:0.3", 300, "fewer clients"),
        (40, "dirichlet:0.0001", 100, "larger ALPHA"),
        (40, "shards:3", 7, "multiple of 10"),
    ],
)
def test_impossible_splits_are_refused(
    labels: int, text: str, clients: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "MAX_DIRICHLET_DRAWS", 50)
    with pytest.raises(UsageError, match=words):
        split_rows(LABELS, 10, labels, text, clients, seed=0)


def test_a_class_without_images_is_named() -> None:
    with pytest.raises(UsageError, match="class 4 has no training image"):
        split_rows(LABELS[LABELS != 4], 10, 40, "iid", 5, seed=0)


def test_dirichlet_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "MAX_DIRICHLET_SECONDS", 0.2)
    monkeypatch.setattr(partition, "MAX_DIRICHLET_DRAWS", 10**9)
    start = time.monotonic()
    with pytest.raises(UsageError):
        split_rows(LABELS, 10, 40, "dirichlet:0.0001", 100, seed=0)
    assert time.monotonic() - start < 10


UNPARSABLE = ["", "iid:1", "dirichlet", "shards:0", "shards:1.5", "other:1"]
UNPARSABLE += [f"dirichlet:{alpha}" for alpha in ("x", "0", "-1", "nan", "inf")]


@pytest.mark.parametrize("text", UNPARSABLE)
def test_unparsable_partitions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="partition"):
        partition.check_partition(text)
