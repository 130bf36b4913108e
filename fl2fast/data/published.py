"""The published datasets: their official files and how those become arrays.

Addresses and MD5 checksums are torchvision's. The checksum of the arrays is ours: it holds for any
source of the same images, such as a distribution's package or somebody's own arrays.
"""

import gzip
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fl2fast.data.arrays import Arrays


class OfficialFile(NamedTuple):
    name: str
    urls: tuple[str, ...]
    md5: str


class Published(NamedTuple):
    train: int
    test: int
    shape: tuple[int, int, int]  # C, H, W
    classes: int
    megabytes: int  # to download
    read: Callable[[Path], Arrays]  # from a folder that holds the official files
    checksum: str | None = None  # of the arrays
    packaged: Path | None = None  # where a Debian package puts the official content


def official_files(name: str) -> tuple[OfficialFile, ...]:
    from torchvision import datasets  # seconds to import, and only needed here

    if name == "svhn":
        listed = (datasets.SVHN.split_list[split] for split in ("train", "test"))
        return tuple(OfficialFile(file, (url,), md5) for url, file, md5 in listed)
    if name == "fashion-mnist":
        source = datasets.FashionMNIST
        return tuple(
            OfficialFile(file, tuple(mirror + file for mirror in source.mirrors), md5)
            for file, md5 in source.resources
        )
    source = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
    return (OfficialFile(source.filename, (source.url,), source.tgz_md5),)


def _read_svhn(folder: Path) -> Arrays:
    """MATLAB files: images (H, W, C, N), labels 1 to 10, where 10 is the digit 0."""
    from scipy.io import loadmat

    arrays = []
    for split in ("train", "test"):
        content = loadmat(folder / f"{split}_32x32.mat")
        images = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
        arrays += [images, content["y"].ravel().astype(np.int64) % 10]
    return Arrays(*arrays)


def _read_cifar10(folder: Path) -> Arrays:
    return _read_cifar(
        folder / "cifar-10-python.tar.gz",
        [f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)],
        "cifar-10-batches-py/test_batch",
        "labels",
    )


def _read_cifar100(folder: Path) -> Arrays:
    return _read_cifar(
        folder / "cifar-100-python.tar.gz",
        ["cifar-100-python/train"],
        "cifar-100-python/test",
        "fine_labels",
    )


def _read_cifar(archive: Path, train: list[str], test: str, key: str) -> Arrays:
    """Pickles of rows of 3 * 1024 bytes, plane after plane."""
    arrays = []
    with tarfile.open(archive) as tar:
        for members in (train, [test]):
            parts = []
            for member in members:
                file = tar.extractfile(member)
                assert file is not None, f"{member} is no file"
                parts.append(pickle.load(file, encoding="latin1"))
            images = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, 32, 32)
            arrays += [images, np.concatenate([part[key] for part in parts]).astype(np.int64)]
    return Arrays(*arrays)


def _read_fashion_mnist(folder: Path) -> Arrays:
    """IDX files: a magic number whose last byte counts the axes, their lengths, the bytes."""

    def read(stem: str) -> np.ndarray:
        raw = gzip.decompress((folder / f"{stem}.gz").read_bytes())
        axes = raw[3]
        shape = np.frombuffer(raw, ">u4", count=axes, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)

    arrays = []
    for stem in ("train", "t10k"):
        images, labels = read(f"{stem}-images-idx3-ubyte"), read(f"{stem}-labels-idx1-ubyte")
        arrays += [images[:, None], labels.astype(np.int64)]
    return Arrays(*arrays)


PUBLISHED: dict[str, Published] = {
    "svhn": Published(
        73_257,
        26_032,
        (3, 32, 32),
        10,
        246,
        _read_svhn,
        "eea13846e8103082b8d58ffc326ce2830f312dfa2940e6d5a7aa5a2e1a42f908",
    ),
    "cifar10": Published(
        50_000,
        10_000,
        (3, 32, 32),
        10,
        170,
        _read_cifar10,
        "20ec2e2fcc4d2042e268071679229350a3ba532a0645fefc7ef36d5daabb6144",
    ),
    # No checksum of our own: the arrays have not been at hand, the official file's MD5 decides.
    "cifar100": Published(50_000, 10_000, (3, 32, 32), 100, 169, _read_cifar100),
    "fashion-mnist": Published(
        60_000,
        10_000,
        (1, 28, 28),
        10,
        31,
        _read_fashion_mnist,
        "0660bde77cbfdf34c87ca9fdf85f8717bc3e563821d8bfa4c96aa01b3ba24285",
        Path("/usr/share/datasets/fashion-mnist"),
    ),
}
