"""What a view of an image draws, and all that follows from the draws alone.

Weak: a crop of the reflect-padded image (pad = int(side * 0.125)) and a horizontal flip (p = 0.5).
Strong: an independent crop and flip, three ops drawn with replacement from the fourteen of `OPS`,
each with a magnitude uniform in its own range, and a cutout. This is RandAugment (Cubuk et al.,
2020) as the FixMatch family uses it, with the semantics of PIL: every op returns uint8, geometric
ops take the nearest neighbour and fill with black.

Everything here is host arithmetic in numpy and float64, as PIL computes it: which image takes which
op, offsets, matrices, rectangles. A backend (`augment` in torch, `dali`) only moves pixels, so all
backends give the same views, and none needs to wait for the device.

Shapes: N images, C channels (3, or 1 for grey), H rows, W columns.
"""

from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fl2fast import rng

CROP_PAD = 0.125  # of the side, on both ends
OPS_PER_VIEW = 3
CUTOUT_SIDE = 0.5  # of the width, at most
CUTOUT_RGB = (125, 123, 114)
LUMA = (19595, 38470, 7471)  # ITU-R 601-2 in 16-bit fixed point, PIL's conversion to grey

# Name: (lowest value, highest value). The order is part of the draws.
OP_RANGES: dict[str, tuple[float, float]] = {
    "AutoContrast": (0, 1),
    "Brightness": (0.05, 0.95),
    "Color": (0.05, 0.95),
    "Contrast": (0.05, 0.95),
    "Sharpness": (0.05, 0.95),
    "Equalize": (0, 1),
    "Identity": (0, 1),
    "Posterize": (4, 8),
    "Rotate": (-30, 30),
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "Solarize": (0, 256),
    "TranslateX": (-0.3, 0.3),
    "TranslateY": (-0.3, 0.3),
}
OPS = tuple(OP_RANGES)
GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
_LOW, _HIGH = np.array(list(OP_RANGES.values()), dtype=np.float64).T


Shape = tuple[int, int, int]  # C, H, W


class ViewDraws(NamedTuple):
    """What one view of each of N images draws; the same for every image size."""

    crop: np.ndarray  # int64 [N, 2]: 32-bit words, scaled to the offsets (y, x) where applied
    flip: np.ndarray  # bool [N]
    op: np.ndarray  # int64 [N, 3]: places in OPS
    magnitude: np.ndarray  # float64 [N, 3] in [0, 1), scaled to the op's range where applied
    cutout: np.ndarray  # float64 [N, 3] in [0, 1): side, centre x, centre y

    def rows(self, chosen: slice | np.ndarray) -> "ViewDraws":
        return ViewDraws(*(own[chosen] for own in self))


class Augment(Protocol):
    """A backend, made for one setting of flip and crop: uint8 [N, C, H, W] in and out."""

    def __call__(self, image_NCHW: Tensor, draws: ViewDraws, view: str) -> Tensor: ...


def draw_views(
    seed: rng.Place,
    purpose: str,
    round: rng.Place,
    client: rng.Place,
    epoch: rng.Place,
    row: rng.Place,
    view: int,
) -> ViewDraws:
    """The draws of view 0 (weak) or 1 (strong) for every element of the broadcast places.

    >>> draw_views(0, "client view", 1, 2, 0, np.arange(5), view=1).op.shape
    (5, 3)
    """
    sizes = (2, 1, OPS_PER_VIEW, OPS_PER_VIEW, 3)
    words = rng.words(seed, purpose, round, client, epoch * 2 + view, row, num=sum(sizes))
    columns = words.reshape(-1, sum(sizes))
    crop, flip, op, magnitude, cutout = np.split(columns, np.cumsum(sizes)[:-1], axis=1)
    return ViewDraws(
        crop=crop,
        flip=_below(2, flip[:, 0]).astype(bool),
        op=_below(len(OPS), op),
        magnitude=magnitude * 2.0**-32,
        cutout=cutout * 2.0**-32,
    )


