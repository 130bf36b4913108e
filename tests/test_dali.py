"""The DALI backend against the torch backend; equality is exact everywhere."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from fl2fast.data import dali
from fl2fast.data.augment import strong, weak
from fl2fast.data.views import (
    CROP_PAD,
    CUTOUT_RGB,
    GEOMETRIC,
    OPS,
    Augment,
    ViewDraws,
    draw_views,
    single_op,
)
from fl2fast.errors import UsageError

Shape = tuple[int, int, int]  # C, H, W

SHAPES: tuple[Shape, ...] = ((3, 32, 32), (1, 32, 32), (3, 28, 21), (1, 9, 40), (3, 64, 64))
CIFAR = SHAPES[0]
LAST = 1 - 2.0**-32  # the highest uniform that can be drawn
CPU = torch.device("cpu")

needs_dali = pytest.mark.skipif(not dali.is_installed(), reason="NVIDIA DALI is not installed")


@cache
def backend(shape: Shape, flip: bool = True, crop: float = CROP_PAD) -> Augment:
    return dali.make_augment(flip=flip, crop=crop, shape=shape, device=CPU)


def draws_of(n: int, seed: int = 3) -> ViewDraws:
    return draw_views(seed, "client view", 1, 2, 0, np.arange(n), view=1)


def noise(n: int, shape: Shape, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=generator)


def varied(n: int, shape: Shape) -> Tensor:
    """Noise, low contrast, few levels, dark, ramps, and flat in all channels or in one."""
    noisy = noise(n, shape)
    noisy[1::10] = noisy[1::10] // 5 + 90
    noisy[2::10] = noisy[2::10] // 64 * 60 + 7
    noisy[3::10] = noisy[3::10] // 128 * 255
    noisy[4::10] = ((noisy[4::10] / 255.0) ** 8 * 255).to(torch.uint8)
    noisy[5::10] = torch.linspace(0, 255, shape[2]).to(torch.uint8)
    noisy[6::10] = torch.linspace(255, 10, shape[1]).to(torch.uint8)[:, None]
    noisy[7::10] = noisy[7::10, :, :1, :1]
    noisy[8::10, -1] = 77
    return noisy


def assert_same(made: Tensor, expected: Tensor) -> None:
    assert made.dtype == torch.uint8
    assert made.device == expected.device
    assert made.is_contiguous()
    assert torch.equal(made, expected)


@needs_dali
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_op_equals_torch(name: str, shape: Shape) -> None:
    images = varied(130, shape)
    magnitude_N = np.random.Generator(np.random.Philox(1)).random(len(images))
    magnitude_N[:50] = np.array([0, 0.25, 0.5, 0.75, LAST]).repeat(10)
    draws = single_op(name, magnitude_N)
    assert_same(backend(shape)(images, draws, "strong"), strong(images, draws))


@needs_dali
@pytest.mark.parametrize("side", [8, dali.LARGEST_SIDE])
def test_every_source_pixel_is_right_up_to_the_largest_side(side: int) -> None:
    shape, n = (1, side, side), 200
    place = torch.arange(side * side).view(side, side)
    images = torch.stack((place, place // 251)).remainder(251).to(torch.uint8)
    images = images[:, None].repeat(n // 2, 1, 1, 1)
    draws = draws_of(n)
    moves = np.array([OPS.index(name) for name in GEOMETRIC])
    draws = draws._replace(op=moves[draws.op % len(moves)])
    assert_same(backend(shape)(images, draws, "strong"), strong(images, draws))


@needs_dali
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_views_equal_torch(shape: Shape) -> None:
    images, draws = varied(300, shape), draws_of(300)
    before = images.clone()
    assert_same(backend(shape)(images, draws, "weak"), weak(images, draws))
    assert_same(backend(shape)(images, draws, "strong"), strong(images, draws))
    assert torch.equal(images, before)


@needs_dali
@pytest.mark.parametrize(("flip", "crop"), [(False, CROP_PAD), (True, 0.3), (False, 0.0)])
def test_flip_and_crop_are_settings(flip: bool, crop: float) -> None:
    images, draws = varied(40, (3, 28, 21)), draws_of(40)
    views = backend((3, 28, 21), flip, crop)
    assert_same(views(images, draws, "weak"), weak(images, draws, flip=flip, crop=crop))
    assert_same(views(images, draws, "strong"), strong(images, draws, flip=flip, crop=crop))
    assert views(images, draws, "weak").data_ptr() != images.data_ptr()


@needs_dali
@pytest.mark.parametrize("shape", [CIFAR, (1, 32, 32)], ids=str)
def test_cutout_covers_corners_everything_and_nothing(shape: Shape) -> None:
    edges = np.array([0.0, 0.5, LAST])
    cutout_N3 = np.stack(np.meshgrid(edges, edges, edges), -1).reshape(-1, 3)
    draws = single_op("Identity", np.zeros(len(cutout_N3)))._replace(cutout=cutout_N3)
    images = torch.zeros(len(cutout_N3), *shape, dtype=torch.uint8)
    made = backend(shape)(images, draws, "strong")
    assert_same(made, strong(images, draws))
    assert made.amax() == (CUTOUT_RGB[0] if shape[0] == 3 else 123)


@needs_dali
def test_any_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs of 100 images, and in samples of 7."""
    monkeypatch.setattr(dali, "PIXELS_PER_RUN", 100 * 32 * 32)
    monkeypatch.setattr(dali, "IMAGES_PER_SAMPLE", 7)
    views = dali.make_augment(flip=True, crop=CROP_PAD, shape=CIFAR, device=CPU)
    for n in (257, 0, 1, 100, 8, 101, 0, 2):
        images, draws = noise(n, CIFAR, seed=n), draws_of(n, seed=n)
        assert_same(views(images, draws, "strong"), strong(images, draws))
        assert_same(views(images, draws, "weak"), weak(images, draws))


