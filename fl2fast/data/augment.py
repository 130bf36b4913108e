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
    cutout_masks,
    op_numbers,
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
        number_N = op_numbers(op_N, value_N)[order_N]
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
    row_totals = _luma(image).sum(dim=3, keepdim=True)
    total_n111 = row_totals.sum(dim=2, keepdim=True, dtype=torch.float64)  # exact at any size
    return _blend((total_n111 / P + 0.5).floor_().float(), image, value_n)


def _sharpness(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Blend with the mean of the 3x3 neighbourhood in which the centre weighs 5 of 13.

    No sum of integers is halfway between two multiples of 13, so rounding has no ties. PIL copies
    the border to the degenerate image, which leaves it as it is.
    """
    image = image_nCHW.to(torch.int16)
    rows = (image[:, :, :-2] + image[:, :, 1:-1]).add_(image[:, :, 2:])
    centre = image[:, :, 1:-1, 1:-1]
    total = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:]).add_(centre, alpha=4)
    smooth, centre = total.float().mul_(1 / 13).add_(0.5).floor_(), centre.float()
    sharp_nCHW = image_nCHW.clone()
    sharp_nCHW[:, :, 1:-1, 1:-1] = _blend(smooth, centre, value_n)
    return sharp_nCHW


def _auto_contrast(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Stretch every channel to 0..255; in float64, where int(255 - epsilon) is 254 as in PIL."""
    level_nCP = image_nCHW.flatten(2)
    low, high = (f(2, keepdim=True).double() for f in (level_nCP.amin, level_nCP.amax))
    flat = (high == low).double()  # such a channel stays as it is
    white = torch.full_like(high, 255)  # a tensor: 255 / tensor would round a reciprocal first
    scale = white / (high - low + 255 * flat)
    same_B = torch.arange(256, dtype=torch.float64, device=image_nCHW.device)
    lut_nCB = (same_B * scale).sub_(low * scale * (1 - flat)).clamp_(0, 255)
    return _bytes(lut_nCB).gather(2, level_nCP.long()).view_as(image_nCHW)


def _equalize(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Map every channel by its cumulative histogram, in steps of 1/255 of all but the top bin.

    Counts are whole numbers in float32: their quotients are never rounded across an integer.
    """
    level_nCP = image_nCHW.flatten(2).long()
    n, C, P = level_nCP.shape
    count_nCB = torch.zeros(n, C, 256, device=image_nCHW.device)
    count_nCB.scatter_add_(2, level_nCP, count_nCB.new_ones(()).expand_as(level_nCP))
    top_nC1 = image_nCHW.flatten(2).amax(2, keepdim=True).long()
    step_nC1 = ((P - count_nCB.gather(2, top_nC1)) / 255).floor_()
    below_nCB = count_nCB.cumsum(2).sub_(count_nCB)
    lut_nCB = below_nCB.add_((step_nC1 / 2).floor_()).div_(step_nC1.clamp(min=1)).clamp_(max=255)
    same_B = torch.arange(256, dtype=torch.float32, device=image_nCHW.device)
    lut_nCB = _bytes(torch.where(step_nC1 > 0, lut_nCB, same_B))
    return lut_nCB.gather(2, level_nCP).view_as(image_nCHW)


def _posterize(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    return image_nCHW & _bytes(value_n)[:, None, None, None]


def _solarize(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Invert levels from the threshold up: i ^ 255, where (threshold - 1 - i) is negative."""
    limit_n111 = (value_n - 1).to(torch.int16)[:, None, None, None]
    inverted = image_nCHW.to(torch.int16).neg_().add_(limit_n111).bitwise_right_shift_(15)
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
    masks = np.concatenate(cutout_masks(uniform_N3, H, W), axis=1)
    row_NH, column_NW = ship(masks, device).split((H, W), dim=1)
    kept_N1HW = (row_NH[:, :, None] & column_NW[:, None, :]).bitwise_not_()[:, None]
    fill_C = torch.tensor(CUTOUT_RGB, dtype=torch.float32)[:, None, None]
    fill_C11 = ship(_bytes(fill_C if C == 3 else _luma(fill_C[None])[0]).numpy(), device)
    return (image_NCHW ^ fill_C11).bitwise_and_(kept_N1HW).bitwise_xor_(fill_C11)
