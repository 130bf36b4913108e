"""The same views made by PIL, one image at a time: the truth in tests, the baseline in benchmarks.

It reads the draws that the batched backends read, and otherwise shares no code with them.
"""

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from fl2fast.data.semifl_views import OPS as FULL_OPS
from fl2fast.data.views import OPS, ViewDraws


def to_pil(image_CHW: np.ndarray) -> Image.Image:
    return Image.fromarray(image_CHW[0] if len(image_CHW) == 1 else image_CHW.transpose(1, 2, 0))


def from_pil(image: Image.Image) -> np.ndarray:
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def pil_op(image: Image.Image, name: str, u: float) -> Image.Image:
    """One op of RandAugment at a magnitude of u in [0, 1)."""

    def value(low: float, high: float) -> float:
        return low + (high - low) * u

    def affine(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix)

    match name:
        case "AutoContrast":
            return ImageOps.autocontrast(image)
        case "Brightness" | "Color" | "Contrast" | "Sharpness":
            return getattr(ImageEnhance, name)(image).enhance(value(0.05, 0.95))
        case "Equalize":
            return ImageOps.equalize(image)
        case "Identity":
            return image
        case "Posterize":
            return ImageOps.posterize(image, int(value(4, 8)))
        case "Rotate":
            return image.rotate(value(-30, 30))
        case "ShearX":
            return affine(1, value(-0.3, 0.3), 0, 0, 1, 0)
        case "ShearY":
            return affine(1, 0, 0, value(-0.3, 0.3), 1, 0)
        case "Solarize":
            return ImageOps.solarize(image, value(0, 256))  # pyright: ignore[reportArgumentType]
        case "TranslateX":
            return affine(1, 0, value(-0.3, 0.3) * image.width, 0, 1, 0)
        case "TranslateY":
            return affine(1, 0, 0, 0, 1, value(-0.3, 0.3) * image.height)
    raise ValueError(name)


def pil_cutout(image: Image.Image, side: float, x: float, y: float) -> Image.Image:
    width, height = image.size
    v = side * 0.5 * width
    x0 = int(max(0, width + (1 - width) * x - v / 2))
    y0 = int(max(0, height + (1 - height) * y - v / 2))
    grey = Image.new("RGB", (1, 1), (125, 123, 114)).convert("L").getpixel((0, 0))
    fill = grey if image.mode == "L" else (125, 123, 114)
    image = image.copy()
    box = (x0, y0, min(width, x0 + v), min(height, y0 + v))
    ImageDraw.Draw(image).rectangle(box, fill)  # pyright: ignore[reportArgumentType]
    return image


def pil_weak(image_CHW: np.ndarray, draws: ViewDraws, i: int, flip: bool = True) -> Image.Image:
    """Reflect-pad by an eighth of the side, crop, flip."""
    _, H, W = image_CHW.shape
    pad_y, pad_x = H // 8, W // 8
    padded = np.pad(image_CHW, ((0, 0), (pad_y, pad_y), (pad_x, pad_x)), mode="reflect")
    y = int(draws.crop[i, 0] * 2.0**-32 * (2 * pad_y + 1))
    x = int(draws.crop[i, 1] * 2.0**-32 * (2 * pad_x + 1))
    image = to_pil(padded[:, y : y + H, x : x + W])
    flipped = flip and draws.flip[i]
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flipped else image


def pil_strong(image_CHW: np.ndarray, draws: ViewDraws, i: int, flip: bool = True) -> Image.Image:
    """The weak view, three ops and a cutout."""
    image = pil_weak(image_CHW, draws, i, flip)
    for op, u in zip(draws.op[i].tolist(), draws.magnitude[i].tolist(), strict=True):
        image = pil_op(image, OPS[op], u)
    return pil_cutout(image, *draws.cutout[i].tolist())


def pil_full_op(
    image: Image.Image, name: str, sign: int, centre: tuple[float, float]
) -> Image.Image:
    """One of SemiFL's ops at full magnitude; `centre` is a cutout's, as shares of the sides."""
    width, height = image.size

    def affine(*matrix: float) -> Image.Image:
        kind, smooth = Image.Transform.AFFINE, Image.Resampling.BILINEAR
        return image.transform(image.size, kind, matrix, smooth)

    match name:
        case "AutoContrast" | "Equalize" | "Invert":
            return getattr(ImageOps, name.lower())(image)
        case "Brightness" | "Color" | "Contrast" | "Sharpness":
            return getattr(ImageEnhance, name)(image).enhance(1.9)
        case "Cutout":
            x0, y0 = (
                int(max(0, share * side - 20))
                for share, side in zip(centre, image.size, strict=True)
            )
            image = image.copy()
            box = (x0, y0, min(width, x0 + 40), min(height, y0 + 40))
            ImageDraw.Draw(image).rectangle(box, 127 if image.mode == "L" else (127, 127, 127))
            return image
        case "Posterize":
            return ImageOps.posterize(image, 4)
        case "Rotate":
            return image.rotate(sign * 30)
        case "ShearX":
            return affine(1, sign * 0.3, 0, 0, 1, 0)
        case "ShearY":
            return affine(1, 0, 0, sign * 0.3, 1, 0)
        case "Solarize":
            return ImageOps.solarize(image, 0)
        case "TranslateX":
            return affine(1, 0, sign * 100, 0, 1, 0)
        case "TranslateY":
            return affine(1, 0, 0, 0, 1, sign * 100)
    raise ValueError(name)


def pil_semifl(image_CHW: np.ndarray, draws: ViewDraws, i: int, flip: bool = True) -> Image.Image:
    """The weak view and two ops, each taken or not; a uniform number says which, whether, sign."""
    image = pil_weak(image_CHW, draws, i, flip)
    u, spare = draws.magnitude[i].tolist(), draws.cutout[i].tolist()
    centres = (spare[0], spare[1]), (spare[2], u[2])
    for uniform, centre in zip(u[:2], centres, strict=True):
        number = int(uniform * 60)
        if number % 4 >= 2:
            image = pil_full_op(image, FULL_OPS[number // 4], 1 if number % 2 else -1, centre)
    return image
