"""Federations at the edge of what makes sense: each ends as docs/robustness.md says.

A client of one image, no accepted row anywhere, clients that are all alike, a class that no client
has. They are no errors: the run ends, its numbers are finite, and its figures say what happened.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_resume import TINY

import fl2fast
from fl2fast.data import streetdigits
from fl2fast.data.partition import Split
from fl2fast.engine.world import World
from fl2fast.errors import UsageError
from fl2fast.simulate import RoundReport

METHODS = ("flfl", "semifl", "fedmatch", "fixmatch")
LOWERINGS = ("loop", "grouped", "cores")


@pytest.fixture
def settings(small_digits: str) -> dict[str, Any]:
    return TINY | {"dataset": small_digits, "dtype": "float64", "rounds": 2, "partition": "iid"}


def run(world: World) -> list[RoundReport]:
    reports = list(fl2fast.simulate(world))
    assert torch.isfinite(reports[-1].state.params_SP).all()
    assert not reports[-1].federation.diverged
    return reports


def dealt(world: World, clients: list[np.ndarray]) -> World:
    """The world with other parts for the clients."""
    (split,) = world.splits
    return replace(world, splits=(Split(split.labelled, split.unlabelled, tuple(clients)),))


@pytest.mark.parametrize("method", METHODS)
def test_a_client_of_one_image(settings: dict[str, Any], method: str) -> None:
    """Its batches have one row, whose batch norm sees the pixels of one image."""
    ends = []
    for lowering in LOWERINGS:
        made = fl2fast.experiment(
            **settings | {"method": method, "cohort": 5, "lowering": lowering, "sure": 0.1}
        )
        world = fl2fast.build_world(made)
        parts = list(world.splits[0].clients)
        reports = run(dealt(world, [parts[0][:1], *parts[1:]]))
        ends.append(reports[-1].state.params_SP)
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-9, atol=1e-12)


def test_a_client_of_one_image_by_the_partition(tmp_path: Path, small_digits: str) -> None:
    """As many images as clients, so that every client has one."""
    data = tmp_path / "data"
    data.mkdir()
    for split, num in (("train", 25), ("test", 60)):
        for what in ("images", "labels"):
            array = np.load(f"{small_digits}/{split}_{what}.npy")
            order = np.argsort(np.load(f"{small_digits}/{split}_labels.npy") % 10, kind="stable")
            spread = order.reshape(-1)[:: max(1, len(order) // num)][:num] if num < 60 else order
            np.save(data / f"{split}_{what}.npy", array[spread])
    settings = TINY | {"dataset": str(data), "labels": 10, "clients": 15, "cohort": 15}
    made = fl2fast.experiment(**settings | {"partition": "iid", "rounds": 2})
    summary = fl2fast.train(made, tmp_path / "run")
    assert summary["diverged"] == []
    partition = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert {client["size"] for client in partition["seeds"][0]["clients"]} == {1}


@pytest.mark.parametrize("method", ["fixmatch", "semifl", "sacr-fixmatch"])
def test_no_accepted_row_anywhere(settings: dict[str, Any], method: str, tmp_path: Path) -> None:
    """Clients take no step; the server's training is all that is left, as without clients."""
    changes = {"sure": 1.0, "aggregate_momentum": 0.0}
    made = fl2fast.experiment(**settings | {"method": method, "pretrain": 1} | changes)
    summary = fl2fast.train(made, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["label_ratio"] for row in rows] == [0.0, 0.0]
    assert [row["pseudo_label_accuracy"] for row in rows] == [None, None]
    alone = fl2fast.experiment(**settings | {"method": "supervised", "pretrain": 1} | changes)
    theirs = run(fl2fast.build_world(alone))[-1].metrics[0]["test_accuracy"]
    assert summary["mean"]["test_accuracy_last"] == theirs
    checkpoint = json.loads((tmp_path / "run/checkpoints/round-000002.json").read_text())
    assert checkpoint["checkpoint"]["clients"] == []


@pytest.mark.parametrize("method", METHODS)
def test_clients_that_are_all_alike(settings: dict[str, Any], method: str) -> None:
    """Equal rows still have draws of their own; their thresholds are as close as their views."""
    made = fl2fast.experiment(**settings | {"method": method, "cohort": 5, "sure": 0.1})
    world = fl2fast.build_world(made)
    (split,) = world.splits
    reports = run(dealt(world, [split.clients[0]] * 5))
    (row,) = reports[-1].diagnostics
    assert len(row["accepted"]) == 5
    assert sum(row["aggregation_weights"]) == pytest.approx(1.0, abs=1e-5)
    if row["status"] is not None:
        assert np.ptp(row["status"]) < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_a_class_that_no_client_has(settings: dict[str, Any], method: str) -> None:
    made = fl2fast.experiment(**settings | {"method": method, "cohort": 5})
    world = fl2fast.build_world(made)
    parts = [rows[world.truth_host[rows] != 7] for rows in world.splits[0].clients]
    reports = run(dealt(world, parts))
    confusion = np.array(reports[-1].diagnostics[0]["confusion"])
    assert confusion[7].sum() == 0


def test_a_class_that_nobody_has_at_all_is_refused(tmp_path: Path) -> None:
    """There is no balanced labelled split then; the sentence names the class."""
    for split in ("train", "test"):
        images, labels = streetdigits.draw(200, 0, split)
        keep = labels != 7
        np.save(tmp_path / f"{split}_images.npy", images[keep])
        np.save(tmp_path / f"{split}_labels.npy", labels[keep])
    with pytest.raises(UsageError, match="class 7"):
        fl2fast.build_world(
            fl2fast.experiment(dataset=str(tmp_path), labels=20, clients=4, cohort=2)
        )


def test_nan_features_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Images are bytes, which no NaN fits into: a folder of float images is refused by its type."""
    from test_cli import call

    for split in ("train", "test"):
        np.save(tmp_path / f"{split}_images.npy", np.full((40, 3, 16, 16), np.nan, np.float32))
        np.save(tmp_path / f"{split}_labels.npy", np.arange(40) % 10)
    assert call("train", "--dataset", tmp_path, "--labels", "10", "--out", tmp_path / "x") == 2
    said = capsys.readouterr().err
    assert "float32" in said
    assert "uint8" in said
