"""Weak and strong views of image batches, drawn per image by key.

Weak: a crop of the reflect-padded image (pad = int(side * 0.125)) and a horizontal flip (p = 0.5).
Strong: an independent crop and flip, three ops drawn with replacement from the fourteen of `OPS`,
each with a magnitude uniform in its own range, and a cutout. This is RandAugment (Cubuk et al.,
2020) as the FixMatch family uses it, with the semantics of PIL: every op returns uint8, geometric
ops take the nearest neighbour and fill with black. Normalisation to float comes last.

The draws and all that follows from them alone (which image takes which op, matrices, rectangles)
are computed on the host in float64, as PIL computes them, and shipped; no function here waits for
the device. An image's view is a function of the image and its own draws only.

Shapes: N images, C channels (3, or 1 for grey), H rows, W columns, P = H*W pixels,
B = 256 grey levels.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fl2fast import rng

CROP_PAD = 0.125  # of the side, on both ends
OPS_PER_VIEW = 3
CUTOUT_SIDE = 0.5  # of the width, at most
CUTOUT_RGB = (125, 123, 114)

_LUMA = (19595, 38470, 7471)  # ITU-R 601-2 in 16-bit fixed point


class ViewDraws(NamedTuple):
    """What one view of each of N images draws; host tensors, the same for every image size."""

    crop: Tensor  # int64 [N, 2]: 32-bit words, scaled to the offsets (y, x) where applied
    flip: Tensor  # bool [N]
    op: Tensor  # int64 [N, 3]: places in OPS
    magnitude: Tensor  # float64 [N, 3] in [0, 1), scaled to the op's range where applied
    cutout: Tensor  # float64 [N, 3] in [0, 1): side, centre x, centre y


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

    >>> draw_views(0, "client view", 1, 2, 0, torch.arange(5), view=1).op.shape
    torch.Size([5, 3])
    """
    sizes = (2, 1, OPS_PER_VIEW, OPS_PER_VIEW, 3)
    words = rng.words(seed, purpose, round, client, epoch * 2 + view, row, num=sum(sizes))
    crop, flip, op, magnitude, cutout = words.reshape(-1, sum(sizes)).split(sizes, dim=1)
    return ViewDraws(
        crop=crop,
        flip=_below(2, flip.squeeze(1)).bool(),
        op=_below(len(OPS), op),
        magnitude=magnitude.double() * 2.0**-32,
        cutout=cutout.double() * 2.0**-32,
    )


def weak(
    image_NCHW: Tensor, draws: ViewDraws, *, flip: bool = True, crop: float = CROP_PAD
) -> Tensor:
    """Crop and flip uint8 images; without `flip` the flip draws are ignored."""
    device, (H, W) = image_NCHW.device, image_NCHW.shape[-2:]
    row_NH = _cropped_axis(H, draws.crop[:, 0], crop)
    column_NW = _cropped_axis(W, draws.crop[:, 1], crop)
    if flip:
        column_NW = torch.where(draws.flip[:, None], column_NW.flip(1), column_NW)
    row_NH1, column_N1W = ship(row_NH[:, :, None], device), ship(column_NW[:, None, :], device)
    return _pick(image_NCHW, row_NH1 * W + column_N1W)


def strong(
    image_NCHW: Tensor, draws: ViewDraws, *, flip: bool = True, crop: float = CROP_PAD
) -> Tensor:
    """Crop and flip as `weak` does, then three ops and a cutout."""
    view_NCHW = weak(image_NCHW, draws, flip=flip, crop=crop)
    for op_N, magnitude_N in zip(draws.op.unbind(1), draws.magnitude.unbind(1), strict=True):
        for place, (op, low, high) in enumerate(_TABLE.values()):
            chosen = (op_N == place).nonzero().squeeze(1)
            if op is _identity or len(chosen) == 0:
                continue
            value = low + (high - low) * magnitude_N[chosen]
            chosen = ship(chosen, view_NCHW.device)
            view_NCHW.index_copy_(0, chosen, op(view_NCHW.index_select(0, chosen), value))
    return _cutout(view_NCHW, draws.cutout)


