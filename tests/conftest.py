"""A hostile place to run: few threads, deterministic kernels, and no draw without a key."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fl2fast.data import streetdigits

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)  # tiny tensors, and one worker process per core


@pytest.fixture(autouse=True)
def _cache_in_scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Never touch the user's cache or the network, but draw streetdigits once per session."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("FL2FAST_OFFLINE", "1")


@pytest.fixture
def no_unkeyed_draws() -> Iterator[None]:
    """Fail if the global generators of torch or numpy advance: some draw had no key."""
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    yield
    assert torch.equal(before[0], torch.random.get_rng_state()), "torch's global generator moved"
    assert (before[1] == np.random.get_state()[1]).all(), "numpy's global generator moved"


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def grey_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset folder of 28-pixel grey images in three classes."""
    folder = tmp_path_factory.mktemp("grey")
    draws = np.random.Generator(np.random.Philox(7))
    for split, num in (("train", 240), ("test", 60)):
        labels = np.arange(num) % 3
        level = np.array([40, 110, 180])[labels][:, None, None, None]
        images = np.clip(level + draws.normal(0, 30, (num, 1, 28, 28)), 0, 255).astype(np.uint8)
        np.save(folder / f"{split}_images.npy", images)
        np.save(folder / f"{split}_labels.npy", labels.astype(np.int64))
    return folder


@pytest.fixture(scope="session")
def small_digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """streetdigits at half the resolution: double-precision convolutions are slow."""
    folder = tmp_path_factory.mktemp("digits")
    for split, num in (("train", 400), ("test", 60)):
        images, labels = streetdigits.draw(num, 0, split)
        np.save(folder / f"{split}_images.npy", np.ascontiguousarray(images[:, :, ::2, ::2]))
        np.save(folder / f"{split}_labels.npy", labels)
    return str(folder)
