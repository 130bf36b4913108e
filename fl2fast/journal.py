"""Files of JSON lines that only grow, and can be cut back to what they were."""

import hashlib
import json
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fl2fast.durable import be_plain, write_whole
from fl2fast.errors import UsageError

CHUNK = 1 << 20
METRICS, TIMING, DIAGNOSTICS = "metrics.jsonl", "timing.jsonl", "diagnostics.jsonl"


class Cursor(NamedTuple):
    """How far a journal reached, and the checksum of all before."""

    size: int
    sha256: str


class Damaged(Exception):
    """A stored file is not what was written; the message names it."""


class Journal:
    """Appends rows; `cursor` says where it stands."""

    def __init__(self, path: Path, cursor: Cursor | None = None) -> None:
        """A new file, or an old one cut back to a cursor that `check` has passed."""
        self._digest, self._size = hashlib.sha256(), 0
        if cursor is None:
            be_plain(path)
        else:
            self._digest, self._size = _digest(path, cursor), cursor.size
        self._file = path.open("ab" if cursor else "wb", buffering=0)
        self._file.truncate(self._size)

    @property
    def cursor(self) -> Cursor:
        return Cursor(self._size, self._digest.hexdigest())

    def append(self, rows: list[dict[str, Any]]) -> None:
        content = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
        left = memoryview(content)
        while left:  # a nearly full disk takes a part of it
            left = left[os.write(self._file.fileno(), left) :]
        self._digest.update(content)
        self._size += len(content)

    def close(self) -> None:
        self._file.close()


def check(path: Path, cursor: Cursor) -> None:
    """Refuse, with `Damaged`, a file that does not begin with what the cursor saw."""
    if _digest(path, cursor).hexdigest() != cursor.sha256:
        raise Damaged(f"{path.name} is not what it was")


def trim(path: Path, last: int) -> None:
    """Keep, of a file that nothing depends on, the rows of rounds up to `last`."""

    def wanted(line: bytes) -> bool:
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            return json.loads(line)["round"] <= last
        return False

    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    write_whole(path, b"".join(ln for ln in lines if ln.endswith(b"\n") and wanted(ln)))


def read_rows(path: Path, names: Collection[str]) -> list[dict[str, Any]]:
    """Rows with these names and with numbers only, singly or in lists."""
    try:
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        if all(set(names) == set(row) and all(map(_numeric, row.values())) for row in rows):
            return rows
    except (ValueError, TypeError, RecursionError):
        pass
    raise UsageError(f"{str(path)!r} holds rows that no run has written: start a new run")


def _numeric(value: Any) -> bool:
    return value is None or isinstance(value, float | int) or all(map(_numeric, value))


def _digest(path: Path, cursor: Cursor) -> "hashlib._Hash":
    digest, left = hashlib.sha256(), cursor.size
    if path.exists() and not path.is_file():  # a pipe or a device might never end
        raise Damaged(f"{path.name} is no file")
    try:
        with path.open("rb") as file:
            while left and (part := file.read(min(CHUNK, left))):
                digest.update(part)
                left -= len(part)
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from error
    if left:
        raise Damaged(f"{path.name} is too short")
    return digest
