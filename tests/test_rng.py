"""Keyed draws: the published Philox answers, and independence of shape."""

import numpy as np
import pytest
import torch

from fl2fast import rng

# Known answers of Philox4x32-10 from the authors' Random123 distribution.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_known_answers(counter: list[int], key: list[int], answer: list[int]) -> None:
    made = rng.philox(
        tuple(np.array([c], np.uint64) for c in counter),
        (np.array([key[0]], np.uint64), np.array([key[1]], np.uint64)),
    )
    assert [int(word[0]) for word in made] == answer


def test_a_draw_depends_on_its_place_alone() -> None:
    rows = np.arange(50)
    together = rng.words(np.array([[3], [9]]), "client view", 2, 7, 1, rows, num=6)
    alone = rng.words(9, "client view", 2, 7, 1, 31, num=6)
    assert np.array_equal(together[1, 31], alone)


def test_purposes_seeds_and_places_give_other_words() -> None:
    base = rng.words(0, "select", 1, 2, 3, 4, num=4)
    for other in (
        rng.words(1, "select", 1, 2, 3, 4, num=4),
        rng.words(0, "partition", 1, 2, 3, 4, num=4),
        *(rng.words(0, "select", *place, num=4) for place in ((0, 2, 3, 4), (1, 2, 3, 5))),
    ):
        assert not np.array_equal(base, other)


def test_uniform_is_uniform() -> None:
    values = rng.words(5, "client view", 1, np.arange(20_000), num=3) * 2.0**-32
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(float(values.mean()) - 0.5) < 0.005
    assert np.abs(np.corrcoef(values.T) - np.eye(3)).max() < 0.03


def test_module_init_is_keyed_and_leaves_the_global_generator(no_unkeyed_draws: None) -> None:
    def draw(seed: int) -> torch.Tensor:
        with rng.torch_seeded(seed, "init"):
            return torch.rand(3)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
