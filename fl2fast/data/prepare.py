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
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from fl2fast.data.arrays import FILES, Arrays, read_folder, write_folder
from fl2fast.data.published import PUBLISHED, OfficialFile, official_files
from fl2fast.errors import UsageError

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_ERRORS = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)

Progress = Callable[[str, int, int | None], object]  # what happens, bytes done, bytes in all


def silent(title: str, done: int, total: int | None) -> None:
    return


def get(name: str, data_dir: Path, progress: Progress = silent) -> Path:
    """The folder of a published dataset, which is downloaded and prepared if it is not there."""
    folder = data_dir / name
    if folder.is_dir():
        return folder
    with _sole_scratch(folder, progress) as scratch:
        if not folder.is_dir():  # else another process made it while this one waited
            packaged = PUBLISHED[name].packaged
            if packaged is not None and packaged.is_dir():
                arrays = _read(name, packaged, progress)
            else:
                for file in official_files(name):
                    _download(name, file, scratch, data_dir, progress)
                arrays = _read(name, scratch, progress)
            _publish(arrays, scratch, folder, progress)
    return folder


def import_files(name: str, path: Path, data_dir: Path, progress: Progress = silent) -> Path:
    """Prepare a published dataset from its official files, or from arrays, in `path`."""
    if name not in PUBLISHED:
        raise UsageError(
            f"unknown dataset {name!r}: choose {', '.join(PUBLISHED)}; arrays of your own need no "
            "import: --dataset FOLDER"
        )
    folder = data_dir / name
    if folder.is_dir():
        raise UsageError(f"{name} is already in {str(folder)!r}: remove that folder to import anew")
    if not path.exists():
        raise UsageError(f"{str(path)!r} does not exist: give a folder with {_wanted(name)}")
    source = path if path.is_dir() else path.parent
    found = {
        file.name: next(iter(sorted(source.rglob(file.name))), None)
        for file in official_files(name)
    }
    with _sole_scratch(folder, progress) as scratch:
        if None not in found.values():
            for file in official_files(name):
                original = found[file.name]
                assert original is not None
                _check(original, file, progress)
                (scratch / file.name).symlink_to(original.resolve())
            arrays = _read(name, scratch, progress)
        elif all((source / file).is_file() for file in FILES):
            arrays = _judged(name, read_folder(source), source)
        else:
            raise UsageError(f"{str(path)!r} does not hold {name}: it needs {_wanted(name)}")
        _publish(arrays, scratch, folder, progress)
    return folder


def _wanted(name: str) -> str:
    files = " and ".join(file.name for file in official_files(name))
    return f"{files}, or {', '.join(FILES)}"


def _publish(arrays: Arrays, scratch: Path, folder: Path, progress: Progress) -> None:
    progress(f"writing {folder}", 0, None)
    write_folder(arrays, scratch / "arrays")
    (scratch / "arrays").rename(folder)


def _read(name: str, source: Path, progress: Progress) -> Arrays:
    progress(f"reading {name}", 0, None)
    try:
        arrays = PUBLISHED[name].read(source)
    except MemoryError:
        raise
    except Exception as error:  # a broken archive fails in as many ways as there are formats
        raise UsageError(
            f"the files of {name} in {str(source)!r} cannot be read ({error}): get them again"
        ) from error
    return _judged(name, arrays, source)


def _judged(name: str, arrays: Arrays, source: Path) -> Arrays:
    """Arrays that go by a published name must be that dataset."""
    entry = PUBLISHED[name]
    shapes = ((entry.train, *entry.shape), (entry.test, *entry.shape))
    found = (arrays.train_images.shape, arrays.test_images.shape)
    if found != shapes or arrays.num_classes != entry.classes:
        raise UsageError(
            f"{str(source)!r} holds images of shapes {found} in {arrays.num_classes} classes, but "
            f"{name} has {shapes} in {entry.classes}: use it as --dataset {str(source)!r} instead"
        )
    if entry.checksum is not None and (checksum := arrays.checksum()) != entry.checksum:
        raise UsageError(
            f"the arrays in {str(source)!r} are not {name}: expected SHA-256 {entry.checksum}, "
            f"found {checksum}; use them as --dataset {str(source)!r} instead"
        )
    return arrays


