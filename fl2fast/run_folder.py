"""The folder of a run: where it is, how it comes to be, and that one process at a time is at it."""

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fl2fast.durable import sync
from fl2fast.errors import UsageError
from fl2fast.experiment import Experiment

CONFIG = "config.json"


SCRATCH = ".new"  # in a folder that is there already, or the end of one that is not


def check_folder(out: Path) -> None:
    """Refuse a folder that is in use, before any work is done for it."""
    try:
        above = next(parent for parent in (out, *out.parents) if parent.exists())
        if not above.is_dir():
            raise UsageError(f"{str(above)!r} is a file: choose another --out")
        if out.exists() and any(path.name != SCRATCH for path in out.iterdir()):
            resume = f", or go on with it by --resume {out}" if is_run(out) else ""
            raise UsageError(
                f"{str(out)!r} exists and is not an empty folder: choose another --out or remove "
                f"it{resume}"
            )
    except OSError as error:
        raise _unwritable(out, error) from error


def is_run(folder: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(folder / CONFIG).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UsageError(f"cannot look into {str(folder)!r}: {error.strerror}") from error


def claim_folder(out: Path) -> Path:
    """Make `out`, which must be new or empty."""
    check_folder(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise _unwritable(out, error) from error
    return out


def free_folder(stem: str) -> Path:
    """runs/STEM, numbered if taken."""
    number = 1
    while (out := Path("runs") / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return out


def default_folder(experiment: Experiment) -> Path:
    dataset = Path(experiment.dataset).name
    name = f"{dataset}-{experiment.labels}-{experiment.method}"
    return free_folder(re.sub(r"[^\w.-]+", "-", name))


@contextmanager
def new_run(out: Path, fill: Callable[[Path], object]) -> Iterator[None]:
    """Make `out` with all that `fill` writes in it, whole or not at all; held by this process.

    A new folder is filled under a hidden name and renamed. One that is there and empty, which
    could be a mount point, is filled in place, its config last: that is what makes it a run.
    """
    check_folder(out)
    there = out.is_dir()
    scratch = out / SCRATCH if there else out.with_name(f".{out.name}{SCRATCH}")
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        handle = os.open(out if there else scratch, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(out, error) from error
    with _held(handle, out):
        try:
            for leftover in scratch.iterdir():  # of a killed process
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            fill(scratch)
            sync(scratch)
            if there:
                _move_into(scratch, out)
            else:
                scratch.rename(out)
                sync(out.parent)
        except BaseException as error:
            shutil.rmtree(scratch, ignore_errors=True)
            if isinstance(error, OSError):
                raise _unwritable(out, error) from error
            raise
        yield


def _move_into(scratch: Path, out: Path) -> None:
    for path in sorted(scratch.iterdir(), key=lambda path: path.name == CONFIG):
        path.rename(out / path.name)
        sync(out)
    scratch.rmdir()


@contextmanager
def old_run(run: Path) -> Iterator[None]:
    """A run that exists, held by this process."""
    if not is_run(run):
        raise UsageError(
            f"{str(run)!r} is not a run folder, which holds {CONFIG}: give one that "
            "`fl2fast train` has made"
        )
    try:
        handle = os.open(run, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"cannot look into {str(run)!r}: {error.strerror}") from error
    with _held(handle, run):
        yield


@contextmanager
def _held(handle: int, run: Path) -> Iterator[None]:
    """The system lets go of a dead process's lock, and a renamed folder keeps it."""
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process is at {str(run)!r}: wait for it, or choose another folder"
            ) from error
        except OSError:  # a file system that knows no such locks: there is nothing to hold
            pass
        yield
    finally:
        os.close(handle)


def _unwritable(out: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write to {str(out)!r}: {error.strerror or error}")
