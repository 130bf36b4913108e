"""Augmentation against PIL, image by image; equality is exact everywhere.

The oracle is plain per-image code on PIL and numpy that reads the same draws.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from fl2fast.data import augment
from fl2fast.data.augment import OPS, ViewDraws, draw_views, normalise, strong, weak

SHAPES = ((3, 32, 32), (1, 32, 32), (3, 28, 21), (1, 9, 40), (3, 8, 8))  # C, H, W
LAST = 1 - 2.0**-32  # the highest uniform that can be drawn


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: on a busy machine a second thread only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def draws_of(n: int, seed: int = 3) -> ViewDraws:
    return draw_views(seed, "client view", 1, 2, 0, torch.arange(n), view=1)


def noise(n: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=generator)


def varied(shape: tuple[int, int, int]) -> Tensor:
    """Noise, low contrast, few levels, ramps, waves, flat images and nearly flat ones."""
    C, H, W = shape
    noisy = noise(12, shape)
    y, x = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    structured = [
        *noisy[:4],
        noisy[4] // 5 + 90,
        noisy[5] // 128 * 255,
        noisy[6] // 64 * 60 + 7,
        x * 255 // (W - 1),
        y * 255 // (H - 1),
        (x + y) % 2 * 255,
        (x // 4 + y // 4) % 2 * 100 + 50,
        128 + 127 * torch.sin(x / 5.0) * torch.cos(y / 3.0),
        torch.full((H, W), 0),
        torch.full((H, W), 255),
        torch.full((H, W), 77),
        (x == 3) * 1 + 200,
        (noisy[7].float() / 255) ** 8 * 255,
    ]
    images = torch.stack([image.expand(shape).to(torch.uint8) for image in structured])
    channel_shift = 40 * torch.arange(C, dtype=torch.uint8)[:, None, None]
    return torch.cat((images, images + channel_shift))  # the sum wraps: edges at other levels


def to_pil(image_CHW: Tensor) -> Image.Image:
    array = image_CHW.permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def from_pil(image: Image.Image) -> Tensor:
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


def pil_op(image: Image.Image, name: str, u: float) -> Image.Image:
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


def pil_cutout(image: Image.Image, uniforms: list[float]) -> Image.Image:
    (width, height), (side, x, y) = image.size, uniforms
    v = side * 0.5 * width
    x0 = int(max(0, width + (1 - width) * x - v / 2))
    y0 = int(max(0, height + (1 - height) * y - v / 2))
    grey = Image.new("RGB", (1, 1), (125, 123, 114)).convert("L").getpixel((0, 0))
    fill = grey if image.mode == "L" else (125, 123, 114)
    image = image.copy()
    ImageDraw.Draw(image).rectangle((x0, y0, min(width, x0 + v), min(height, y0 + v)), fill)
    return image


def plain_weak(image_CHW: Tensor, draws: ViewDraws, i: int, flip: bool = True) -> Tensor:
    _, H, W = image_CHW.shape
    pad_y, pad_x = H // 8, W // 8
    padded = np.pad(image_CHW.numpy(), ((0, 0), (pad_y,) * 2, (pad_x,) * 2), mode="reflect")
    y, x = (
        (draws.crop[i].double() * 2.0**-32) * torch.tensor([2 * pad_y + 1, 2 * pad_x + 1])
    ).int()
    crop = padded[:, y : y + H, x : x + W]
    return torch.from_numpy((crop[:, :, ::-1] if flip and draws.flip[i] else crop).copy())


def plain_strong(image_CHW: Tensor, draws: ViewDraws, i: int, flip: bool = True) -> Tensor:
    image = to_pil(plain_weak(image_CHW, draws, i, flip))
    for op, u in zip(draws.op[i].tolist(), draws.magnitude[i].tolist(), strict=True):
        image = pil_op(image, OPS[op], u)
    return from_pil(pil_cutout(image, draws.cutout[i].tolist()))


def apply(name: str, image_NCHW: Tensor, u_N: Tensor) -> Tensor:
    op, low, high = augment._TABLE[name]
    return op(image_NCHW, low + (high - low) * u_N)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_op_equals_pil(name: str, shape: tuple[int, int, int]) -> None:
    images = varied(shape)
    ours, theirs = [], []
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(8, len(images), dtype=torch.float64, generator=generator)
    edges = torch.tensor([0.0, 0.25, 0.5, 0.75, LAST], dtype=torch.float64)
    for u_N in torch.cat((drawn, edges[:, None].expand(-1, len(images)))):
        ours.append(apply(name, images, u_N))
        pairs = zip(images, u_N.tolist(), strict=True)
        theirs.append(torch.stack([from_pil(pil_op(to_pil(im), name, u)) for im, u in pairs]))
    assert ours[0].dtype == torch.uint8
    assert torch.equal(torch.cat(ours), torch.cat(theirs))


@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"])
def test_geometric_op_equals_pil_over_a_fine_grid(name: str) -> None:
    u_N = torch.linspace(0, LAST, 1999, dtype=torch.float64)
    # Every pixel has its own value in one of two channels, so a wrong source cannot go unseen.
    y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    image = torch.stack((y + 1, x + 1, 255 - y)).to(torch.uint8)
    theirs = torch.stack([from_pil(pil_op(to_pil(image), name, u)) for u in u_N.tolist()])
    assert torch.equal(apply(name, image.expand(len(u_N), -1, -1, -1), u_N), theirs)


def test_color_leaves_grey_images_as_they_are() -> None:
    images = noise(5, (1, 16, 16))
    assert torch.equal(apply("Color", images, torch.rand(5, dtype=torch.float64)), images)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weak_is_a_reflected_crop_and_a_flip(shape: tuple[int, int, int], flip: bool) -> None:
    images, draws = noise(200, shape), draws_of(200)
    expected = [plain_weak(image, draws, i, flip) for i, image in enumerate(images)]
    assert torch.equal(weak(images, draws, flip=flip), torch.stack(expected))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cutout_is_pils_rectangle(shape: tuple[int, int, int]) -> None:
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1e-9, 0.5, LAST]).double()] * 3)
    uniforms = torch.cat((draws_of(400).cutout, corners))
    images = noise(len(uniforms), shape)
    pairs = zip(images, uniforms.tolist(), strict=True)
    expected = torch.stack([from_pil(pil_cutout(to_pil(im), u)) for im, u in pairs])
    assert torch.equal(augment._cutout(images, uniforms), expected)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strong_equals_the_pil_pipeline(shape: tuple[int, int, int], flip: bool) -> None:
    images = torch.cat((varied(shape), noise(300, shape)))
    draws = draws_of(len(images))
    before = images.clone()
    expected = [plain_strong(image, draws, i, flip) for i, image in enumerate(images)]
    assert torch.equal(strong(images, draws, flip=flip), torch.stack(expected))
    assert torch.equal(images, before)


@pytest.mark.parametrize("view", [weak, strong])
def test_view_does_not_depend_on_the_rest_of_the_batch(view) -> None:
    images, draws = noise(64, (3, 32, 32)), draws_of(64)
    whole = view(images, draws)
    for part in ([], [5], list(range(40, 64)), [9, 2, 61]):
        assert torch.equal(view(images[part], ViewDraws(*(d[part] for d in draws))), whole[part])


def test_draws_are_a_function_of_their_place() -> None:
    rows = torch.tensor([7, 3, 3, 900])
    some = draw_views(5, "server view", 4, 0, 2, rows, view=0)
    for place, row in enumerate(rows.tolist()):
        one = draw_views(5, "server view", 4, 0, 2, row, view=0)
        assert all(torch.equal(a[place], b[0]) for a, b in zip(some, one, strict=True))
    rounds = torch.full((4,), 4)
    again = draw_views(torch.full((4,), 5), "server view", rounds, 0, rounds // 2, rows, 0)
    assert all(torch.equal(a, b) for a, b in zip(some, again, strict=True))


def test_draws_are_pinned() -> None:
    """A change here changes every recorded run."""
    draws = draws_of(3)
    assert draws.op.tolist() == [[8, 10, 12], [2, 10, 11], [12, 11, 1]]
    assert draws.crop[:, 0].tolist() == [3240803057, 4023791624, 55986068]


def test_draws_have_the_stated_shapes_and_ranges() -> None:
    for n in (0, 1, 6):
        draws = draws_of(n)
        assert [tuple(d.shape) for d in draws] == [(n, 2), (n,), (n, 3), (n, 3), (n, 3)]
    int64, float64 = torch.int64, torch.float64
    assert [d.dtype for d in draws] == [int64, torch.bool, int64, float64, float64]


# The places are fixed, so these tests cannot flicker; a correct generator fails a bound at five
# standard deviations for fewer than one seed in a million.
MANY = 100_000


def assert_equally_likely(drawn: Tensor, kinds: int) -> None:
    count = torch.bincount(drawn.flatten(), minlength=kinds).double()
    assert len(count) == kinds
    expected = drawn.numel() / kinds
    chi2 = ((count - expected) ** 2 / expected).sum()
    freedom = kinds - 1
    assert abs(chi2 - freedom) < 5 * (2 * freedom) ** 0.5 + 10  # its tail is longer than normal


def test_ops_and_flips_are_equally_likely() -> None:
    draws = draws_of(MANY)
    for slot in draws.op.unbind(1):
        assert_equally_likely(slot, 14)
    assert_equally_likely(draws.op[:, 0] * 14 + draws.op[:, 1], 196)  # slots are independent
    assert_equally_likely(draws.flip.long(), 2)


def test_crop_offsets_are_equally_likely() -> None:
    y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    places = torch.stack((y, x, x)).to(torch.uint8).expand(20_000, -1, -1, -1)
    at_16 = weak(places, draws_of(20_000), flip=False)[:, :2, 16, 16].long() - 12
    for offset in at_16.unbind(1):
        assert_equally_likely(offset, 9)
    assert_equally_likely(at_16[:, 0] * 9 + at_16[:, 1], 81)


def test_magnitudes_and_cutouts_are_uniform() -> None:
    draws = draws_of(MANY)
    for u in torch.cat((draws.magnitude, draws.cutout), dim=1).unbind(1):
        assert u.min() >= 0
        assert u.max() < 1
        gap = (u.sort().values - (torch.arange(MANY) + 0.5) / MANY).abs().max()
        assert gap < 2.7 / MANY**0.5  # Kolmogorov's distribution: P < 1e-6
    bits = (4 + 4 * draws.magnitude[:, 0]).long()
    assert_equally_likely(bits - 4, 4)


def test_views_places_and_purposes_are_independent() -> None:
    rows = torch.arange(MANY)
    columns = [
        torch.cat([d.double().reshape(MANY, -1) for d in draw_views(*place)], dim=1)
        for place in (
            (3, "client view", 1, 2, 0, rows, 0),
            (3, "client view", 1, 2, 0, rows, 1),
            (3, "client view", 1, 2, 1, rows, 0),
            (3, "client view", 1, 3, 0, rows, 0),
            (3, "server view", 1, 2, 0, rows, 0),
            (4, "client view", 1, 2, 0, rows, 0),
        )
    ]
    correlation = torch.corrcoef(torch.cat(columns, dim=1).T).fill_diagonal_(0)
    assert correlation.abs().max() < 6 / MANY**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalise(dtype: torch.dtype) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    images = noise(6, (3, 8, 9)).view(2, 3, 3, 8, 9)
    got = normalise(images, torch.tensor(mean, dtype=dtype), torch.tensor(std, dtype=dtype))
    assert got.dtype == dtype
    for c in range(3):
        exact = (images[:, :, c].double() / 255 - mean[c]) / std[c]
        tolerance = {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
        assert (got[:, :, c].double() - exact).abs().max() < tolerance


@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_reads_a_device_tensor(channels: int) -> None:
    """A meta tensor has no values, so any read of one (item, nonzero, a mask) would raise."""
    images, draws = noise(500, (channels, 32, 32)).to("meta"), draws_of(500)
    assert len(draws.op.unique()) == len(OPS)
    view = strong(weak(images, draws), draws)
    assert view.device.type == "meta"
    assert view.shape == images.shape
    constants = torch.full((channels,), 0.5, device="meta")
    normalised = normalise(view, constants, constants)
    assert normalised.shape == images.shape
    with pytest.raises((NotImplementedError, RuntimeError)):
        images.nonzero()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu_without_synchronising() -> None:
    images, draws = noise(500, (3, 32, 32)), draws_of(500)
    expected = strong(images, draws)
    on_device = images.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        view = strong(on_device, draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(view.cpu(), expected)