def normalise(image: Tensor, mean_C: Tensor, std_C: Tensor) -> Tensor:
    """(image / 255 - mean) / std per channel of uint8 [..., C, H, W], in the dtype of `mean`."""
    scaled = image.to(mean_C.dtype).div_(255)
    return scaled.sub_(mean_C[:, None, None]).div_(std_C[:, None, None])


def _below(bound: int, word: Tensor) -> Tensor:
    """A 32-bit word as an integer uniform in [0, bound)."""
    return word * bound >> 32


def ship(host: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device of the images; from pinned memory the copy does not wait."""
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def _per_image(value_N: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return ship(value_N.to(dtype)[:, None, None, None], device)


def _pick(image_NCHW: Tensor, source_NHW: Tensor) -> Tensor:
    """Give every output pixel the input pixel at a flat index, the same for all channels."""
    source_NCP = source_NHW.flatten(1)[:, None].expand(-1, image_NCHW.shape[1], -1)
    return image_NCHW.flatten(2).gather(2, source_NCP).view_as(image_NCHW)


def _cropped_axis(side: int, word_N: Tensor, crop: float) -> Tensor:
    """The source of every coordinate after reflect padding and a crop at a drawn offset."""
    pad = int(side * crop)
    padded = torch.arange(side) + (_below(2 * pad + 1, word_N) - pad)[:, None]
    return (side - 1) - ((side - 1) - padded.abs()).abs()


# --- Ops: (uint8 image_NCHW, float64 value_N on the host) -> uint8 image_NCHW ---------------------


def _identity(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    return image_NCHW


def _blend(degenerate: Tensor, image: Tensor, factor_N: Tensor) -> Tensor:
    """degenerate + factor * (image - degenerate) in float32, truncated; a factor of 1 is `image`.

    The product is rounded before the sum, as PIL does: neither lerp nor a fused multiply-add.
    """
    factor = _per_image(factor_N, torch.float32, image.device)
    return (image - degenerate).mul_(factor).add_(degenerate).to(torch.uint8)


def _luma(image_NCHW: Tensor) -> Tensor:
    """PIL's conversion to grey, int32 [N, 1, H, W]."""
    if image_NCHW.shape[1] == 1:
        return image_NCHW.int()
    red, green, blue = image_NCHW.int().split(1, dim=1)
    return (red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2] + 0x8000) >> 16


