"""Methods by name, and their options. The engine receives a `Method` and never learns which."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fl2fast.errors import UsageError
from fl2fast.methods.bounds import fedavg, supervised
from fl2fast.methods.cat import cat, cat_sacr, cat_sacr_all
from fl2fast.methods.central import fixmatch_central, freematch
from fl2fast.methods.fedcon import fedcon
from fl2fast.methods.fedmatch import fedmatch
from fl2fast.methods.fixmatch import fixmatch, sacr_fixmatch
from fl2fast.methods.flfl import flfl
from fl2fast.methods.method import Limits, Method
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
            f"unknown method {name!r}: choose {', '.join(METHODS)}, or give path/to/file.py:factory"
        )
    return METHODS[name]


def method_options(make: Callable[..., Method]) -> dict[str, Any]:
    """The factory's keyword-only options with their defaults."""
    parameters = inspect.signature(make).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def option_choices(make: Callable[..., Method], name: str) -> tuple[Any, ...]:
    """The values that an option may have; none: any of its default's kind."""
    hint = get_type_hints(make).get(name)
    return get_args(hint) if get_origin(hint) is Literal else ()


def check_options(method: str, options: Mapping[str, Any], settings: set[str]) -> None:
    """Refuse, in one sentence, what the method does not understand."""
    make = find_method(method)
    known = method_options(make)
    own = [name for name in known if name not in settings]
    for name, value in options.items():
        if name in settings:
            raise UsageError(f"{name!r} is a setting of the run, not an option of {method}: set it")
        if name not in own:
            there = f"choose {', '.join(own)}" if own else "it has none"
            raise UsageError(f"method {method} has no option {name!r}: {there}")
        choices = option_choices(make, name)
        if choices and value not in choices:
            listed = ", ".join(map(str, choices))
            raise UsageError(f"option {name} of {method} is {value!r}: choose {listed}")
        if not choices and not _fits(value, known[name]):
            raise UsageError(
                f"option {name} of {method} is {value!r}, but it must be of the kind of its "
                f"default, {known[name]!r}"
            )
        if isinstance(value, int | float) and not _within(value, option_limits(make, name)):
            limits = option_limits(make, name) or "a finite number"
            raise UsageError(f"option {name} of {method} is {value}, but it must be {limits}")


def option_limits(make: Callable[..., Method], name: str) -> Limits | None:
    hint = get_type_hints(make, include_extras=True).get(name)
    return next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Limits)), None)


def _within(value: float, limits: Limits | None) -> bool:
    low, high = limits or Limits(-math.inf)
    return math.isfinite(value) and value >= low and (high is None or value <= high)


def make_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method; one of a user's own that cannot be made is refused in one sentence."""
    try:
        made = find_method(name)(**options)
    except UsageError:
        raise
    except Exception as error:
        if ".py:" not in name:
            raise
        raise UsageError(f"method {name!r} cannot be made: {error!r}") from error
    if not isinstance(made, Method) or (made.client or made.central or made.server) is None:
        raise UsageError(
            f"method {name!r} makes {made!r}: return a Method that has a server, client or central "
            "part"
        )
    return made


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)