def _check(path: Path, file: OfficialFile, progress: Progress) -> None:
    found, done, total = hashlib.md5(usedforsecurity=False), 0, path.stat().st_size
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            found.update(chunk)
            done += len(chunk)
            progress(f"checking {file.name}", done, total)
    if found.hexdigest() != file.md5:
        raise UsageError(
            f"{str(path)!r} is corrupt: expected MD5 {file.md5}, found {found.hexdigest()}; get it "
            "again"
        )


def _download(
    name: str, file: OfficialFile, scratch: Path, data_dir: Path, progress: Progress
) -> None:
    target = scratch / file.name
    if target.is_file():  # only whole files bear their own name
        return
    partial = scratch / f"{file.name}.part"
    reason = "FL2FAST_OFFLINE is set"
    for url in () if os.environ.get("FL2FAST_OFFLINE") else file.urls:
        try:
            _fetch(url, partial, lambda done, total: progress(f"getting {file.name}", done, total))
        except (OSError, HTTPException) as error:
            if getattr(error, "errno", None) in DISK_ERRORS:
                raise
            reason = f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}"
            continue
        _check(partial, file, progress)
        partial.rename(target)
        return
    raise UsageError(
        f"dataset {name!r} is not in {str(data_dir)!r} and cannot be downloaded ({reason}): get "
        f"{' and '.join(f.name for f in official_files(name))} by other means and run `fl2fast "
        f"data import {name} FOLDER`, put {', '.join(FILES)} into {str(data_dir / name)!r}, or use "
        "--dataset streetdigits, which needs no files"
    )


def _fetch(url: str, target: Path, progress: Callable[[int, int | None], object]) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "fl2fast"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, target.open("wb") as file:
        total = answer.length
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            progress(file.tell(), total)
        if total is not None and file.tell() != total:
            raise ConnectionError(f"broke off after {file.tell():,} of {total:,} bytes")


@contextmanager
def _sole_scratch(folder: Path, progress: Progress) -> Iterator[Path]:
    """The scratch folder of a target, held by this process alone and gone afterwards."""
    path = folder.with_name(f".{folder.name}.partial")
    new_parents = [parent for parent in path.parents if not parent.exists()]
    try:
        handle = _hold(path, lambda: progress(f"waiting for {path}, which is in use", 0, None))
        try:
            for leftover in path.iterdir():
                if leftover.is_dir():
                    shutil.rmtree(leftover)
                elif leftover.suffix == ".part" or leftover.is_symlink():
                    leftover.unlink()
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)
            for parent in new_parents:
                if not any(parent.iterdir()):
                    parent.rmdir()
    except OSError as error:
        if error.errno in FULL:
            size = PUBLISHED[folder.name].megabytes
            message = (
                f"no space left in {str(folder.parent)!r}: downloading and preparing {folder.name} "
                f"takes about {size + _array_megabytes(folder.name)} MB; make room or choose "
                "another --data-dir"
            )
        else:
            message = (
                f"cannot write to {str(folder.parent)!r} ({error.strerror or error}): choose "
                "another --data-dir"
            )
        raise UsageError(message) from error


def _array_megabytes(name: str) -> int:
    entry = PUBLISHED[name]
    channels, height, width = entry.shape
    return (entry.train + entry.test) * (channels * height * width + 8) // 1_000_000


def _hold(path: Path, wait: Callable[[], object]) -> int:
    """Make the folder and lock it; returns the open handle that holds the lock."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # its last holder has just removed it
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        if path.is_dir() and os.path.samestat(os.fstat(handle), path.stat()):
            return handle
        os.close(handle)
