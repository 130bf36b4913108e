"""A function of the user's own, by path/to/file.py:name."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl2fast.errors import UsageError


def load_function(what: str, name: str) -> Callable[..., Any]:
    """`what` is the word for it in a refusal: model or method."""
    path, _, attribute = name.rpartition(":")
    if not Path(path).is_file():
        raise UsageError(f"{what} file {path!r} does not exist: give path/to/file.py:factory")
    spec = importlib.util.spec_from_file_location(f"fl2fast_user_{what}", path)
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = source  # as an import would: dataclasses look their module up
    try:
        spec.loader.exec_module(source)
    except Exception as error:  # the user's own file: whatever it raises is the news
        raise UsageError(f"{what} file {path!r} cannot be imported: {error!r}") from error
    factory = getattr(source, attribute, None)
    if not callable(factory):
        raise UsageError(f"{what} file {path!r} has no function {attribute!r}: define it there")
    return factory
