"""A path as an argument: one that the system could mean."""

from pathlib import Path
from typing import Any

import click

from fl2fast.errors import UsageError, brief


def to_path(text: str) -> Path:
    """Refuse, before any work is done for it, what no file can be called."""
    if "\0" in text or not text:
        raise UsageError(f"path {brief(text)} is empty or holds a null byte: give another one")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"path {brief(text)} is no text: give another one") from error
    return Path(text)


class PathType(click.ParamType):
    """For `type=`: a Path, which need not exist."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        return value if isinstance(value, Path) else to_path(value)


PATH = PathType()
