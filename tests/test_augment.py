"""The torch backend against PIL, image by image; equality is exact everywhere.

The truth is benchmarks/pil.py: plain per-image code on PIL and numpy that reads the same draws.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.pil import from_pil, pil_cutout, pil_op, pil_strong, pil_weak, to_pil
from fl2fast.data.augment import cutout, normalise, strong, weak
from fl2fast.data.views import GEOMETRIC, OPS, ViewDraws, draw_views, single_op

SHAPES = ((3, 32, 32), (1, 32, 32), (3, 28, 21), (1, 9, 40), (3, 8, 8))  # C, H, W
LAST = 1 - 2.0**-32  # the highest uniform that can be drawn


def draws_of(n: int, seed: int = 3) -> ViewDraws:
    return draw_views(seed, "client view", 1, 2, 0, np.arange(n), view=1)


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


def stack(images) -> Tensor:
    return torch.from_numpy(np.stack([from_pil(image) for image in images]))


def apply(name: str, image_NCHW: Tensor, u_N: np.ndarray) -> Tensor:
    return strong(image_NCHW, single_op(name, u_N))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_op_equals_pil(name: str, shape: tuple[int, int, int]) -> None:
    images = varied(shape)
    ours, theirs = [], []
    drawn = np.random.Generator(np.random.Philox(1)).random((8, len(images)))
    edges = np.array([0.0, 0.25, 0.5, 0.75, LAST])
    for u_N in np.concatenate((drawn, edges[:, None].repeat(len(images), 1))):
        ours.append(apply(name, images, u_N))
        pairs = zip(images.numpy(), u_N.tolist(), strict=True)
        theirs.append(stack(pil_op(to_pil(image), name, u) for image, u in pairs))
    assert ours[0].dtype == torch.uint8
    assert torch.equal(torch.cat(ours), torch.cat(theirs))


@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometric_op_equals_pil_over_a_fine_grid(name: str) -> None:
    u_N = np.linspace(0, LAST, 1999)
    # Every pixel has its own value in one of two channels, so a wrong source cannot go unseen.
    y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    image = torch.stack((y + 1, x + 1, 255 - y)).to(torch.uint8)
    theirs = stack(pil_op(to_pil(image.numpy()), name, u) for u in u_N.tolist())
    assert torch.equal(apply(name, image.expand(len(u_N), -1, -1, -1), u_N), theirs)


def test_color_leaves_grey_images_as_they_are() -> None:
    images = noise(5, (1, 16, 16))
    assert torch.equal(apply("Color", images, np.linspace(0, 0.9, 5)), images)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weak_is_a_reflected_crop_and_a_flip(shape: tuple[int, int, int], flip: bool) -> None:
    images, draws = noise(200, shape), draws_of(200)
    expected = stack(pil_weak(image, draws, i, flip) for i, image in enumerate(images.numpy()))
    assert torch.equal(weak(images, draws, flip=flip), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cutout_is_pils_rectangle(shape: tuple[int, int, int]) -> None:
    edges = np.array([0.0, 1e-9, 0.5, LAST])
    corners = np.stack(np.meshgrid(edges, edges, edges), axis=-1).reshape(-1, 3)
    uniforms = np.concatenate((draws_of(400).cutout, corners))
    images = noise(len(uniforms), shape)
    pairs = zip(images.numpy(), uniforms.tolist(), strict=True)
    expected = stack(pil_cutout(to_pil(image), *u) for image, u in pairs)
    assert torch.equal(cutout(images, uniforms), expected)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strong_equals_the_pil_pipeline(shape: tuple[int, int, int], flip: bool) -> None:
    images = torch.cat((varied(shape), noise(300, shape)))
    draws = draws_of(len(images))
    before = images.clone()
    expected = stack(pil_strong(image, draws, i, flip) for i, image in enumerate(images.numpy()))
    assert torch.equal(strong(images, draws, flip=flip), expected)
    assert torch.equal(images, before)


@pytest.mark.parametrize("view", [weak, strong])
def test_view_does_not_depend_on_the_rest_of_the_batch(view) -> None:
    images, draws = noise(64, (3, 32, 32)), draws_of(64)
    whole = view(images, draws)
    for part in ([], [5], list(range(40, 64)), [9, 2, 61]):
        rows = np.array(part, dtype=np.int64)
        assert torch.equal(view(images[part], draws.rows(rows)), whole[part])


def test_draws_are_a_function_of_their_place() -> None:
    rows = np.array([7, 3, 3, 900])
    some = draw_views(5, "server view", 4, 0, 2, rows, view=0)
    for place, row in enumerate(rows.tolist()):
        one = draw_views(5, "server view", 4, 0, 2, row, view=0)
        assert all(np.array_equal(a[place], b[0]) for a, b in zip(some, one, strict=True))
    rounds = np.full(4, 4)
    again = draw_views(np.full(4, 5), "server view", rounds, 0, rounds // 2, rows, 0)
    assert all(np.array_equal(a, b) for a, b in zip(some, again, strict=True))


def test_draws_are_pinned() -> None:
    """A change here changes every recorded run."""
    draws = draws_of(3)
    assert draws.op.tolist() == [[8, 10, 12], [2, 10, 11], [12, 11, 1]]
    assert draws.crop[:, 0].tolist() == [3240803057, 4023791624, 55986068]


def test_draws_have_the_stated_shapes_and_ranges() -> None:
    for n in (0, 1, 6):
        draws = draws_of(n)
        assert [tuple(d.shape) for d in draws] == [(n, 2), (n,), (n, 3), (n, 3), (n, 3)]
    int64, float64 = np.int64, np.float64
    assert [d.dtype for d in draws] == [int64, np.bool_, int64, float64, float64]


# The places are fixed, so these tests cannot flicker; a correct generator fails a bound at five
# standard deviations for fewer than one seed in a million.
MANY = 100_000


def assert_equally_likely(drawn: np.ndarray, kinds: int) -> None:
    count = np.bincount(drawn.ravel(), minlength=kinds)
    assert len(count) == kinds
    expected = drawn.size / kinds
    chi2 = ((count - expected) ** 2 / expected).sum()
    freedom = kinds - 1
    assert abs(chi2 - freedom) < 5 * (2 * freedom) ** 0.5 + 10  # its tail is longer than normal


def test_ops_and_flips_are_equally_likely() -> None:
    draws = draws_of(MANY)
    for slot in draws.op.T:
        assert_equally_likely(slot, 14)
    assert_equally_likely(draws.op[:, 0] * 14 + draws.op[:, 1], 196)  # slots are independent
    assert_equally_likely(draws.flip.astype(int), 2)


def test_crop_offsets_are_equally_likely() -> None:
    y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    places = torch.stack((y, x, x)).to(torch.uint8).expand(20_000, -1, -1, -1)
    at_16 = weak(places, draws_of(20_000), flip=False)[:, :2, 16, 16].numpy().astype(int) - 12
    for offset in at_16.T:
        assert_equally_likely(offset, 9)
    assert_equally_likely(at_16[:, 0] * 9 + at_16[:, 1], 81)


def test_magnitudes_and_cutouts_are_uniform() -> None:
    draws = draws_of(MANY)
    for u in np.concatenate((draws.magnitude, draws.cutout), axis=1).T:
        assert u.min() >= 0
        assert u.max() < 1
        gap = np.abs(np.sort(u) - (np.arange(MANY) + 0.5) / MANY).max()
        assert gap < 2.7 / MANY**0.5  # Kolmogorov's distribution: P < 1e-6
    bits = (4 + 4 * draws.magnitude[:, 0]).astype(int)
    assert_equally_likely(bits - 4, 4)


def test_views_places_and_purposes_are_independent() -> None:
    rows = np.arange(MANY)
    columns = [
        np.concatenate([d.astype(float).reshape(MANY, -1) for d in draw_views(*place)], axis=1)
        for place in (
            (3, "client view", 1, 2, 0, rows, 0),
            (3, "client view", 1, 2, 0, rows, 1),
            (3, "client view", 1, 2, 1, rows, 0),
            (3, "client view", 1, 3, 0, rows, 0),
            (3, "server view", 1, 2, 0, rows, 0),
            (4, "client view", 1, 2, 0, rows, 0),
        )
    ]
    correlation = np.corrcoef(np.concatenate(columns, axis=1).T)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 6 / MANY**0.5


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
    assert len(np.unique(draws.op)) == len(OPS)
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
