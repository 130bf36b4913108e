"""A TRACE.npz: the arrays of one recorded round and its config, read within stated limits.

A zip file may claim anything about what it holds, and a few kilobytes of it may hold gigabytes. Its
table of contents and the sizes there are bounded before anything is unpacked, and no more than was
stated is unpacked afterwards.
"""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fl2fast.data.npy import MOST_HEADER, read_header
from fl2fast.errors import UsageError
from fl2fast.models.layout import Layout

MOST_BYTES = 4 << 30  # of all arrays,
MOST_TIMES = 100  # and so many times the file, where that is less; but
FEW_BYTES = 32 << 20  # are always allowed
MOST_AT_ONCE = 4 << 20  # bytes: zipfile reads the table of contents in one call
MOST_CONFIG = 1 << 18  # bytes
STREAMED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others unpack more than is asked for


class _Sips(io.FileIO):
    """A file that is never read in large pieces."""

    def read(self, size: int | None = -1) -> bytes:
        most = MOST_AT_ONCE + 1
        content = super().read(most if size is None or size < 0 else min(size, most))
        if len(content) == most:
            raise ValueError(f"its table of contents has more than {MOST_AT_ONCE:,} bytes")
        return content


class Trace:
    """The arrays of one recorded round, and its configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not os.path.exists(path):
            raise UsageError(f"trace {str(path)!r} does not exist: give a TRACE.npz")
        try:
            if not os.path.isfile(path):
                raise ValueError("it is not a regular file")
            self.arrays = _read_archive(path)
            self.config = _read_config(self.arrays.pop("config"))
        except Exception as error:  # a damaged archive fails in a dozen ways; all mean the same
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(
                f"trace {str(path)!r} is not a whole trace ({reason}): record or copy it again"
            ) from error

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self.arrays[name]
        except KeyError:
            raise UsageError(
                f"trace {str(self.path)!r} lacks the array {name!r}: record or copy it again"
            ) from None

    def setting(self, name: str) -> Any:
        try:
            return self.config[name]
        except KeyError:
            raise UsageError(
                f"trace {str(self.path)!r} has no {name!r} in its config: record it again"
            ) from None

    def row(self, prefix: str, layout: Layout) -> np.ndarray:
        """The parameter tree under `prefix` as one row [P]; a momentum never used is zero."""
        if "momentum" in prefix and not any(n.startswith(f"{prefix}/") for n in self.arrays):
            return np.zeros(layout.width)
        return np.concatenate(
            [
                self.shaped(f"{prefix}/{name}", shape).ravel()
                for name, shape in zip(layout.names, layout.shapes, strict=True)
            ]
        )

    def shaped(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        if self[name].shape != tuple(shape):
            raise UsageError(
                f"trace {str(self.path)!r} has {name!r} of shape {self[name].shape}, but its "
                f"config means {tuple(shape)}: record it again"
            )
        return self[name]

    def images(self, name: str) -> np.ndarray:
        """At least one image of three colours."""
        array = self[name]
        if array.ndim != 4 or array.shape[1] != 3 or not array.size:
            raise UsageError(
                f"trace {str(self.path)!r} has {name!r} of shape {array.shape}, but images are "
                "(N, 3, H, W): record it again"
            )
        return array

    def places(self, name: str, num: int) -> np.ndarray:
        """At least one integer from 0 to below `num`."""
        array = self[name]
        whole = array.ndim == 1 and array.dtype.kind in "iu" and len(array)
        if not whole or array.min() < 0 or array.max() >= num:
            raise UsageError(
                f"trace {str(self.path)!r} has {array.dtype} of shape {array.shape} in {name!r}, "
                f"but it must hold integers from 0 to {num - 1}: record it again"
            )
        return array.astype(np.int64)

    def count(self, pattern: str) -> int:
        num = 0
        while pattern.format(num) in self.arrays:
            num += 1
        return num


def _read_archive(path: Path) -> dict[str, np.ndarray]:
    most = min(MOST_BYTES, max(FEW_BYTES, MOST_TIMES * path.stat().st_size))
    with _Sips(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        stated = sum(member.file_size for member in members)
        if stated > most:
            raise ValueError(f"it states {stated:,} bytes of arrays, of which {most:,} are allowed")
        arrays = {m.filename.removesuffix(".npy"): _read_array(archive, m) for m in members}
    words = [name for name, array in arrays.items() if array.dtype.kind == "U"]
    if words not in ([], ["config"]):
        raise ValueError(f"{words[0]!r} holds text")
    return arrays


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    if member.compress_type not in STREAMED:
        raise ValueError(f"{member.filename!r} is compressed in another way than numpy does")
    with archive.open(member) as file:
        start = file.read(MOST_HEADER)
        header = read_header(start)
        if header.offset + header.nbytes != member.file_size:
            raise ValueError(f"{member.filename!r} is not as long as its header claims")
        content = bytearray(start[header.offset :])
        while piece := file.read(MOST_AT_ONCE):
            content += piece
    if len(content) != header.nbytes:
        raise ValueError(f"{member.filename!r} is shorter than it states")
    order = "F" if header.fortran else "C"
    return np.frombuffer(content, header.dtype).reshape(header.shape, order=order)


def _read_config(array: np.ndarray) -> dict[str, Any]:
    if array.nbytes > MOST_CONFIG:
        raise ValueError(f"its config has more than {MOST_CONFIG:,} bytes")
    config = json.loads(str(array))
    if not isinstance(config, dict):
        raise ValueError("its config is no table")
    return config
