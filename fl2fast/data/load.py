"""From a dataset's name or folder to arrays: uint8 images [N, C, H, W], int64 labels [N]."""

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fl2fast.data import streetdigits
from fl2fast.data.settings import SETTINGS
from fl2fast.errors import UsageError

SPLITS = ("train", "test")


class Arrays(NamedTuple):
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @property
    def num_classes(self) -> int:
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1


def cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fl2fast"


def default_data_dir() -> Path:
    """The variable FL2FAST_DATA, else the user's cache folder."""
    return Path(os.environ.get("FL2FAST_DATA") or cache_dir())


def load(name: str, data_dir: Path, train_size: int, test_size: int, data_seed: int) -> Arrays:
    """A named dataset or any folder of .npy files; the sizes and seed are streetdigits' own."""
    if name == "streetdigits":
        return _streetdigits(train_size, test_size, data_seed)
    if name in SETTINGS:
        folder = data_dir / name
        if not folder.is_dir():
            raise UsageError(
                f"dataset {name!r} is not in {str(data_dir)!r}: put train_images.npy, "
                f"train_labels.npy, test_images.npy and test_labels.npy into {str(folder)!r}, or "
                "use --dataset streetdigits, which needs no files"
            )
        return load_folder(folder)
    check_dataset(name)
    return load_folder(Path(name))


def check_dataset(name: str) -> None:
    """Refuse a name that is neither a known dataset nor a folder."""
    if name not in SETTINGS and not Path(name).is_dir():
        raise UsageError(
            f"unknown dataset {name!r}: choose {', '.join(SETTINGS)}, or give an existing folder "
            "that holds {train,test}_{images,labels}.npy"
        )


def load_folder(folder: Path) -> Arrays:
    arrays = []
    for split in SPLITS:
        images = _read(folder / f"{split}_images.npy")
        labels = _read(folder / f"{split}_labels.npy")
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise UsageError(
                f"{folder / f'{split}_images.npy'} holds {images.dtype} of shape {images.shape}, "
                "but images must be uint8 of shape (N, C, H, W) with C = 1 or 3"
            )
        if min(images.shape[2:]) < 8:
            raise UsageError(
                f"{folder / f'{split}_images.npy'} has images of {images.shape[2:]} pixels, but "
                "each side must be at least 8"
            )
        if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or not len(labels):
            raise UsageError(
                f"{folder / f'{split}_labels.npy'} holds {labels.dtype} of shape {labels.shape}, "
                f"but labels must be int64 of shape ({len(images)},), one per image, at least one"
            )
        if labels.min() < 0:
            raise UsageError(
                f"{folder / f'{split}_labels.npy'} has the label {labels.min()}, but labels count "
                "from 0"
            )
        arrays += [images, labels.astype(np.int64)]
    if arrays[0].shape[1:] != arrays[2].shape[1:]:
        raise UsageError(
            f"{folder} has train images of {arrays[0].shape[1:]} but test images of "
            f"{arrays[2].shape[1:]}: make them equal"
        )
    return Arrays(*arrays)


def _read(path: Path) -> np.ndarray:
    if not path.is_file():
        raise UsageError(
            f"{path} is missing: a dataset folder holds {{train,test}}_{{images,labels}}.npy"
        )
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it holds an archive")
        return array
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is not a readable .npy file ({error}): write it again") from error


def _streetdigits(train_size: int, test_size: int, seed: int) -> Arrays:
    """Drawn once, then read from the cache; the folder's name says what drew it."""
    source = hashlib.sha256(Path(streetdigits.__file__).read_bytes()).hexdigest()[:12]
    folder = cache_dir() / f"streetdigits-{source}-{train_size}-{test_size}-{seed}"
    if folder.is_dir():
        return load_folder(folder)
    train = streetdigits.draw(train_size, seed, "train")
    test = streetdigits.draw(test_size, seed, "test")
    arrays = Arrays(*train, *test)
    _try_to_cache(arrays, folder)
    return arrays


def _try_to_cache(arrays: Arrays, folder: Path) -> None:
    """Rename a whole folder into place; a cache that cannot be written only costs time."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / folder.name
            made.mkdir()
            for name, array in arrays._asdict().items():
                np.save(made / f"{name}.npy", array)
            made.rename(folder)
    except OSError:
        return


def fit_images(images: np.ndarray, channels: int) -> np.ndarray:
    """Pad 28-pixel sides to 32 with black, and repeat grey to the channels the model expects."""
    height, width = ((2, 2) if side == 28 else (0, 0) for side in images.shape[2:])
    images = np.pad(images, ((0, 0), (0, 0), height, width))
    if images.shape[1] == channels:
        return images
    if images.shape[1] != 1:
        raise UsageError(
            f"the model takes {channels}-channel images, but the dataset's have "
            f"{images.shape[1]}: choose a model for {images.shape[1]} channels"
        )
    return np.repeat(images, channels, axis=1)
