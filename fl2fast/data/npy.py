"""One .npy file: its header, and a map of its elements. A header is held against the file's size.

A header may claim any shape, hold Python objects, or be longer than the file: none of it is
believed before it fits, and at most MOST_HEADER bytes are read of it.
"""

import io
import math
import os
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.lib.format as npy

MOST_HEADER = 16_384  # bytes; numpy's own are a few hundred


class Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    offset: int  # of the first element

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(start: bytes) -> Header:
    """From the first bytes of a file; what is no header of plain numbers is a ValueError."""
    file = io.BytesIO(start)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of headers that Python 2 wrote
            header = Header(*read(file), offset=file.tell())
    except Exception as error:  # numpy parses Python here, which fails in a dozen ways
        said = str(error).partition("\n")[0]
        raise ValueError(
            f"its header cannot be read: {said[:100] or type(error).__name__}"
        ) from error
    if header.dtype.kind not in "biufU" or not header.dtype.isnative:
        raise ValueError(f"it holds {header.dtype}, not plain numbers of this machine")
    if min(header.shape, default=1) < 0:
        raise ValueError(f"it claims the shape {header.shape}")
    return header


def map_npy(path: Path) -> np.ndarray:
    """The array of a file, memory-mapped; a file that is not whole and sound is a ValueError."""
    size = os.path.getsize(path)
    with path.open("rb") as file:
        header = read_header(file.read(MOST_HEADER))
        if header.offset + header.nbytes != size:
            raise ValueError(
                f"its header claims {header.dtype} of shape {header.shape}, which is "
                f"{header.nbytes:,} bytes, but {size - header.offset:,} follow"
            )
        if not header.nbytes:
            return np.empty(header.shape, header.dtype)
        order = "F" if header.fortran else "C"
        # Copy-on-write: torch wants writable memory, the file stays as it is.
        return np.memmap(file, header.dtype, "c", header.offset, header.shape, order)
