"""Who is mixed with whom, and how much: keyed draws on the host.

Shapes: L lanes, E epochs, M rows of a client, G lanes of one wave.
"""

import numpy as np
from scipy.special import betaincinv

from fl2fast import rng
from fl2fast.methods.method import Mix


def draw_partners(
    mix: Mix,
    live_LM: np.ndarray,
    kept_LM: np.ndarray,
    seed_L: np.ndarray,
    client_L: np.ndarray,
    *,
    round: int,
    epochs: int,
) -> np.ndarray:
    """The partner of every row in every epoch, as a position among its client's rows: [L, E, M]."""
    num_lanes, num_rows = live_LM.shape
    epoch_E1, row_M = np.arange(epochs)[:, None], np.arange(num_rows)
    partner_LEM = np.zeros((num_lanes, epochs, num_rows), dtype=np.int64)
    for lane in range(num_lanes):
        key = (seed_L[lane], "mix partner", round, client_L[lane])
        word_EM = rng.words(*key, epoch_E1, row_M, num=1)[..., 0]
        if mix.partners == "all":
            own = np.flatnonzero(live_LM[lane])
            partner_LEM[lane] = own[word_EM * len(own) >> 32]
            continue
        kept = np.flatnonzero(kept_LM[lane])
        drawn = kept[word_EM[0, kept] * len(kept) >> 32]  # once a round, as many as are kept
        order_EM = rng.shuffle_keys(*key, epochs + epoch_E1, kept).argsort(1, kind="stable")
        partner_LEM[lane][:, kept] = drawn[order_EM]
    return partner_LEM


def draw_shares(
    mix: Mix,
    seed_G: np.ndarray,
    client_G: np.ndarray,
    *,
    round: int,
    epoch_G: np.ndarray,
    first_G: np.ndarray,
) -> np.ndarray:
    """Beta(beta, beta) for one batch a lane; a batch is known by its first row: float64 [G]."""
    word_G = rng.words(seed_G, "mix share", round, client_G, epoch_G, first_G, num=1)[:, 0]
    return betaincinv(mix.beta, mix.beta, (word_G + 0.5) * 2.0**-32)
