"""Streetdigits: the same bits always, streams apart, and digits that can be learnt but not easily.

Shapes: N images, C colours, H rows, W columns, F features.
"""

import numpy as np
import pytest
import torch

from fl2fast.data import streetdigits
from fl2fast.data.streetdigits import BLOCK, NUM_CLASSES, draw


def assert_equal(left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("num", [1, BLOCK, BLOCK + 7])
def test_shapes_and_types(num: int) -> None:
    image_NCHW, label_N = draw(num, seed=3, split="train")
    assert image_NCHW.shape == (num, 3, 32, 32)
    assert image_NCHW.dtype == np.uint8
    assert label_N.shape == (num,)
    assert label_N.dtype == np.int64
    assert image_NCHW.flags.c_contiguous


def test_images_use_the_range_and_differ() -> None:
    image_NCHW, _ = draw(BLOCK, seed=0, split="train")
    assert image_NCHW.min() == 0
    assert image_NCHW.max() == 255
    assert 60 < image_NCHW.mean() < 195
    assert (image_NCHW.std(axis=(1, 2, 3)) > 2).all()
    assert len(np.unique(image_NCHW.reshape(BLOCK, -1), axis=0)) == BLOCK


def test_every_block_is_balanced() -> None:
    _, label_N = draw(2 * BLOCK, seed=1, split="test")
    for block_label_N in label_N.reshape(2, BLOCK):
        assert (np.bincount(block_label_N, minlength=NUM_CLASSES) == BLOCK // NUM_CLASSES).all()


def test_threads_and_repetition_change_no_bit() -> None:
    num_threads = torch.get_num_threads()
    draws = []
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            draws.append(draw(BLOCK + 1, seed=5, split="train"))
    finally:
        torch.set_num_threads(num_threads)
    assert_equal(draws[0], draws[1])
    assert_equal(draws[0], draws[2])


@pytest.mark.parametrize("num", [1, BLOCK - 1, BLOCK, BLOCK + 3])
def test_a_draw_is_the_start_of_a_longer_one(num: int) -> None:
    image_NCHW, label_N = draw(2 * BLOCK + 1, seed=2, split="test")
    assert_equal(draw(num, seed=2, split="test"), (image_NCHW[:num], label_N[:num]))


def test_seeds_splits_and_blocks_are_streams_of_their_own() -> None:
    streams = [(0, "train", 0), (1, "train", 0), (0, "test", 0), (0, "train", 1)]
    blocks = [streetdigits.draw_block(*stream)[0] for stream in streams]
    image_NF = np.concatenate(blocks).reshape(len(streams) * BLOCK, -1)
    assert len(np.unique(image_NF, axis=0)) == len(image_NF)


def features(image_NCHW: np.ndarray) -> np.ndarray:
    """Grey 8x8 thumbnails, the light's plane and the contrast taken out."""
    grey_NHW = image_NCHW.mean(axis=1).reshape(-1, 8, 4, 8, 4).mean(axis=(2, 4))
    row, column = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    plane_F3 = np.stack([np.ones(64), row.ravel(), column.ravel()], axis=1)
    flat_NF = grey_NHW.reshape(-1, 64)
    flat_NF = flat_NF - flat_NF @ np.linalg.pinv(plane_F3).T @ plane_F3.T
    return flat_NF / flat_NF.std(axis=1, keepdims=True)


def test_a_linear_classifier_learns_something_but_not_all() -> None:
    """Least squares on thumbnails: far above chance, far below what a network reads."""
    train_NCHW, train_label_N = draw(2000, seed=0, split="train")
    test_NCHW, test_label_N = draw(750, seed=0, split="test")
    target_NK = np.eye(NUM_CLASSES)[train_label_N]
    weight_FK = np.linalg.lstsq(features(train_NCHW), target_NK, rcond=None)[0]
    correct_N = (features(test_NCHW) @ weight_FK).argmax(axis=1) == test_label_N
    assert 0.5 < correct_N.mean() < 0.85
