"""Keyed randomness, the only place a random number is born.

A draw is a pure function of (seed, purpose, place): no hidden state, so results do not depend on
lane order, chunk size, lowering, device or the number of seeds, and a resumed run needs no saved
generator. The function is Philox4x32-10 (Salmon et al., SC 2011) on numpy arrays; draws are made
on the host and shipped, so they are bit-identical on every device.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

# A purpose is half of the key, so no two share a stream. Append only: the position is the key.
PURPOSES = (
    "init",
    "labelled split",
    "partition",
    "select",
    "pseudo-label view",
    "client shuffle",
    "client view",
    "server shuffle",
    "server view",
    "recalibration order",
    "streetdigits",
    "second client view",
    "second server view",
    "mix partner",
    "mix view",
    "mix share",
    "central shuffle",
    "central view",
    "central labelled",
    "probe",
    "learner",
    "text sample",
    "text augmentation",
)

MAX_SEED = 2**32 - 1

_WORD, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)

Place = int | np.ndarray


def philox(
    counter: tuple[np.ndarray, ...], key: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Philox4x32-10 on uint64 arrays that hold 32-bit words; all arguments broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (right >> _HALF) ^ c1 ^ k0, (left >> _HALF) ^ c3 ^ k1
        c1, c3 = right & _WORD, left & _WORD
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    return c0, c1, c2, c3


def words(seed: Place, purpose: str, *place: Place, num: int) -> np.ndarray:
    """`num` independent 32-bit words, as int64, for every element of the broadcast places.

    `place` is up to four integers or integer arrays, such as (round, client, epoch, row).

    >>> words(0, "select", 1, np.arange(3), num=2).shape
    (3, 2)
    """
    columns = [np.asarray(p).astype(np.uint64)[..., None] for p in (seed, *place)]
    columns += [np.zeros(1, np.uint64)] * (5 - len(columns))
    blocks = np.arange((num + 3) // 4, dtype=np.uint64)
    stream = np.uint64(PURPOSES.index(purpose) << 16) | blocks
    made = np.stack(np.broadcast_arrays(*philox(tuple(columns[1:]), (columns[0], stream))), axis=-1)
    return made.reshape(*made.shape[:-2], 4 * len(blocks))[..., :num].view(np.int64)


def shuffle_keys(seed: Place, purpose: str, *place: Place) -> np.ndarray:
    """A non-negative int64 for every place; sorting by it is a uniform shuffle."""
    high, low = np.moveaxis(words(seed, purpose, *place, num=2), -1, 0)
    return high << 31 | low >> 1


def generator(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """A numpy generator of its own for draws that are made once, such as a partition."""
    key = words(seed, purpose, *place, num=4).tolist()
    return np.random.Generator(np.random.Philox(key=[key[0] << 32 | key[1], key[2] << 32 | key[3]]))


@contextmanager
def torch_seeded(seed: int, purpose: str) -> Iterator[None]:
    """Run a block that draws from torch's global generator, such as a module's own init, by key."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(shuffle_keys(seed, purpose)))
        yield
