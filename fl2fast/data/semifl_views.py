"""SemiFL's own strong views: two of fifteen ops with replacement, always at full magnitude.

Each op is taken with a probability that is itself uniform from 0.2 to 0.8: one half, whatever else
is drawn. Factors of 1.9 overshoot the image, Solarize at 0 inverts all of it, a cutout of 40 pixels
leaves at most a corner of a small image, and a move by 100 pixels nothing. Shears and moves
interpolate, Rotate takes the nearest neighbour; there is no cutout after the ops.

The draws are those of every view: an op, whether it is taken and its sign are read from one uniform
number, so that both kinds of strong views cost the same to draw.

Shapes: N images, n images that take an op, C channels, H rows, W columns; 2 ops a view.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl2fast.data import pixel_ops as ops
from fl2fast.data.augment import ship, weak
from fl2fast.data.views import CROP_PAD, ViewDraws, affine_matrices
from fl2fast.data.views import OPS as NEAREST_OPS

OPS = (
    *("AutoContrast", "Brightness", "Color", "Contrast", "Cutout", "Equalize", "Invert"),
    *("Posterize", "Rotate", "Sharpness", "ShearX", "ShearY", "Solarize"),
    *("TranslateX", "TranslateY"),
)
FACTOR, DEGREES, SHEAR, MOVE, CUTOUT_SIDE, CUTOUT_GREY = 1.9, 30, 0.3, 100, 40, 127
KEPT_BITS = 0xF0


class FullDraws(NamedTuple):
    """What follows from a view's draws; a column for each of the two ops."""

    op_N2: np.ndarray  # places in OPS
    taken_N2: np.ndarray  # bool
    sign_N2: np.ndarray  # -1 or 1
    centre_N22: np.ndarray  # of a cutout, x and y as shares of the sides


def full_draws(draws: ViewDraws) -> FullDraws:
    code_N2 = (draws.magnitude[:, :2] * (4 * len(OPS))).astype(np.int64)
    spare_N4 = np.concatenate((draws.cutout, draws.magnitude[:, 2:]), axis=1)
    return FullDraws(
        op_N2=code_N2 // 4,
        taken_N2=code_N2 % 4 >= 2,
        sign_N2=code_N2 % 2 * 2 - 1,
        centre_N22=spare_N4.reshape(-1, 2, 2),
    )


def strong(
    image_NCHW: Tensor, draws: ViewDraws, *, flip: bool = True, crop: float = CROP_PAD
) -> Tensor:
    """Crop and flip as `augment.weak` does, then two ops."""
    view_NCHW, full = weak(image_NCHW, draws, flip=flip, crop=crop), full_draws(draws)
    for turn in range(2):
        for number, name in enumerate(OPS):
            own_n = np.flatnonzero(full.taken_N2[:, turn] & (full.op_N2[:, turn] == number))
            if not own_n.size:
                continue
            place_n = ship(own_n, view_NCHW.device)
            made = apply_op(
                name,
                view_NCHW.index_select(0, place_n),
                full.sign_N2[own_n, turn],
                full.centre_N22[own_n, turn],
            )
            view_NCHW = view_NCHW.index_copy(0, place_n, made)
    return view_NCHW


def apply_op(name: str, image_nCHW: Tensor, sign_n: np.ndarray, centre_n2: np.ndarray) -> Tensor:
    """An op at full magnitude."""
    if name in _PLAIN:
        apply, value = _PLAIN[name]
        return apply(
            image_nCHW, image_nCHW.new_full((len(image_nCHW),), value, dtype=torch.float32)
        )
    if name == "Cutout":
        return _cutout(image_nCHW, centre_n2)
    (H, W), device = image_nCHW.shape[-2:], image_nCHW.device
    if name == "Rotate":
        op_n = np.full(len(sign_n), NEAREST_OPS.index("Rotate"))
        return ops.affine(image_nCHW, ship(affine_matrices(op_n, DEGREES * sign_n, H, W), device))
    row, column, size = _MATRIX_ENTRY[name]
    matrix_n23 = np.tile(np.eye(2, 3), (len(sign_n), 1, 1))
    matrix_n23[:, row, column] = size * sign_n
    return ops.smooth_affine(image_nCHW, ship(matrix_n23, device))


# Ops that need neither sign nor place, and their number; 0: the first level that is inverted.
_PLAIN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float]] = {
    "AutoContrast": (ops.auto_contrast, 0),
    "Brightness": (ops.brightness, FACTOR),
    "Color": (ops.color, FACTOR),
    "Contrast": (ops.contrast, FACTOR),
    "Equalize": (ops.equalize, 0),
    "Invert": (ops.solarize, 0),
    "Posterize": (ops.posterize, KEPT_BITS),
    "Sharpness": (ops.sharpness, FACTOR),
    "Solarize": (ops.solarize, 0),
}
_MATRIX_ENTRY = {
    "ShearX": (0, 1, SHEAR),
    "ShearY": (1, 0, SHEAR),
    "TranslateX": (0, 2, MOVE),
    "TranslateY": (1, 2, MOVE),
}


def _cutout(image_nCHW: Tensor, centre_n2: np.ndarray) -> Tensor:
    """Grey from the square's first pixel to its last, both included."""
    H, W = image_nCHW.shape[-2:]

    def covered(length: int, share_n: np.ndarray) -> np.ndarray:
        first_n1 = np.floor(np.maximum(share_n * length - CUTOUT_SIDE / 2, 0))[:, None]
        place = np.arange(length)
        return (place >= first_n1) & (place <= first_n1 + CUTOUT_SIDE)

    hidden = covered(H, centre_n2[:, 1])[:, :, None] & covered(W, centre_n2[:, 0])[:, None, :]
    mask_n1HW = ship(hidden[:, None], image_nCHW.device)
    return image_nCHW.masked_fill(mask_n1HW, CUTOUT_GREY)