def single_op(name: str, magnitude_N: np.ndarray) -> ViewDraws:
    """Draws of views that show one op alone: no offset, no flip, an empty cutout."""
    N = len(magnitude_N)
    op_N3 = np.full((N, OPS_PER_VIEW), OPS.index("Identity"))
    op_N3[:, 0] = OPS.index(name)
    magnitude_N3 = np.zeros((N, OPS_PER_VIEW))
    magnitude_N3[:, 0] = magnitude_N
    middle_N2 = np.full((N, 2), 2**31)
    return ViewDraws(middle_N2, np.zeros(N, dtype=bool), op_N3, magnitude_N3, np.zeros((N, 3)))


def _below(bound: int, word: np.ndarray) -> np.ndarray:
    """A 32-bit word as an integer uniform in [0, bound)."""
    return word * bound >> 32


def crop_offsets(word_N2: np.ndarray, H: int, W: int, crop: float) -> np.ndarray:
    """Where the crop starts, (y, x) from the image's own corner: from -pad to +pad."""
    pad_2 = np.array((int(H * crop), int(W * crop)))
    return _below(2 * pad_2 + 1, word_N2) - pad_2  # type: ignore[arg-type]


def op_values(op: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """Magnitudes in each op's own range."""
    return _LOW[op] + (_HIGH - _LOW)[op] * magnitude


def op_numbers(op: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Values as a device uses them, float32: a weight, the bits that Posterize keeps, or the first
    level that Solarize inverts."""
    kept_bits = 256 - 2.0 ** (8 - np.floor(value))
    number = np.where(op == OPS.index("Posterize"), kept_bits, value)
    return np.where(op == OPS.index("Solarize"), np.ceil(value), number).astype(np.float32)


def affine_matrices(op_N: np.ndarray, value_N: np.ndarray, H: int, W: int) -> np.ndarray:
    """The map of geometric ops from output to input, int32 [N, 2, 3] in PIL's 16.16 fixed point.

    Input (x, y) of output pixel (x, y), centre to centre, is matrix @ (x, y, 1) >> 16.
    """
    turn, shear_x, shear_y, move_x, move_y = (
        np.where(op_N == OPS.index(name), value_N, 0.0) for name in GEOMETRIC
    )
    # Counter-clockwise about the centre; entries to 15 decimals as PIL rounds them.
    angle_N = -np.deg2rad(turn % 360)
    cos_N, sin_N = np.cos(angle_N).round(15), np.sin(angle_N).round(15)
    x, y = W / 2, H / 2
    start_x, start_y = x - (cos_N * x + sin_N * y), y - (cos_N * y - sin_N * x)
    # In whole pixels: PIL rounds a pure translation.
    start_x, start_y = (
        start + np.floor(move * side + 0.5)
        for start, move, side in ((start_x, move_x, W), (start_y, move_y, H))
    )
    rows = (cos_N, sin_N + shear_x, start_x), (shear_y - sin_N, cos_N, start_y)
    matrix_N23 = np.array(rows).transpose(2, 0, 1)
    matrix_N23[:, :, 2] += matrix_N23[:, :, :2].sum(2) * 0.5
    return np.floor(matrix_N23 * 65536 + 0.5).astype(np.int32)


def cutout_masks(uniform_N3: np.ndarray, H: int, W: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the square of side U(0, 0.5) W that is cut out: uint8, 255 or 0.

    The centre is uniform from the side's length down to 1, not to 0: the reference draws it by
    numpy's uniform(length), which sets the lower bound and leaves the upper bound at 1. PIL's
    rectangle includes its far edges: from pixel first to pixel int(first + side).
    """
    side_N1 = uniform_N3[:, :1] * CUTOUT_SIDE * W

    def covered(length: int, uniform_N1: np.ndarray) -> np.ndarray:
        centre_N1 = length + (1 - length) * uniform_N1
        first_N1 = np.floor(np.maximum(centre_N1 - side_N1 / 2, 0))
        place = np.arange(length)
        inside = (place >= first_N1) & (place <= np.floor(first_N1 + side_N1))
        return inside * np.uint8(255)

    return covered(H, uniform_N3[:, 2:]), covered(W, uniform_N3[:, 1:2])
