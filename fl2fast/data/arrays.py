"""A dataset as arrays, and a folder of them: {train,test}_{images,labels}.npy."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.lib.format as npy

from fl2fast.data.npy import map_npy
from fl2fast.errors import UsageError

SPLITS = ("train", "test")
SIDES = (8, 4096)  # pixels
MOST_CLASSES = 10_000


class Arrays(NamedTuple):
    train_images: np.ndarray  # uint8 [N, C, H, W]
    train_labels: np.ndarray  # int64 [N]
    test_images: np.ndarray
    test_labels: np.ndarray

    @property
    def num_classes(self) -> int:
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1

    def checksum(self) -> str:
        """SHA-256 of shapes and values, whatever file they came from."""
        digest = hashlib.sha256()
        for array in self:
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


FILES = tuple(f"{name}.npy" for name in Arrays._fields)


def write_folder(arrays: NamedTuple, folder: Path) -> None:
    """Write every field and sync, so that a later rename of the folder never outruns its files."""
    folder.mkdir()
    for name, array in zip(arrays._fields, arrays, strict=True):
        array = np.ascontiguousarray(array)
        with (folder / f"{name}.npy").open("wb") as file:
            # np.save would report a full disk without its error number.
            npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
            file.write(array.data)
            file.flush()
            os.fsync(file.fileno())


def try_to_cache(arrays: NamedTuple, folder: Path) -> None:
    """Rename a whole folder into place; a cache that cannot be written only costs time."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / folder.name
            write_folder(arrays, made)
            made.rename(folder)
    except OSError:
        return


def read_folder(folder: Path) -> Arrays:
    """The arrays of a folder, memory-mapped; what is wrong with them is said in one sentence."""
    arrays = []
    for split in SPLITS:
        images = _read(folder / f"{split}_images.npy")
        labels = _read(folder / f"{split}_labels.npy")
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise UsageError(
                f"{folder / f'{split}_images.npy'} holds {images.dtype} of shape {images.shape}, "
                "but images must be uint8 of shape (N, C, H, W) with C = 1 or 3"
            )
        if min(images.shape[2:]) < SIDES[0] or max(images.shape[2:]) > SIDES[1]:
            raise UsageError(
                f"{folder / f'{split}_images.npy'} has images of {images.shape[2:]} pixels, but "
                f"each side must be at least {SIDES[0]} and at most {SIDES[1]}"
            )
        if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or not len(labels):
            raise UsageError(
                f"{folder / f'{split}_labels.npy'} holds {labels.dtype} of shape {labels.shape}, "
                f"but labels must be int64 of shape ({len(images)},), one per image, at least one"
            )
        wrong = labels.min() if labels.min() < 0 else labels.max()
        if not 0 <= wrong < MOST_CLASSES:
            raise UsageError(
                f"{folder / f'{split}_labels.npy'} has the label {wrong}, but labels count from 0 "
                f"to at most {MOST_CLASSES - 1:,}: number the classes anew"
            )
        arrays += [images, labels.astype(np.int64)]
    if arrays[0].shape[1:] != arrays[2].shape[1:]:
        raise UsageError(
            f"{folder} has train images of {arrays[0].shape[1:]} but test images of "
            f"{arrays[2].shape[1:]}: make them equal"
        )
    return Arrays(*arrays)


def _read(path: Path) -> np.ndarray:
    if not os.path.isfile(path):
        raise UsageError(
            f"{path} is missing: a dataset folder holds {{train,test}}_{{images,labels}}.npy"
        )
    try:
        return map_npy(path)
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} is not a readable .npy file ({error}): write it again") from error
