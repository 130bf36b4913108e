"""Methods by name. The engine receives a `Method` and never learns which."""

from collections.abc import Callable

from fl2fast.methods.bounds import fedavg, supervised
from fl2fast.methods.flfl import flfl
from fl2fast.methods.method import Method

METHODS: dict[str, Callable[..., Method]] = {
    "flfl": flfl,
    "supervised": supervised,
    "fedavg": fedavg,
}