@needs_dali
def test_a_call_depends_on_its_arguments_alone(no_unkeyed_draws: None) -> None:
    views = backend(CIFAR)
    calls = [
        (noise(n, CIFAR, n), draws_of(n, n), view) for n in (5, 90) for view in ("weak", "strong")
    ]
    first = [views(*call) for call in calls]
    kept = [made.clone() for made in first]
    again = [views(*call) for call in reversed(calls)][::-1]
    for made, copy, repeated in zip(first, kept, again, strict=True):
        assert torch.equal(made, copy), "a later call wrote over an earlier result"
        assert torch.equal(made, repeated)


@needs_dali
def test_an_image_is_changed_by_its_own_draws_only() -> None:
    images, draws = varied(150, CIFAR), draws_of(150)
    together = backend(CIFAR)(images, draws, "strong")
    odd = np.arange(1, 150, 2)
    assert_same(
        backend(CIFAR)(images[1::2], draws.rows(odd), "strong"), together[1::2].contiguous()
    )


@pytest.mark.cuda
@needs_dali
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cuda_equals_torch(cuda: torch.device, shape: Shape) -> None:
    views = dali.make_augment(flip=True, crop=CROP_PAD, shape=shape, device=cuda)
    images, draws = varied(700, shape).to(cuda), draws_of(700)
    with torch.cuda.stream(torch.cuda.Stream()):  # and not on the default stream
        for n in (700, 1, 0, 64):
            shifted = images[:n] + 1  # still queued when DALI is fed
            for view, make in (("weak", weak), ("strong", strong)):
                made = views(shifted, draws.rows(slice(n)), view)
                assert_same(made, make(shifted, draws.rows(slice(n))))
    for name in OPS:
        alone = single_op(name, draws.magnitude[:, 0])
        assert_same(views(images, alone, "strong"), strong(images, alone))


def test_without_dali_the_user_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dali, "find_spec", lambda name: None)
    assert not dali.is_installed()
    with pytest.raises(UsageError) as caught:
        dali.make_augment(flip=True, crop=CROP_PAD, shape=CIFAR, device=CPU)
    assert str(caught.value) == (
        "augmentation backend 'dali' needs NVIDIA DALI: pip install 'fl2fast[dali]', "
        "or use --augment torch"
    )


@needs_dali
def test_a_dali_that_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("CUDA driver\nis too old")

    monkeypatch.setattr(dali._Pipelines, "_run", fail)
    with pytest.raises(UsageError, match=r"does not run here \(is too old\): use --augment torch"):
        dali.make_augment(flip=True, crop=CROP_PAD, shape=CIFAR, device=CPU)


@needs_dali
def test_large_images_are_refused() -> None:
    shape = (3, 32, dali.LARGEST_SIDE + 1)
    with pytest.raises(UsageError, match="at most 108 pixels a side, not 109: use --augment torch"):
        dali.make_augment(flip=True, crop=CROP_PAD, shape=shape, device=CPU)


def test_importing_the_backend_does_not_import_dali() -> None:
    code = (
        "import sys, fl2fast.data.dali as d; d.is_installed(); print('nvidia.dali' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
