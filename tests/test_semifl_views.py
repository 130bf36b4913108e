"""SemiFL's own strong views against PIL, image by image; equality is exact everywhere."""

from typing import Any

import numpy as np
import pytest
import torch
from test_augment import SHAPES, draws_of, noise, stack, varied
from test_federation import BASE, assert_same

import fl2fast
from benchmarks.pil import pil_full_op, pil_semifl, to_pil
from fl2fast.data.backends import make_augment, usable
from fl2fast.data.semifl_views import OPS, apply_op, full_draws, strong
from fl2fast.errors import UsageError

CENTRES = np.array([(0.0, 0.0), (0.99, 0.7), (0.4, 0.9)])


@pytest.mark.parametrize("shape", [*SHAPES, (3, 8, 120)], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_every_op_equals_pil(name: str, shape: tuple[int, int, int]) -> None:
    images = varied(shape)
    for sign in (-1, 1):
        for centre in CENTRES if name == "Cutout" else CENTRES[:1]:
            signs, centres = np.full(len(images), sign), np.tile(centre, (len(images), 1))
            found = apply_op(name, images, signs, centres)
            each = [pil_full_op(to_pil(i.numpy()), name, sign, tuple(centre)) for i in images]
            assert torch.equal(found, stack(each))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("flip", [True, False])
def test_views_equal_pil(shape: tuple[int, int, int], flip: bool) -> None:
    images, draws = noise(300, shape), draws_of(300)
    expected = stack(pil_semifl(image.numpy(), draws, i, flip) for i, image in enumerate(images))
    assert torch.equal(strong(images, draws, flip=flip), expected)


def test_what_is_drawn() -> None:
    full = full_draws(draws_of(6000))
    assert np.bincount(full.op_N2.ravel(), minlength=15).min() > 12000 / 15 * 0.85
    assert full.op_N2.max() == 14
    assert full.taken_N2.mean() == pytest.approx(0.5, abs=0.02)
    assert full.sign_N2.mean() == pytest.approx(0.0, abs=0.03)
    assert set(np.unique(full.sign_N2)) == {-1, 1}
    together = np.corrcoef([full.op_N2[:, 0], full.taken_N2[:, 0], full.sign_N2[:, 0]])
    assert np.abs(together - np.eye(3)).max() < 0.05
    assert full.centre_N22.min() >= 0
    assert full.centre_N22.max() < 1


def test_a_run_takes_them_whatever_the_lowering(small_digits: str) -> None:
    def run(**changes: Any) -> Any:
        small = {"method": "semifl", "sure": 0.25, "rounds": 2, "dataset": small_digits}
        made = fl2fast.experiment(**BASE | small | changes)
        return list(fl2fast.simulate(fl2fast.build_world(made)))

    own = run(strong_views="semifl", lowering="loop", chunk=1)
    assert_same(run(strong_views="semifl", lowering="grouped"), own)
    other = run(lowering="loop", chunk=1)
    assert not torch.allclose(own[-1].state.params_SP, other[-1].state.params_SP)


def test_dali_does_not_make_them() -> None:
    assert usable((3, 32, 32), "semifl") == ["torch"]
    with pytest.raises(UsageError, match="made by torch only: use --augment torch or auto"):
        make_augment(
            "dali",
            flip=True,
            crop=0.125,
            shape=(3, 32, 32),
            device=torch.device("cpu"),
            strong="semifl",
        )
