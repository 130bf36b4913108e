"""The options of a method: its factory's keyword-only arguments, and the values they may have."""

import inspect
from collections.abc import Callable, Container, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fl2fast.errors import UsageError, brief
from fl2fast.methods.method import Limits, Method

LARGEST = 1e300  # of a number without limits of its own: an integer beyond is no float


def method_options(make: Callable[..., Method]) -> dict[str, Any]:
    """The factory's keyword-only options with their defaults."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (ValueError, TypeError) as error:
        raise UsageError(f"method {brief(make)} has no signature: make it a def") from error
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _hint(make: Callable[..., Method], name: str) -> Any:
    """An option's annotation; one that means nothing is none."""
    try:
        return get_type_hints(make, include_extras=True).get(name)
    except Exception:  # the user's own annotations: names that are not there, or no names at all
        return None


def option_choices(make: Callable[..., Method], name: str) -> tuple[Any, ...]:
    """The values that an option may have; none: any of its default's kind."""
    hint = _hint(make, name)
    return get_args(hint) if get_origin(hint) is Literal else ()


def check_options(
    method: str, make: Callable[..., Method], options: Mapping[str, Any], settings: Container[str]
) -> None:
    """Refuse, in one sentence, what the method of this name and factory does not understand."""
    known = method_options(make)
    own = [name for name in known if name not in settings]
    for name, value in options.items():
        if name in settings:
            raise UsageError(
                f"{brief(name)} is a setting of the run, not an option of {method}: set it"
            )
        if name not in own:
            there = f"choose {', '.join(own)}" if own else "it has none"
            raise UsageError(f"method {method} has no option {brief(name)}: {there}")
        choices = option_choices(make, name)
        if choices and value not in choices:
            listed = ", ".join(map(str, choices))
            raise UsageError(f"option {name} of {method} is {brief(value)}: choose {listed}")
        if not choices and not _fits(value, known[name]):
            raise UsageError(
                f"option {name} of {method} is {brief(value)}, but it must be of the kind of its "
                f"default, {brief(known[name])}"
            )
        if isinstance(value, int | float) and not _within(value, option_limits(make, name)):
            limits = option_limits(make, name) or "a finite number"
            raise UsageError(
                f"option {name} of {method} is {brief(value)}, but it must be {limits}"
            )


def option_limits(make: Callable[..., Method], name: str) -> Limits | None:
    hint = _hint(make, name)
    return next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Limits)), None)


def _within(value: float, limits: Limits | None) -> bool:
    low, high = limits or Limits(-LARGEST)
    return low <= value <= (LARGEST if high is None else high)  # nor is NaN


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)
