"""A function of the user's own, by path/to/file.py:name."""

import os
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

from fl2fast.errors import UsageError, brief


def load_function(what: str, name: str) -> Callable[..., Any]:
    """`what` is the word for it in a refusal: model or method."""
    path, _, attribute = name.rpartition(":")
    said = brief(path)
    if not os.path.isfile(path):
        raise UsageError(f"{what} file {said} does not exist: give path/to/file.py:factory")
    loader = SourceFileLoader(f"fl2fast_user_{what}", path)
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    source = module_from_spec(spec)
    sys.modules[spec.name] = source  # as an import would: dataclasses look their module up
    try:
        # not exec_module, which would leave a __pycache__ beside the file, and believe an old one
        exec(loader.source_to_code(loader.get_data(path), path), source.__dict__)
        factory = getattr(source, attribute, None)
    except (Exception, SystemExit) as error:  # the user's own file: whatever it raises is the news
        raise UsageError(f"{what} file {said} cannot be imported: {brief(error)}") from error
    if not callable(factory):
        raise UsageError(f"{what} file {said} has no function {brief(attribute)}: define it there")
    return factory
