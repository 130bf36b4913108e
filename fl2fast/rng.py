"""Keyed randomness, the only place a random number is born.

A draw is a pure function of (seed, purpose, place): no hidden state, so results do not depend on
lane order, chunk size, lowering, device or the number of seeds, and a resumed run needs no saved
generator. The function is Philox4x32-10 (Salmon et al., SC 2011) on integer tensors; draws are made
on the host and shipped, so they are bit-identical on every device.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

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
)

MAX_SEED = 2**32 - 1

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Place = int | Tensor


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Philox4x32-10 on int64 tensors that hold 32-bit words; all arguments broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The 64-bit product wraps in int64; masking after the shift recovers its unsigned halves.
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (right >> 32 & _WORD) ^ c1 ^ k0, (left >> 32 & _WORD) ^ c3 ^ k1
        c1, c3 = right & _WORD, left & _WORD
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    return c0, c1, c2, c3


def words(seed: Place, purpose: str, *place: Place, num: int) -> Tensor:
    """`num` independent 32-bit words for every element of the broadcast of seed and place.

    `place` is up to four integers or integer tensors, such as (round, client, epoch, row).

    >>> words(0, "select", 1, torch.arange(3), num=2).shape
    torch.Size([3, 2])
    """
    counter = [torch.as_tensor(p, dtype=torch.int64) for p in (*place, *(0,) * (4 - len(place)))]
    seed = torch.as_tensor(seed, dtype=torch.int64)
    blocks = []
    for block in range((num + 3) // 4):
        stream = torch.as_tensor(PURPOSES.index(purpose) << 16 | block)
        blocks += torch.broadcast_tensors(*philox(tuple(counter), (seed, stream)))
    return torch.stack(blocks[:num], dim=-1)


def uniform(seed: Place, purpose: str, *place: Place, num: int) -> Tensor:
    """Like `words`, as float64 in [0, 1)."""
    return words(seed, purpose, *place, num=num).double() * 2.0**-32


def shuffle_keys(seed: Place, purpose: str, *place: Place) -> Tensor:
    """A non-negative int64 for every place; sorting by it is a uniform shuffle."""
    high, low = words(seed, purpose, *place, num=2).unbind(-1)
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
