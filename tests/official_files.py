"""Small files in the official formats, a server for them, and torchvision's tables turned to it."""

import gzip
import hashlib
import io
import pickle
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from scipy.io import savemat
from torchvision import datasets

from fl2fast.data import published
from fl2fast.data.arrays import Arrays


def small_arrays(name: str, train: int = 60, test: int = 20) -> Arrays:
    entry = published.PUBLISHED[name]
    draws = np.random.Generator(np.random.Philox(5))
    parts = []
    for num in (train, test):
        images = draws.integers(0, 256, (num, *entry.shape), dtype=np.uint8)
        parts += [images, np.arange(num, dtype=np.int64) * 7 % entry.classes]
    if entry.classes > 20:
        parts[1][-1] = parts[3][-1] = entry.classes - 1
    return Arrays(*parts)


def write_official(name: str, arrays: Arrays, folder: Path) -> list[str]:
    """The files as their publishers lay them out; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    writers: dict[str, Callable[[Arrays, Path], list[str]]] = {
        "svhn": _write_svhn,
        "cifar10": _write_cifar10,
        "cifar100": _write_cifar100,
        "fashion-mnist": _write_fashion_mnist,
    }
    return writers[name](arrays, folder)


def _write_svhn(arrays: Arrays, folder: Path) -> list[str]:
    for split, images, labels in (("train", *arrays[:2]), ("test", *arrays[2:])):
        y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(folder / f"{split}_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": y})
    return ["train_32x32.mat", "test_32x32.mat"]


def _write_cifar10(arrays: Arrays, folder: Path) -> list[str]:
    members = {}
    halves = zip(np.array_split(arrays[0], 5), np.array_split(arrays[1], 5), strict=True)
    for i, (images, labels) in enumerate(halves, start=1):
        members[f"cifar-10-batches-py/data_batch_{i}"] = (images, "labels", labels)
    members["cifar-10-batches-py/test_batch"] = (arrays[2], "labels", arrays[3])
    return _write_tar(members, folder / "cifar-10-python.tar.gz")


def _write_cifar100(arrays: Arrays, folder: Path) -> list[str]:
    members = {
        "cifar-100-python/train": (arrays[0], "fine_labels", arrays[1]),
        "cifar-100-python/test": (arrays[2], "fine_labels", arrays[3]),
    }
    return _write_tar(members, folder / "cifar-100-python.tar.gz")


def _write_tar(members: dict, path: Path) -> list[str]:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, (images, key, labels) in members.items():
            content = {"data": images.reshape(len(images), -1), key: labels.tolist()}
            raw = pickle.dumps(content, protocol=2)
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return [path.name]


def _write_fashion_mnist(arrays: Arrays, folder: Path) -> list[str]:
    names = []
    for stem, images, labels in (("train", *arrays[:2]), ("t10k", *arrays[2:])):
        for kind, array in (("images-idx3", images[:, 0]), ("labels-idx1", labels)):
            raw = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
            names.append(f"{stem}-{kind}-ubyte.gz")
            content = raw + array.astype(np.uint8).tobytes()
            (folder / names[-1]).write_bytes(gzip.compress(content, 1, mtime=0))
    return names


class Served:
    """What the server did, and how it is to misbehave."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.break_off: set[str] = set()  # names sent by half
        self.hold: dict[str, threading.Event] = {}  # names whose second half waits
        self.half_sent: dict[str, threading.Event] = {}
        self.url = ""


@contextmanager
def serve(folder: Path) -> Iterator[Served]:
    """Serve a folder's files on the loopback address."""
    served = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rsplit("/", 1)[-1]
            served.asked[name] += 1
            path = folder / name
            if not path.is_file() or "/missing/" in self.path:
                self.send_error(404)
                return
            raw = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            middle = len(raw) // 2
            self.wfile.write(raw[:middle])
            self.wfile.flush()
            if name in served.half_sent:
                served.half_sent[name].set()
            if name in served.break_off:
                return
            if name in served.hold:
                served.hold[name].wait(60)
            self.wfile.write(raw[middle:])

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def point_torchvision_at(url: str, folder: Path, set_attribute: Callable) -> None:
    """torchvision's tables with this server's addresses and these files' checksums."""

    def md5(name: str) -> str:
        path = folder / name
        return hashlib.md5(path.read_bytes()).hexdigest() if path.is_file() else "0" * 32

    split_list = {
        split: [f"{url}/{split}_32x32.mat", f"{split}_32x32.mat", md5(f"{split}_32x32.mat")]
        for split in ("train", "test")
    }
    set_attribute(datasets.SVHN, "split_list", split_list)
    for source in (datasets.CIFAR10, datasets.CIFAR100):
        set_attribute(source, "url", f"{url}/{source.filename}")
        set_attribute(source, "tgz_md5", md5(source.filename))
    resources = [(name, md5(name)) for name, _ in datasets.FashionMNIST.resources]
    set_attribute(datasets.FashionMNIST, "resources", resources)
    set_attribute(datasets.FashionMNIST, "mirrors", [f"{url}/missing/", f"{url}/"])


def shrink(name: str, arrays: Arrays, set_item: Callable) -> None:
    """Let a published name stand for small arrays."""
    entry = published.PUBLISHED[name]._replace(checksum=arrays.checksum(), packaged=None)
    set_item(published.PUBLISHED, name, entry)
