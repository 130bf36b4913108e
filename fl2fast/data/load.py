"""From a dataset's name or folder to arrays: uint8 images [N, C, H, W], int64 labels [N]."""

import hashlib
import os
from pathlib import Path

import numpy as np

from fl2fast.cache import cache_dir
from fl2fast.data import streetdigits
from fl2fast.data.arrays import Arrays, read_folder, try_to_cache
from fl2fast.data.prepare import get
from fl2fast.data.published import PUBLISHED
from fl2fast.data.settings import SETTINGS, TEXTS
from fl2fast.errors import UsageError, brief


def default_data_dir() -> Path:
    """The variable FL2FAST_DATA, else the user's cache folder."""
    return Path(os.environ.get("FL2FAST_DATA") or cache_dir())


def load(name: str, data_dir: Path, train_size: int, test_size: int, data_seed: int) -> Arrays:
    """A named dataset or any folder of .npy files, its first images; a size of 0 means all.

    A published dataset that is not there is downloaded; streetdigits is drawn from `data_seed`.
    """
    if name == "streetdigits":
        return _streetdigits(train_size, test_size, data_seed)
    check_dataset(name)
    if name in TEXTS:
        raise UsageError(f"{name} is text and has no images: choose another dataset")
    arrays = read_folder(get(name, data_dir) if name in PUBLISHED else Path(name))
    for split, size, labels in (
        ("train", train_size, arrays.train_labels),
        ("test", test_size, arrays.test_labels),
    ):
        if size > len(labels):
            raise UsageError(
                f"{split}_size is {size}, but {name} has {len(labels)} {split} images: choose "
                "fewer, or 0 for all"
            )
    train, test = slice(train_size or None), slice(test_size or None)
    return Arrays(
        arrays.train_images[train],
        arrays.train_labels[train],
        arrays.test_images[test],
        arrays.test_labels[test],
    )


def check_dataset(name: str) -> None:
    """Refuse a name that is neither a known dataset nor a folder."""
    if name not in SETTINGS and not os.path.isdir(name):
        raise UsageError(
            f"unknown dataset {brief(name)}: choose {', '.join(SETTINGS)}, or give an existing "
            "folder that holds {train,test}_{images,labels}.npy"
        )


def _streetdigits(train_size: int, test_size: int, seed: int) -> Arrays:
    """Drawn once, then read from the cache; the folder's name says what drew it."""
    train_size, test_size = (
        train_size or streetdigits.TRAIN_SIZE,
        test_size or streetdigits.TEST_SIZE,
    )
    source = hashlib.sha256(Path(streetdigits.__file__).read_bytes()).hexdigest()[:12]
    folder = cache_dir() / f"streetdigits-{source}-{train_size}-{test_size}-{seed}"
    if folder.is_dir():
        return _read_cached(folder, train_size, test_size)
    train = streetdigits.draw(train_size, seed, "train")
    test = streetdigits.draw(test_size, seed, "test")
    arrays = Arrays(*train, *test)
    try_to_cache(arrays, folder)
    return arrays


def _read_cached(folder: Path, train_size: int, test_size: int) -> Arrays:
    try:
        arrays = read_folder(folder)
        sizes, image = tuple(map(len, arrays[::2])), arrays.train_images.shape[1:]
        wanted = (train_size, test_size), (3, streetdigits.SIDE, streetdigits.SIDE)
        if (sizes, image) != wanted or arrays.num_classes > streetdigits.NUM_CLASSES:
            raise UsageError(f"it holds {sizes} images of {image} in {arrays.num_classes} classes")
    except UsageError as error:
        raise UsageError(
            f"the cached streetdigits in {str(folder)!r} are damaged ({error}): remove that folder"
        ) from error
    return arrays


def fit_images(images: np.ndarray, channels: int) -> np.ndarray:
    """Pad 28-pixel sides to 32 with black, and repeat grey to the channels the model expects."""
    if 28 in images.shape[2:]:
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
