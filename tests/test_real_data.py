"""Real images, where FL2FAST_DATA names a folder that holds them."""

import os
from pathlib import Path

import pytest

import fl2fast


@pytest.mark.parametrize("name", ["svhn", "cifar10", "fashion-mnist"])
def test_a_round_on_a_published_dataset(name: str) -> None:
    folder = os.environ.get("FL2FAST_DATA")
    if not folder or not (Path(folder) / name).is_dir():
        pytest.skip(f"FL2FAST_DATA does not hold {name}")
    made = fl2fast.experiment(
        preset="quick", dataset=name, labels=40, clients=100, cohort=2, rounds=1, epochs=1
    )
    world = fl2fast.build_world(made, Path(folder))
    assert world.images.shape[1:] == (3, 32, 32)
    (report,) = fl2fast.simulate(world)
    assert report.metrics[0]["test_accuracy"] > 10
    assert 0 < report.metrics[0]["label_ratio"] < 100
