"""Files that are whole or not there, whatever happens while they are written."""

import os
from collections.abc import Iterable
from pathlib import Path

SCRATCH = ".part"  # ends the name of a file that is not whole yet


def write_whole(path: Path, content: bytes) -> None:
    """Write beside, sync, rename, sync the folder."""
    write_all(path.parent, [(path.name, content)])


def write_all(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Every file whole; once this returns, all of them survive a power cut."""
    written = []
    try:
        for name, content in files:
            scratch = folder / f"{name}{SCRATCH}"
            written.append(scratch)
            be_plain(scratch)
            with scratch.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for scratch in written:
            scratch.replace(scratch.with_name(scratch.name.removesuffix(SCRATCH)))
    except OSError:
        for scratch in written:  # a full disk needs the room
            scratch.unlink(missing_ok=True)
        raise
    sync(folder)


def be_plain(path: Path) -> None:
    """Remove what bears a file's name and is none: a link would lead away, a pipe never end."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.unlink()


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_scratch(folder: Path) -> None:
    """What a killed process left half written."""
    for scratch in folder.glob(f"*{SCRATCH}"):
        scratch.unlink(missing_ok=True)
