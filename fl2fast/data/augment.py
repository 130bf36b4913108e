"""The torch backend: weak and strong views of image batches, equal to PIL's pixel for pixel.

`views` says what a view is and does the host's part. Here pixels move: rows are grouped by the op
they drew, so that no op runs on a row that does not need it, and the five geometric ops are one
gather. An image's view is a function of the image and its own draws only.

Shapes: N images, n images of one group, C channels (3, or 1 for grey), H rows, W columns.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fl2fast.data import pixel_ops as ops
from fl2fast.data.views import (
    CROP_PAD,
    CUTOUT_RGB,
    GEOMETRIC,
    OPS,
    Augment,
    ViewDraws,
    affine_matrices,
    crop_offsets,
    cutout_masks,
    op_numbers,
    op_values,
)


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
    return ops.pick(image_NCHW, source_NHW.flatten(1)).view_as(image_NCHW)


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


def make_augment(
    *, flip: bool = True, crop: float = CROP_PAD, strong: Callable[..., Tensor] = strong
) -> Augment:
    """Views of any images on any device."""

    def augment(image_NCHW: Tensor, draws: ViewDraws, view: str) -> Tensor:
        make = strong if view == "strong" else weak
        return make(image_NCHW, draws, flip=flip, crop=crop)

    return augment


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


# Rows are grouped by family; the geometric ops, which take matrices, are one and come first.
_FAMILIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "geometric": ops.affine,
    "AutoContrast": ops.auto_contrast,
    "Brightness": ops.brightness,
    "Color": ops.color,
    "Contrast": ops.contrast,
    "Sharpness": ops.sharpness,
    "Equalize": ops.equalize,
    "Identity": ops.identity,
    "Posterize": ops.posterize,
    "Solarize": ops.solarize,
}
_FAMILY_OF = np.array([0 if name in GEOMETRIC else list(_FAMILIES).index(name) for name in OPS])


def cutout(image_NCHW: Tensor, uniform_N3: np.ndarray) -> Tensor:
    """Fill the drawn square with grey (125, 123, 114)."""
    (C, H, W), device = image_NCHW.shape[1:], image_NCHW.device
    masks = np.concatenate(cutout_masks(uniform_N3, H, W), axis=1)
    row_NH, column_NW = ship(masks, device).split((H, W), dim=1)
    kept_N1HW = (row_NH[:, :, None] & column_NW[:, None, :]).bitwise_not_()[:, None]
    fill_C = torch.tensor(CUTOUT_RGB, dtype=torch.float32)[:, None, None]
    fill_C11 = ship(ops.as_bytes(fill_C if C == 3 else ops.luma(fill_C[None])[0]).numpy(), device)
    return (image_NCHW ^ fill_C11).bitwise_and_(kept_N1HW).bitwise_xor_(fill_C11)
