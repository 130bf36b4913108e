"""Which backend makes the views: torch, DALI, or the faster of the two on this device.

All backends make the same pixels, so the choice changes nothing but time. SemiFL's strong views are
made by torch alone.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from fl2fast.data import augment, dali, semifl_views
from fl2fast.data.views import CROP_PAD, Augment, Shape, draw_views
from fl2fast.errors import UsageError
from fl2fast.tune import Verdict, fastest

BACKENDS = ("torch", "dali")
STRONG = {"flfl": augment.strong, "semifl": semifl_views.strong}  # whose strong views


def make_augment(
    backend: str,
    *,
    flip: bool,
    crop: float,
    shape: Shape,
    device: torch.device,
    strong: str = "flfl",
) -> Augment:
    """A backend for images of one shape."""
    if backend == "torch":
        return augment.make_augment(flip=flip, crop=crop, strong=STRONG[strong])
    if strong != "flfl":
        raise UsageError(
            f"augment is {backend!r}, but the strong views of {strong!r} are made by torch only: "
            "use --augment torch or auto"
        )
    return dali.make_augment(flip=flip, crop=crop, shape=shape, device=device)


def usable(shape: Shape, strong: str = "flfl") -> list[str]:
    """The backends that are installed, take images of a shape and make these strong views."""
    fits = strong == "flfl" and dali.is_installed() and max(shape[1:]) <= dali.LARGEST_SIDE
    return ["torch", "dali"] if fits else ["torch"]


def choose(shape: Shape, rows: int, device: torch.device, strong: str = "flfl") -> Verdict:
    """The fastest usable backend for strong views of so many images of a shape."""

    def timed(backend: str) -> Callable[[], object]:
        views = make_augment(backend, flip=True, crop=CROP_PAD, shape=shape, device=device)
        ramp = np.resize(np.arange(251, dtype=np.uint8), (rows, *shape))
        images = torch.from_numpy(ramp).to(device)
        draws = draw_views(0, "client view", 0, 0, 0, np.arange(rows), view=1)
        return lambda: views(images, draws, "strong")

    candidates = {name: partial(timed, name) for name in usable(shape, strong)}
    if len(candidates) == 1:
        return Verdict("torch", {"torch": 0.0})
    return fastest("augment", candidates, device, shape=shape, rows=rows)
