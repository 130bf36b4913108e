"""Folders, the cache, and what is done to fit images to a model."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fl2fast.data import load as loading
from fl2fast.data.arrays import read_folder
from fl2fast.data.load import fit_images, load
from fl2fast.errors import UsageError


def test_a_folder_is_a_dataset(grey_folder: Path) -> None:
    arrays = load(str(grey_folder), Path("nowhere"), 0, 0, 0)
    assert arrays.num_classes == 3
    assert arrays.train_images.shape == (240, 1, 28, 28)


def test_a_published_name_is_read_from_the_data_folder(grey_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(grey_folder, tmp_path / "fashion-mnist")
    assert len(load("fashion-mnist", tmp_path, 0, 0, 0).test_labels) == 60
    with pytest.raises(UsageError, match="svhn"):
        load("svhn", tmp_path, 0, 0, 0)


def test_a_size_takes_the_first_images(grey_folder: Path) -> None:
    whole = load(str(grey_folder), Path("nowhere"), 0, 0, 0)
    some = load(str(grey_folder), Path("nowhere"), 50, 60, 0)
    assert np.array_equal(some.train_images, whole.train_images[:50])
    assert np.array_equal(some.train_labels, whole.train_labels[:50])
    assert len(some.test_images) == len(some.test_labels) == 60
    with pytest.raises(UsageError, match=r"test_size is 61, but .* 60 test images"):
        load(str(grey_folder), Path("nowhere"), 0, 61, 0)


def test_loading_copies_and_changes_nothing(grey_folder: Path) -> None:
    before = (grey_folder / "train_images.npy").read_bytes()
    images = read_folder(grey_folder).train_images
    assert isinstance(images, np.memmap)
    assert np.shares_memory(fit_images(images[:, :, :20, :20], 1), images)
    images[0] = 0
    assert (grey_folder / "train_images.npy").read_bytes() == before


def test_streetdigits_is_drawn_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = load("streetdigits", tmp_path, 60, 20, 3)
    monkeypatch.setattr(loading.streetdigits, "draw", None)
    again = load("streetdigits", tmp_path, 60, 20, 3)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert [p.name.split("-")[0] for p in (tmp_path / "fl2fast").iterdir()] == ["streetdigits"]


def test_an_unwritable_cache_only_costs_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fl2fast").write_text("a file where the cache would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert len(load("streetdigits", tmp_path, 30, 10, 0).train_labels) == 30


def test_images_are_fitted() -> None:
    grey = np.full((2, 1, 28, 28), 9, dtype=np.uint8)
    fitted = fit_images(grey, 3)
    assert fitted.shape == (2, 3, 32, 32)
    assert (fitted[:, :, 2:30, 2:30] == 9).all()
    assert fitted[:, :, :2].max() == 0
    assert fit_images(grey, 1).shape == (2, 1, 32, 32)
    assert fit_images(np.zeros((1, 3, 20, 24), np.uint8), 3).shape == (1, 3, 20, 24)
    with pytest.raises(UsageError, match="3"):
        fit_images(np.zeros((1, 3, 32, 32), np.uint8), 1)


def _images(**changes) -> np.ndarray:
    return np.zeros(changes.get("shape", (240, 1, 28, 28)), changes.get("dtype", np.uint8))


BREAKS = {
    "missing": ("train_images", None, "missing"),
    "float images": ("train_images", _images(dtype=np.float32), "uint8"),
    "three axes": ("train_images", _images(shape=(240, 28, 28)), "uint8"),
    "two channels": ("train_images", _images(shape=(240, 2, 28, 28)), "uint8"),
    "tiny": ("train_images", _images(shape=(240, 1, 4, 4)), "at least 8"),
    "other size in test": ("test_images", _images(shape=(60, 1, 32, 32)), "equal"),
    "too few labels": ("train_labels", np.zeros(239, np.int64), "one per image"),
    "float labels": ("train_labels", np.zeros(240), "int64"),
    "negative label": ("test_labels", np.full(60, -1), "from 0"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_broken_folders_are_refused(case: str, grey_folder: Path, tmp_path: Path) -> None:
    name, array, words = BREAKS[case]
    folder = tmp_path / "data"
    shutil.copytree(grey_folder, folder)
    (folder / f"{name}.npy").unlink()
    if array is not None:
        np.save(folder / f"{name}.npy", array)
    with pytest.raises(UsageError, match=words) as refusal:
        read_folder(folder)
    assert name.split("_")[0] in str(refusal.value)


def test_a_truncated_file_is_refused(grey_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(grey_folder, folder)
    path = folder / "train_images.npy"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"train_images\.npy is not a readable"):
        read_folder(folder)
