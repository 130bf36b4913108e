"""What can be asked for by name, and what a method is: read from the code that does it."""

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from fl2fast.data.published import PUBLISHED
from fl2fast.data.settings import SETTINGS, TEXTS
from fl2fast.errors import UsageError
from fl2fast.experiment import PRESETS, Experiment
from fl2fast.methods import METHODS, find_method, method_protocol
from fl2fast.methods.options import method_options, option_choices
from fl2fast.models.cnn import SmallCNN
from fl2fast.models.linear import LinearClassifier
from fl2fast.models.wrn import WideResNet

REFERENCE = "Reference:"
SETTING_NAMES = Experiment.__dataclass_fields__


class Option(NamedTuple):
    name: str
    default: Any
    choices: tuple[Any, ...]  # empty: any value of the default's kind


class Description(NamedTuple):
    """A method as its factory declares it."""

    name: str
    text: str  # the factory's docstring, equations included
    module: str  # the docstring of its file
    options: list[Option]
    reference: str
    protocol: dict[str, Any]  # settings of its own, over a preset's


def entries(kind: str) -> dict[str, str]:
    """Name and one line of everything of a kind.

    >>> entries("partitions")["iid"]
    'every client a random part of equal size'
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r}: choose {', '.join(KINDS)}")
    return KINDS[kind]()


def describe_method(name: str) -> Description:
    factory = find_method(name)
    text, _, reference = _docstring(factory).partition(REFERENCE)
    module = _docstring(sys.modules.get(getattr(factory, "__module__", "")))
    options = [
        Option(option, default, option_choices(factory, option))
        for option, default in method_options(factory).items()
    ]
    cited = " ".join(reference.split()) or "none given"
    return Description(
        name, text.strip(), module, options, cited, method_protocol(name, SETTING_NAMES)
    )


def _docstring(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def _first_line(thing: object) -> str:
    return _docstring(thing).partition("\n")[0]


def _methods() -> dict[str, str]:
    return {name: _first_line(factory) for name, factory in METHODS.items()}


def _models() -> dict[str, str]:
    return {
        "cnn": _first_line(SmallCNN),
        "wrn-DEPTH-WIDTH": _first_line(WideResNet),
        "linear": _first_line(LinearClassifier),
        "path/to/file.py:factory": "Your own: a function from the number of classes to a module.",
    }


def _datasets() -> dict[str, str]:
    found = {}
    for name, settings in SETTINGS.items():
        parts = [f"by default {settings.labels} labels and {settings.model}"]
        if name == "streetdigits":
            parts = ["any number of 3x32x32 images, 10 classes, drawn from a seed"]
        elif name in TEXTS:
            parts.insert(0, "texts, of which a model sees a frozen encoder's features")
        elif name in PUBLISHED:
            entry = PUBLISHED[name]
            size = "x".join(map(str, entry.shape))
            parts.insert(0, f"{entry.train:,} + {entry.test:,} of {size}, {entry.classes} classes")
        found[name] = "; ".join(parts)
    return found | {"path/to/folder": "your own: {train,test}_{images,labels}.npy"}


def _partitions() -> dict[str, str]:
    return {
        "iid": "every client a random part of equal size",
        "dirichlet:ALPHA": "class shares drawn from Dir(ALPHA): the smaller, the less alike",
        "shards:S": "every client S shards of one class each",
    }


def _presets() -> dict[str, str]:
    return {
        name: ", ".join(f"{key} = {value}" for key, value in values.items())
        for name, values in PRESETS.items()
    }


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": _methods,
    "models": _models,
    "datasets": _datasets,
    "partitions": _partitions,
    "presets": _presets,
}
