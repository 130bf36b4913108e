"""The torch backend: weak and strong views of image batches, equal to PIL's pixel for pixel.

`views` says what a view is and does the host's part. Here pixels move: rows are grouped by the op
they drew, so that no op runs on a row that does not need it, and the five geometric ops are one
gather. An image's view is a function of the image and its own draws only.

Two habits keep the CPU's vector units busy: floats become uint8 by way of int16, and a choice
between two bytes is made by bit masks, because torch vectorises neither the direct conversion nor
comparisons and `where` on bytes.

Shapes: N images, n images of one group, C channels (3, or 1 for grey), H rows, W columns,
P = H*W pixels, B = 256 grey levels.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fl2fast.data.views import (
    CROP_PAD,
    CUTOUT_RGB,
    GEOMETRIC,
    LUMA,
    OPS,
    Augment,
    ViewDraws,
    affine_matrices,
    crop_offsets,
    cutout_boxes,
    op_values,
)


def make_augment(*, flip: bool = True, crop: float = CROP_PAD) -> Augment:
    """Views of any images on any device."""

    def augment(image_NCHW: Tensor, draws: ViewDraws, view: str) -> Tensor:
        make = strong if view == "strong" else weak
        return make(image_NCHW, draws, flip=flip, crop=crop)

    return augment


def weak(
    image_NCHW: Tensor, draws: ViewDraws, *, flip: bool = True, crop: float = CROP_PAD
) -> Tensor:
    """Crop and flip uint8 images; without `flip` the flip draws are ignored."""
    H, W = image_NCHW.shape[-2:]
    offset_N2 = crop_offsets(draws.crop, H, W, crop)
    row_NH, column_NW = (_reflected(side, offset_N2[:, a]) for a, side in enumerate((H, W)))
    if flip:
        column_NW = np.where(draws.flip[:, None], column_NW[:, ::-1], column_NW)
    row_NH, column_NW = ship(np.concatenate((row_NH * W, column_NW), 1), image_NCHW.device).split(
        (H, W), dim=1
    )
    source_NHW = row_NH[:, :, None] + column_NW[:, None, :]
    return _pick(image_NCHW, source_NHW.flatten(1)).view_as(image_NCHW)


def strong(
    image_NCHW: Tensor, draws: ViewDraws, *, flip: bool = True, crop: float = CROP_PAD
) -> Tensor:
    """Crop and flip as `weak` does, then three ops and a cutout."""
    device, (H, W) = image_NCHW.device, image_NCHW.shape[2:]
    view_NCHW = weak(image_NCHW, draws, flip=flip, crop=crop)
    place_N = np.arange(len(view_NCHW))  # where each image's view is now
    value_N3 = op_values(draws.op, draws.magnitude)
    for op_N, value_N in zip(draws.op.T, value_N3.T, strict=True):
        order_N = _FAMILY_OF[op_N].argsort(kind="stable")
        sizes = np.bincount(_FAMILY_OF[op_N], minlength=len(_FAMILIES))
        moving = slice(0, sizes[0])  # the first family
        matrix_n23 = affine_matrices(op_N[order_N][moving], value_N[order_N][moving], H, W)
        number_N = _as_shipped(op_N, value_N)[order_N]
        source_N, matrix_n23, number_N = (
            ship(host, device) for host in (place_N[order_N], matrix_n23, number_N)
        )
        parts = view_NCHW.index_select(0, source_N).split(sizes.tolist())
        numbers = (matrix_n23, *number_N.split(sizes.tolist())[1:])
        families = zip(_FAMILIES.values(), parts, numbers, strict=True)
        made = [apply(part, number) for apply, part, number in families if len(part)]
        view_NCHW = torch.cat(made or [view_NCHW])
        place_N = order_N.argsort()
    return cutout(view_NCHW.index_select(0, ship(place_N, device)), draws.cutout)


def normalise(image: Tensor, mean_C: Tensor, std_C: Tensor) -> Tensor:
    """(image / 255 - mean) / std per channel of uint8 [..., C, H, W], in the dtype of `mean`."""
    scaled = image.to(mean_C.dtype).div_(255)
    return scaled.sub_(mean_C[:, None, None]).div_(std_C[:, None, None])


def ship(host: np.ndarray, device: torch.device) -> Tensor:
    """A host array on the device of the images; from pinned memory the copy does not wait."""
    tensor = torch.from_numpy(host)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def _reflected(side: int, offset_N: np.ndarray) -> np.ndarray:
    """The source of every coordinate of a crop that starts at an offset; edges are mirrors."""
    from_start = np.abs(np.arange(side) + offset_N[:, None])
    return (side - 1) - np.abs((side - 1) - from_start)


def _pick(image_NCHW: Tensor, source_NP: Tensor) -> Tensor:
    """Pixels [N, C, P] of the image at flat indices, the same for all channels."""
    source_NCP = source_NP[:, None].expand(-1, image_NCHW.shape[1], -1)
    return image_NCHW.flatten(2).gather(2, source_NCP)


def _bytes(value: Tensor) -> Tensor:
    """Numbers in [0, 256), truncated."""
    return value.to(torch.int16).to(torch.uint8)


def _as_shipped(op: np.ndarray, value: np.ndarray) -> np.ndarray:
    """An op's value as the device uses it: a factor, a mask of bits, or a whole grey level."""
    kept_bits = 256 - (1 << (8 - value.astype(np.int64)).clip(0, 8))
    value = np.where(op == OPS.index("Posterize"), kept_bits, value)
    value = np.where(op == OPS.index("Solarize"), np.ceil(value), value)
    return value.astype(np.float32)


