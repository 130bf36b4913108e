"""What happens to pixels: PIL's ops on batches of uint8 images, equal to PIL's byte for byte.

An op is (image_nCHW, value_n) -> image_nCHW. Two habits keep the CPU's vector units busy: floats
become uint8 by way of int16, and a choice between two bytes is made by bit masks, because torch
vectorises neither the direct conversion nor comparisons and `where` on bytes.

Shapes: n images, C channels (3, or 1 for grey), H rows, W columns, P = H*W pixels, B = 256 levels.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from fl2fast.data.views import LUMA


def pick(image_nCHW: Tensor, source_nP: Tensor) -> Tensor:
    """Pixels [n, C, P] of the image at flat indices, the same for all channels."""
    source_nCP = source_nP[:, None].expand(-1, image_nCHW.shape[1], -1)
    return image_nCHW.flatten(2).gather(2, source_nCP)


def as_bytes(value: Tensor) -> Tensor:
    """Numbers in [0, 256), truncated."""
    return value.to(torch.int16).to(torch.uint8)


def blend(degenerate: Tensor, image: Tensor, factor_n: Tensor) -> Tensor:
    """degenerate + factor * (image - degenerate) in float32, truncated; beyond 1 it is clipped.

    The product is rounded before the sum, as PIL does: neither lerp nor a fused multiply-add.
    """
    made = (image - degenerate).mul_(factor_n[:, None, None, None]).add_(degenerate)
    return as_bytes(made.clamp_(0, 255))


def luma(image_nCHW: Tensor) -> Tensor:
    """PIL's conversion to grey, float32 [n, 1, H, W]; every number here is exact below 2^24."""
    if image_nCHW.shape[1] == 1:
        return image_nCHW
    red, green, blue = image_nCHW.split(1, dim=1)
    total = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    return total.add_(0x8000).mul_(2.0**-16).floor_()


def brightness(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    # the degenerate image is black
    return as_bytes((image_nCHW * value_n[:, None, None, None]).clamp_(max=255))


def color(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    if image_nCHW.shape[1] == 1:
        return image_nCHW  # its own grey
    image = image_nCHW.float()
    return blend(luma(image), image, value_n)


def contrast(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Blend with the mean luma, rounded half up."""
    P, image = image_nCHW[0, 0].numel(), image_nCHW.float()
    row_totals = luma(image).sum(dim=3, keepdim=True)
    total_n111 = row_totals.sum(dim=2, keepdim=True, dtype=torch.float64)  # exact at any size
    return blend((total_n111 / P + 0.5).floor_().float(), image, value_n)


def sharpness(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
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
    sharp_nCHW[:, :, 1:-1, 1:-1] = blend(smooth, centre, value_n)
    return sharp_nCHW


def auto_contrast(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Stretch every channel to 0..255; in float64, where int(255 - epsilon) is 254 as in PIL."""
    level_nCP = image_nCHW.flatten(2)
    low, high = (f(2, keepdim=True).double() for f in (level_nCP.amin, level_nCP.amax))
    flat = (high == low).double()  # such a channel stays as it is
    white = torch.full_like(high, 255)  # a tensor: 255 / tensor would round a reciprocal first
    scale = white / (high - low + 255 * flat)
    same_B = torch.arange(256, dtype=torch.float64, device=image_nCHW.device)
    lut_nCB = (same_B * scale).sub_(low * scale * (1 - flat)).clamp_(0, 255)
    return as_bytes(lut_nCB).gather(2, level_nCP.long()).view_as(image_nCHW)


def equalize(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
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
    lut_nCB = as_bytes(torch.where(step_nC1 > 0, lut_nCB, same_B))
    return lut_nCB.gather(2, level_nCP).view_as(image_nCHW)


def posterize(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    return image_nCHW & as_bytes(value_n)[:, None, None, None]


def solarize(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    """Invert levels from the threshold up: i ^ 255, where (threshold - 1 - i) is negative."""
    limit_n111 = (value_n - 1).to(torch.int16)[:, None, None, None]
    inverted = image_nCHW.to(torch.int16).neg_().add_(limit_n111).bitwise_right_shift_(15)
    return image_nCHW ^ inverted.to(torch.uint8)


def affine(image_nCHW: Tensor, matrix_n23: Tensor) -> Tensor:
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
    return pick(pad(image_nCHW, (1, 1, 1, 1)), framed_nP.long()).view_as(image_nCHW)


def smooth_affine(image_nCHW: Tensor, matrix_n23: Tensor) -> Tensor:
    """Output pixel (x, y) is the input at matrix @ (x + 1/2, y + 1/2, 1), or black outside.

    Between four pixels' centres it is interpolated in float64, along x first, and truncated.
    """
    H, W = image_nCHW.shape[-2:]
    place_P = torch.arange(H * W, device=image_nCHW.device)
    by_x_n2, by_y_n2, start_n2 = matrix_n23[..., None].unbind(2)
    source_n2P = by_x_n2 * (place_P % W + 0.5) + by_y_n2 * (place_P // W + 0.5) + start_n2
    x_nP, y_nP = source_n2P.unbind(1)
    inside_nP = (x_nP >= 0) & (x_nP < W) & (y_nP >= 0) & (y_nP < H)
    left_nP, top_nP = (x_nP - 0.5).floor(), (y_nP - 0.5).floor()
    right_n1P, down_n1P = (x_nP - 0.5 - left_nP)[:, None], (y_nP - 0.5 - top_nP)[:, None]

    def at(row_nP: Tensor, column_nP: Tensor) -> Tensor:
        source_nP = row_nP.clamp(0, H - 1) * W + column_nP.clamp(0, W - 1)
        return pick(image_nCHW, source_nP.long()).double()

    upper, lower = (
        (near := at(row, left_nP)) + (at(row, left_nP + 1) - near) * right_n1P
        for row in (top_nP, top_nP + 1)
    )
    value_nCP = (upper + (lower - upper) * down_n1P) * inside_nP[:, None]
    return as_bytes(value_nCP).view_as(image_nCHW)


def identity(image_nCHW: Tensor, value_n: Tensor) -> Tensor:
    return image_nCHW
