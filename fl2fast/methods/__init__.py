"""Methods by name. The engine receives a `Method` and never learns which."""

from collections.abc import Callable, Container, Mapping
from typing import Any

from fl2fast.errors import UsageError, brief
from fl2fast.methods.bounds import fedavg, supervised
from fl2fast.methods.cat import cat, cat_sacr, cat_sacr_all
from fl2fast.methods.central import fixmatch_central, freematch
from fl2fast.methods.fedcon import fedcon
from fl2fast.methods.fedmatch import fedmatch
from fl2fast.methods.fixmatch import fixmatch, sacr_fixmatch
from fl2fast.methods.flfl import flfl
from fl2fast.methods.method import Method
from fl2fast.methods.options import method_options
from fl2fast.methods.oracles import cat_sacr_correct, cat_sam
from fl2fast.methods.semifl import semifl
from fl2fast.plugin import load_function

METHODS: dict[str, Callable[..., Method]] = {
    "flfl": flfl,
    "fixmatch": fixmatch,
    "sacr-fixmatch": sacr_fixmatch,
    "cat": cat,
    "cat-sacr": cat_sacr,
    "cat-sacr-all": cat_sacr_all,
    "cat-sacr-correct": cat_sacr_correct,
    "cat-sam": cat_sam,
    "semifl": semifl,
    "fedmatch": fedmatch,
    "fedcon": fedcon,
    "supervised": supervised,
    "fedavg": fedavg,
    "freematch": freematch,
    "fixmatch-central": fixmatch_central,
}


def find_method(name: str) -> Callable[..., Method]:
    """A method's factory, by its name or by path/to/file.py:factory."""
    if isinstance(name, str) and ".py:" in name:
        return load_function("method", name)
    if name not in METHODS:
        raise UsageError(
            f"unknown method {brief(name)}: choose {', '.join(METHODS)}, or give "
            "path/to/file.py:factory"
        )
    return METHODS[name]


def method_protocol(name: str, settings: Container[str]) -> dict[str, Any]:
    """The settings of the method's own."""
    own = getattr(find_method(name), "protocol", {})
    if not isinstance(own, dict) or not all(setting in settings for setting in own):
        raise UsageError(
            f"method {brief(name)} has the protocol {brief(own)}, but it must be made of settings: "
            "see @protocol in methods/method.py"
        )
    return own


def make_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method; one of a user's own that cannot be made is refused in one sentence."""
    make = find_method(name)
    known = method_options(make)
    given = {
        option: float(value) if isinstance(known.get(option), float) else value
        for option, value in options.items()
    }
    try:
        made = make(**given)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if ".py:" not in name:
            raise
        raise UsageError(f"method {brief(name)} cannot be made: {brief(error)}") from error
    if not isinstance(made, Method) or (made.client or made.central or made.server) is None:
        raise UsageError(
            f"method {brief(name)} makes {brief(made)}: return a Method that has a server, client "
            "or central part"
        )
    return made