# --- Ops: (uint8 image_nCHW, float32 value_n) -> uint8 image_nCHW ---------------------------------


def _blend(degenerate: Tensor, image: Tensor, factor_n: Tensor) -> Tensor:
    """degenerate + factor * (image - degenerate) in float32, truncated.

    The product is rounded before the sum, as PIL does: neither lerp nor a fused multiply-add.
    """
    return _bytes((image - degenerate).mul_(factor_n[:, None, None, None]).add_(degenerate))


def _luma(image_nCHW: Tensor) -> Tensor:
    """PIL's conversion to grey, float32 [n, 1, H, W]; every number here is exact below 2^24."""
    if image_nCHW.shape[1] == 1:
        return image_nCHW
    red, green, blue = image_nCHW.split(1, dim=1)
    total = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    return total.add_(0x8000).mul_(2.0**-16).floor_()


def _brightness(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    return _bytes(image_nCHW * value_n[:, None, None, None])  # the degenerate image is black


def _color(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    if image_nCHW.shape[1] == 1:
        return image_nCHW  # its own grey
    image = image_nCHW.float()
    return _blend(_luma(image), image, value_n)


def _contrast(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Blend with the mean luma, rounded half up."""
    P, image = image_nCHW[0, 0].numel(), image_nCHW.float()
    total_n111 = _luma(image).sum(dim=(2, 3), keepdim=True, dtype=torch.float64)
    return _blend((total_n111 / P + 0.5).floor_().float(), image, value_n)


def _sharpness(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Blend with the mean of the 3x3 neighbourhood in which the centre weighs 5 of 13.

    No sum of integers is halfway between two multiples of 13, so rounding has no ties. PIL copies
    the border to the degenerate image, which leaves it as it is.
    """
    image = image_nCHW.float()
    rows = image[:, :, :-2] + image[:, :, 1:-1]
    rows += image[:, :, 2:]
    centre = image[:, :, 1:-1, 1:-1]
    total = rows[..., :-2] + rows[..., 1:-1]
    total.add_(rows[..., 2:]).add_(centre, alpha=4)
    smooth = total.mul_(1 / 13).add_(0.5).floor_()
    sharp_nCHW = image_nCHW.clone()
    sharp_nCHW[:, :, 1:-1, 1:-1] = _blend(smooth, centre, value_n)
    return sharp_nCHW


def _auto_contrast(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Stretch every channel to 0..255; in float64, where int(255 - epsilon) is 254 as in PIL."""
    low, high = (f((2, 3), keepdim=True).double() for f in (image_nCHW.amin, image_nCHW.amax))
    white = torch.full_like(high, 255)  # a tensor: 255 / tensor would round a reciprocal first
    scale = torch.where(high > low, white / (high - low), 1.0)
    offset = torch.where(high > low, -low * scale, 0.0)
    return _bytes(image_nCHW.double().mul_(scale).add_(offset))


def _equalize(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Map every channel by its cumulative histogram, in steps of 1/255 of all but the top bin."""
    level_nCP = image_nCHW.flatten(2).long()
    n, C, P = level_nCP.shape
    count_nCB = level_nCP.new_zeros(n, C, 256, dtype=torch.int32)
    count_nCB.scatter_add_(2, level_nCP, count_nCB.new_ones(()).expand_as(level_nCP))
    top_nC1 = image_nCHW.flatten(2).amax(2, keepdim=True).long()
    step_nC1 = (P - count_nCB.gather(2, top_nC1)) // 255
    below_nCB = count_nCB.cumsum(2, dtype=torch.int32) - count_nCB
    lut_nCB = (step_nC1 // 2 + below_nCB) // step_nC1.clamp(min=1)
    same_B = torch.arange(256, dtype=torch.int32, device=image_nCHW.device)
    lut_nCB = torch.where(step_nC1 > 0, lut_nCB.clamp(max=255), same_B).to(torch.uint8)
    return lut_nCB.gather(2, level_nCP).view_as(image_nCHW)


def _posterize(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    return image_nCHW & _bytes(value_n)[:, None, None, None]


def _solarize(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Invert levels from the threshold up: i ^ 255, where (threshold - 1 - i) is negative."""
    limit_n111 = (value_n - 1).to(torch.int16)[:, None, None, None]
    inverted = (limit_n111 - image_nCHW) >> 15
    return image_nCHW ^ inverted.to(torch.uint8)


def _affine(image_nCHW: Tensor, matrix_n23: Tensor) -> Tensor:
    """Output pixel (x, y) is input pixel matrix @ (x, y, 1) >> 16, or black outside.

    Outside means on a black frame of one pixel, which spares a mask.
    """
    (H, W), device = image_nCHW.shape[-2:], image_nCHW.device
    by_x_n2, by_y_n2, start_n2 = matrix_n23[..., None].unbind(2)
    place_P = torch.arange(H * W, dtype=torch.int32, device=device)
    x_P, y_P = place_P % W, place_P // W
    source_n2P = (by_x_n2 * x_P).add_(by_y_n2 * y_P).add_(start_n2)
    x_nP, y_nP = source_n2P.bitwise_right_shift_(16).unbind(1)
    framed_nP = y_nP.clamp_(-1, H).mul_(W + 2).add_(x_nP.clamp_(-1, W)).add_(W + 3)
    return _pick(pad(image_nCHW, (1, 1, 1, 1)), framed_nP.long()).view_as(image_nCHW)


def _identity(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    return image_nCHW


# Rows are grouped by family; the geometric ops, which take matrices, are one and come first.
_FAMILIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "geometric": _affine,
    "AutoContrast": _auto_contrast,
    "Brightness": _brightness,
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Equalize": _equalize,
    "Identity": _identity,
    "Posterize": _posterize,
    "Solarize": _solarize,
}
_FAMILY_OF = np.array([0 if name in GEOMETRIC else list(_FAMILIES).index(name) for name in OPS])


def cutout(image_NCHW: Tensor, uniform_N3: np.ndarray) -> Tensor:
    """Fill the drawn square with grey (125, 123, 114)."""
    (C, H, W), device = image_NCHW.shape[1:], image_NCHW.device
    box_N22 = cutout_boxes(uniform_N3, H, W)
    row_NH, column_NW = (
        255 * ((np.arange(side) >= box_N22[:, :1, a]) & (np.arange(side) <= box_N22[:, 1:, a]))
        for a, side in enumerate((H, W))
    )
    covered = ship(np.concatenate((row_NH, column_NW), 1).astype(np.uint8), device)
    row_NH, column_NW = covered.split((H, W), dim=1)
    covered_N1HW = (row_NH[:, :, None] & column_NW[:, None, :])[:, None]
    fill_C = torch.tensor(CUTOUT_RGB, dtype=torch.float32)[:, None, None]
    fill_C11 = _bytes(fill_C if C == 3 else _luma(fill_C[None])[0]).numpy()
    return (image_NCHW & ~covered_N1HW) | (ship(fill_C11, device) & covered_N1HW)
