"""Get a published dataset into the data folder, whole or not at all.

Work happens in a hidden scratch folder beside the target, which a rename puts into place. The
scratch folder is also the lock: whoever holds it works, others wait, and the system lets go of it
when its holder dies. What a killed process leaves behind is cleared by the next one, except files
that were downloaded whole.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import IO

from fl2fast.data.arrays import FILES, Arrays, read_folder, write_folder
from fl2fast.data.published import PUBLISHED, OfficialFile, official_files
from fl2fast.errors import UsageError

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 100

Progress = Callable[[str, int, int | None], object]  # what happens, bytes done, bytes in all


def silent(title: str, done: int, total: int | None) -> None:
    return


class Unreachable(Exception):
    """The network failed, not the disk."""


def get(name: str, data_dir: Path, progress: Progress = silent) -> Path:
    """The folder of a published dataset, which is downloaded and prepared if it is not there."""
    folder = data_dir / name
    if os.path.isdir(folder):
        return folder
    with _sole_scratch(folder, _megabytes(name), progress) as scratch:
        if not os.path.isdir(folder):  # else another process made it while this one waited
            packaged = PUBLISHED[name].packaged
            if packaged is not None and os.path.isdir(packaged):
                arrays = _read(name, packaged, packaged, progress)
            else:
                files = official_files(name)
                advice = (
                    f"get {' and '.join(file.name for file in files)} by other means and run "
                    f"`fl2fast data import {name} FOLDER`, put {', '.join(FILES)} into "
                    f"{str(folder)!r}, or use --dataset streetdigits, which needs no files"
                )
                for file in files:
                    _download(file, scratch, folder, advice, progress)
                arrays = _read(name, scratch, data_dir, progress)
            _publish(arrays, scratch, folder, progress)
    return folder


def get_files(
    folder: Path,
    files: tuple[OfficialFile, ...],
    megabytes: int,
    advice: str,
    progress: Progress = silent,
) -> None:
    """Download official files as they are into a folder that is not there, or say `advice`."""
    if os.path.isdir(folder):
        return
    with _sole_scratch(folder, megabytes, progress) as scratch:
        if not os.path.isdir(folder):
            for file in files:
                _download(file, scratch, folder, advice, progress)
            made = scratch / "files"
            made.mkdir()
            for file in files:
                (scratch / file.name).rename(made / file.name)
            made.rename(folder)


def import_files(name: str, path: Path, data_dir: Path, progress: Progress = silent) -> Path:
    """Prepare a published dataset from its official files, or from arrays, in `path`."""
    if name not in PUBLISHED:
        raise UsageError(
            f"unknown dataset {name!r}: choose {', '.join(PUBLISHED)}; arrays of your own need no "
            "import: --dataset FOLDER"
        )
    folder, files = data_dir / name, official_files(name)
    _refuse_second(folder)
    if not os.path.exists(path):
        raise UsageError(f"{str(path)!r} does not exist: give a folder with {_wanted(name)}")
    found = [_find(file.name, path) for file in files]
    with _sole_scratch(folder, _megabytes(name), progress) as scratch:
        _refuse_second(folder)  # another process may have been first
        if None not in found:
            for file, original in zip(files, found, strict=True):
                assert original is not None
                if (md5 := _md5(original, progress)) != file.md5:
                    raise UsageError(
                        f"{str(original)!r} is corrupt: expected MD5 {file.md5}, found {md5}; get "
                        "it again"
                    )
                (scratch / file.name).unlink(missing_ok=True)  # of a killed download
                (scratch / file.name).symlink_to(original.resolve())
            arrays = _read(name, scratch, path, progress)
        elif all(os.path.isfile(path / file) for file in FILES):
            arrays = _known_arrays(name, path)
        else:
            raise UsageError(f"{str(path)!r} does not hold {name}: it needs {_wanted(name)}")
        _publish(arrays, scratch, folder, progress)
    return folder


def _refuse_second(folder: Path) -> None:
    if os.path.isdir(folder):
        raise UsageError(
            f"{folder.name} is already in {str(folder)!r}: remove that folder to import anew"
        )


def _find(name: str, path: Path) -> Path | None:
    """An official file below a folder, the shallowest one; or beside a file that was named."""
    if not path.is_dir():
        return path.parent / name if os.path.isfile(path.parent / name) else None
    return min(path.rglob(name), key=lambda file: (len(file.parts), file), default=None)


def _wanted(name: str) -> str:
    files = " and ".join(file.name for file in official_files(name))
    return f"{files}, or {', '.join(FILES)}"


def _publish(arrays: Arrays, scratch: Path, folder: Path, progress: Progress) -> None:
    progress(f"writing {folder}", 0, None)
    write_folder(arrays, scratch / "arrays")
    (scratch / "arrays").rename(folder)


def _read(name: str, files: Path, origin: Path, progress: Progress) -> Arrays:
    """Arrays of the official files in a folder; a sentence about them names their origin."""
    progress(f"reading {name}", 0, None)
    entry = PUBLISHED[name]
    try:
        arrays = entry.read(files)
    except MemoryError:
        raise
    except Exception as error:  # a broken archive fails in as many ways as there are formats
        raise UsageError(
            f"the files of {name} in {str(origin)!r} cannot be read ({error}): get them again"
        ) from error
    if entry.checksum is not None and (checksum := arrays.checksum()) != entry.checksum:
        raise UsageError(
            f"the files of {name} in {str(origin)!r} hold other images: expected SHA-256 "
            f"{entry.checksum}, found {checksum}; get them again"
        )
    return arrays


def _known_arrays(name: str, folder: Path) -> Arrays:
    """Arrays that go by a published name must be that dataset."""
    expected = PUBLISHED[name].checksum
    instead = f"use them as --dataset {str(folder)!r}"
    if expected is None:
        raise UsageError(
            f"arrays cannot be imported as {name}, whose checksum is not known: import "
            f"{official_files(name)[0].name}, or {instead}"
        )
    arrays = read_folder(folder)
    if (checksum := arrays.checksum()) != expected:
        raise UsageError(
            f"the arrays in {str(folder)!r} are not {name}: expected SHA-256 {expected}, found "
            f"{checksum}; {instead}"
        )
    return arrays


def _md5(path: Path, progress: Progress) -> str:
    found, done = hashlib.md5(usedforsecurity=False), 0
    try:
        total = path.stat().st_size
        with path.open("rb") as content:
            while chunk := content.read(CHUNK):
                found.update(chunk)
                done += len(chunk)
                progress(f"checking {path.name.removesuffix('.part')}", done, total)
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be read ({error.strerror}): get it again"
        ) from error
    return found.hexdigest()


def _download(
    file: OfficialFile, scratch: Path, folder: Path, advice: str, progress: Progress
) -> None:
    target = scratch / file.name
    if target.is_file():  # only whole files bear their own name
        return
    partial = scratch / f"{file.name}.part"
    reason = "FL2FAST_OFFLINE is set"
    for url in () if os.environ.get("FL2FAST_OFFLINE") else file.urls:
        try:
            _fetch(url, partial, lambda done, total: progress(f"getting {file.name}", done, total))
        except Unreachable as error:
            reason = f"{url}: {error}"
            continue
        if (md5 := _md5(partial, progress)) == file.md5:
            partial.rename(target)
            return
        reason = f"{url} is corrupt: expected MD5 {file.md5}, found {md5}"
    raise UsageError(
        f"dataset {folder.name!r} is not in {str(folder.parent)!r} and cannot be downloaded "
        f"({reason}): {advice}"
    )


def _fetch(url: str, target: Path, progress: Callable[[int, int | None], object]) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "fl2fast"})
    with _network():
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    with answer, target.open("wb") as file:
        total = answer.length
        while chunk := _receive(answer):
            file.write(chunk)
            progress(file.tell(), total)
        if total is not None and file.tell() != total:
            raise Unreachable(f"broke off after {file.tell():,} of {total:,} bytes")


def _receive(answer: IO[bytes]) -> bytes:
    with _network():
        return answer.read(CHUNK)


@contextmanager
def _network() -> Iterator[None]:
    """Errors of the network; those of the disk bear the same type."""
    try:
        yield
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(str(reason) or type(error).__name__) from error


@contextmanager
def _sole_scratch(folder: Path, megabytes: int, progress: Progress) -> Iterator[Path]:
    """The scratch folder of a target, held by this process alone and gone afterwards."""
    path = folder.with_name(f".{folder.name}.partial")
    try:
        new_parents = [parent for parent in path.parents if not os.path.exists(parent)]
        handle = _hold(path, lambda: progress(f"waiting for {path}, which is in use", 0, None))
        try:
            for leftover in path.iterdir():
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover)
                elif leftover.suffix == ".part" or leftover.is_symlink():
                    leftover.unlink()
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)
            for parent in new_parents:
                with suppress(OSError):  # it holds something, or somebody else removed it
                    parent.rmdir()
    except OSError as error:
        where = str(folder.parent)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = (
                f"no space left in {where!r}: preparing {folder.name} takes about "
                f"{megabytes} MB; make room or choose another --data-dir"
            )
        else:
            message = (
                f"cannot write to {where!r} ({error.strerror or error}): choose another --data-dir"
            )
        raise UsageError(message) from error


def _megabytes(name: str) -> int:
    """Official files and arrays together."""
    entry = PUBLISHED[name]
    channels, height, width = entry.shape
    arrays = (entry.train + entry.test) * (channels * height * width + 8)
    return entry.megabytes + arrays // 1_000_000


def _hold(path: Path, wait: Callable[[], object]) -> int:
    """Make the folder and lock it; returns the open handle that holds the lock."""
    while True:
        handle = _open_folder(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # its last holder has removed it
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)


def _open_folder(path: Path) -> int:
    for _ in range(ATTEMPTS):  # somebody may remove it between the two calls, but not every time
        with suppress(FileNotFoundError):
            path.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDONLY)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
