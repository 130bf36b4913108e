"""Real images, where FL2FAST_DATA names a folder that holds them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import fl2fast
from benchmarks.pil import from_pil, pil_op, pil_strong, to_pil
from fl2fast.data.arrays import FILES, Arrays
from fl2fast.data.augment import strong
from fl2fast.data.load import load
from fl2fast.data.published import PUBLISHED
from fl2fast.data.views import OPS, draw_views, single_op
from tests.official_files import write_official


@pytest.fixture(params=["svhn", "cifar10", "fashion-mnist"])
def name(request: pytest.FixtureRequest) -> str:
    folder = os.environ.get("FL2FAST_DATA")
    if not folder or not (Path(folder) / request.param).is_dir():
        pytest.skip(f"FL2FAST_DATA does not hold {request.param}")
    return request.param


@pytest.fixture
def data_dir() -> Path:
    return Path(os.environ["FL2FAST_DATA"])


def test_arrays_are_loaded_as_they_are(name: str, data_dir: Path) -> None:
    arrays = load(name, data_dir, 0, 0, 0)
    for file, array in zip(FILES, arrays, strict=True):
        assert np.array_equal(np.load(data_dir / name / file), array)
    assert arrays.checksum() == PUBLISHED[name].checksum


def test_official_files_become_these_arrays(name: str, data_dir: Path, tmp_path: Path) -> None:
    """The real images in the official format, read back."""
    some = Arrays(*(np.array(array) for array in load(name, data_dir, 20_000, 5_000, 0)))
    write_official(name, some, tmp_path)
    read = PUBLISHED[name].read(tmp_path)
    assert read.checksum() == some.checksum()


def test_views_of_real_images_equal_pils(name: str, data_dir: Path) -> None:
    images = np.array(load(name, data_dir, 210, 1, 0).train_images)
    pictures, u_N = [to_pil(image) for image in images], (np.arange(210) + 0.5) / 210
    for op in OPS:
        theirs = np.stack([from_pil(pil_op(p, op, u)) for p, u in zip(pictures, u_N, strict=True)])
        ours = strong(torch.from_numpy(images), single_op(op, u_N)).numpy()
        assert np.array_equal(ours, theirs), op
    draws = draw_views(0, "client view", 1, 0, 0, np.arange(210), view=1)
    theirs = np.stack([from_pil(pil_strong(image, draws, i)) for i, image in enumerate(images)])
    assert np.array_equal(strong(torch.from_numpy(images), draws).numpy(), theirs)


def test_a_round_on_a_published_dataset(name: str, data_dir: Path) -> None:
    made = fl2fast.experiment(
        preset="quick", dataset=name, labels=40, clients=100, cohort=2, rounds=1, epochs=1
    )
    world = fl2fast.build_world(made, data_dir)
    assert world.inputs.shape == (3, 32, 32)
    (report,) = fl2fast.simulate(world)
    assert report.metrics[0]["test_accuracy"] > 10
    assert 0 < report.metrics[0]["label_ratio"] < 100