def _brightness(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    factor = _per_image(value_N, torch.float32, image_NCHW.device)
    return image_NCHW.float().mul_(factor).to(torch.uint8)  # the degenerate image is black


def _color(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    if image_NCHW.shape[1] == 1:
        return image_NCHW
    return _blend(_luma(image_NCHW).float(), image_NCHW.float(), value_N)


def _contrast(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    P = image_NCHW.shape[2] * image_NCHW.shape[3]
    total_N111 = _luma(image_NCHW).sum(dim=(2, 3), keepdim=True)
    rounded_mean_N111 = (2 * total_N111 + P) // (2 * P)
    return _blend(rounded_mean_N111.float(), image_NCHW.float(), value_N)


def _sharpness(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    """Blend with the mean of the 3x3 neighbourhood in which the centre weighs 5 of 13.

    No sum of integers is halfway between two multiples of 13, so rounding has no ties. PIL copies
    the border to the degenerate image, which leaves it as it is.
    """
    image = image_NCHW.float()
    rows = image[:, :, :-2] + image[:, :, 1:-1] + image[:, :, 2:]
    centre = image[:, :, 1:-1, 1:-1]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * centre
    smooth = total.mul_(1 / 13).add_(0.5).floor_()
    sharp_NCHW = image_NCHW.clone()
    sharp_NCHW[:, :, 1:-1, 1:-1] = _blend(smooth, centre, value_N)
    return sharp_NCHW


def _auto_contrast(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    """Stretch every channel to 0..255; in float64, where int(255 - epsilon) is 254 as in PIL."""
    image = image_NCHW.double()
    low, high = image.amin((2, 3), keepdim=True), image.amax((2, 3), keepdim=True)
    white = torch.full_like(high, 255)  # a tensor: 255 / tensor would round a reciprocal first
    scale = torch.where(high > low, white / (high - low), 1.0)
    offset = torch.where(high > low, -low * scale, 0.0)
    return image.mul_(scale).add_(offset).to(torch.uint8)


def _equalize(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    """Map every channel by its cumulative histogram, in steps of 1/255 of all but the top bin."""
    level_NCP = image_NCHW.flatten(2).long()
    N, C, P = level_NCP.shape
    count_NCB = level_NCP.new_zeros(N, C, 256, dtype=torch.int32)
    one = count_NCB.new_ones(()).expand_as(level_NCP)
    count_NCB.scatter_add_(2, level_NCP, one)
    top_count_NC1 = count_NCB.gather(2, level_NCP.amax(2, keepdim=True))
    step_NC1 = (P - top_count_NC1) // 255
    below_NCB = count_NCB.cumsum(2, dtype=torch.int32) - count_NCB
    lut_NCB = (step_NC1 // 2 + below_NCB) // step_NC1.clamp(min=1)
    same_B = torch.arange(256, dtype=torch.int32, device=image_NCHW.device)
    lut_NCB = torch.where(step_NC1 > 0, lut_NCB.clamp(max=255), same_B).to(torch.uint8)
    return lut_NCB.gather(2, level_NCP).view_as(image_NCHW)


def _posterize(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    dropped_bits_N = 8 - value_N.long()
    mask_N = 256 - (1 << dropped_bits_N)
    return image_NCHW & _per_image(mask_N, torch.uint8, image_NCHW.device)


def _solarize(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    threshold = _per_image(value_N.ceil(), torch.int16, image_NCHW.device)
    inverted_NCHW = image_NCHW >= threshold
    return image_NCHW ^ inverted_NCHW.to(torch.uint8).neg_()  # 255 - i is i ^ 255, and 255 is -1


def _affine(image_NCHW: Tensor, matrix_N23: Tensor) -> Tensor:
    """Output pixel (x, y) is input pixel matrix @ (x, y, 1), centre to centre, or black outside.

    In the 16.16 fixed point of PIL, where a coordinate is rounded down.
    """
    (H, W), device = image_NCHW.shape[-2:], image_NCHW.device
    by_x_N2, by_y_N2, start_N2 = matrix_N23.unbind(2)
    parts_3N2 = torch.stack((by_x_N2, by_y_N2, start_N2 + by_x_N2 * 0.5 + by_y_N2 * 0.5))
    fixed_3N2 = (parts_3N2 * 65536 + 0.5).floor().int()
    by_x_2N11, by_y_2N11, start_2N11 = ship(fixed_3N2.mT[..., None, None], device).unbind(0)
    y_H1 = torch.arange(H, dtype=torch.int32, device=device)[:, None]
    x_W = torch.arange(W, dtype=torch.int32, device=device)
    x_NHW, y_NHW = (by_x_2N11 * x_W + (by_y_2N11 * y_H1 + start_2N11) >> 16).unbind(0)
    nearest_x_NHW, nearest_y_NHW = x_NHW.clamp(0, W - 1), y_NHW.clamp(0, H - 1)
    inside_NHW = (nearest_x_NHW == x_NHW) & (nearest_y_NHW == y_NHW)
    source_NHW = (nearest_y_NHW * W + nearest_x_NHW).long()
    return _pick(image_NCHW, source_NHW).mul_(inside_NHW[:, None])


def _unit(value_N: Tensor) -> Tensor:
    """The matrix that moves nothing, for every image; the axes are x, y."""
    return torch.eye(2, 3, dtype=torch.float64).repeat(len(value_N), 1, 1)


def _rotate(image_NCHW: Tensor, value_N: Tensor) -> Tensor:
    """By degrees, counter-clockwise about the centre; entries to 15 decimals as PIL rounds them."""
    H, W = image_NCHW.shape[-2:]
    angle_N = -torch.deg2rad(value_N % 360)
    cos_N = angle_N.cos().round(decimals=15)
    sin_N = angle_N.sin().round(decimals=15)
    linear_N22 = torch.stack((cos_N, sin_N, -sin_N, cos_N), dim=1).view(-1, 2, 2)
    centre_2 = torch.tensor((W / 2, H / 2), dtype=torch.float64)
    start_N2 = centre_2 - (linear_N22 * centre_2).sum(2)
    return _affine(image_NCHW, torch.cat((linear_N22, start_N2[:, :, None]), dim=2))


def _shear(image_NCHW: Tensor, value_N: Tensor, axis: int) -> Tensor:
    matrix_N23 = _unit(value_N)
    matrix_N23[:, axis, 1 - axis] = value_N
    return _affine(image_NCHW, matrix_N23)


def _translate(image_NCHW: Tensor, value_N: Tensor, axis: int) -> Tensor:
    """By a fraction of the side, in whole pixels: PIL rounds a pure translation in float64."""
    matrix_N23 = _unit(value_N)
    matrix_N23[:, axis, 2] = (value_N * image_NCHW.shape[3 - axis] + 0.5).floor()
    return _affine(image_NCHW, matrix_N23)


# Name: (op, lowest value, highest value). The order is part of the draws.
_TABLE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float, float]] = {
    "AutoContrast": (_auto_contrast, 0, 1),
    "Brightness": (_brightness, 0.05, 0.95),
    "Color": (_color, 0.05, 0.95),
    "Contrast": (_contrast, 0.05, 0.95),
    "Sharpness": (_sharpness, 0.05, 0.95),
    "Equalize": (_equalize, 0, 1),
    "Identity": (_identity, 0, 1),
    "Posterize": (_posterize, 4, 8),
    "Rotate": (_rotate, -30, 30),
    "ShearX": (partial(_shear, axis=0), -0.3, 0.3),
    "ShearY": (partial(_shear, axis=1), -0.3, 0.3),
    "Solarize": (_solarize, 0, 256),
    "TranslateX": (partial(_translate, axis=0), -0.3, 0.3),
    "TranslateY": (partial(_translate, axis=1), -0.3, 0.3),
}
OPS = tuple(_TABLE)


def _cutout(image_NCHW: Tensor, uniform_N3: Tensor) -> Tensor:
    """Fill a square of side U(0, 0.5) W about a centre in (1, W] x (1, H], clipped to the image.

    PIL's rectangle includes its far edges: from pixel first to pixel int(first + side).
    """
    (C, H, W), device = image_NCHW.shape[1:], image_NCHW.device
    side_N, x_N, y_N = uniform_N3.unbind(1)
    side_N = side_N * CUTOUT_SIDE * W
    inside_NH = _covered(H, y_N, side_N, device)
    inside_NW = _covered(W, x_N, side_N, device)
    inside_N1HW = (inside_NH[:, :, None] & inside_NW[:, None, :])[:, None]
    fill_C = torch.tensor(CUTOUT_RGB, dtype=torch.uint8)[:, None, None]
    fill_C11 = ship(fill_C if C == 3 else _luma(fill_C[None])[0].to(torch.uint8), device)
    return (image_NCHW * ~inside_N1HW).add_(fill_C11 * inside_N1HW)


def _covered(length: int, uniform_N: Tensor, side_N: Tensor, device: torch.device) -> Tensor:
    """Which coordinates of an axis the cutout covers.

    The centre is uniform from `length` down to 1, not to 0: the reference draws it by
    numpy's uniform(length), which sets the lower bound and leaves the upper bound at 1.
    """
    centre_N = length + (1 - length) * uniform_N
    first_N1 = (centre_N - side_N / 2).clamp(min=0).floor()[:, None]
    last_N1 = (first_N1 + side_N[:, None]).clamp(max=length).floor()
    coordinate = torch.arange(length)
    return ship((coordinate >= first_N1) & (coordinate <= last_N1), device)
