"""A built-in strong view of a text, for when no back-translations are stored.

This is NOT the paper's back-translation: words are deleted and exchanged at random, as in EDA (Wei
and Zou, 2019) without its synonyms, which needs no resources. Figures made with it are not the
paper's.

N texts, L words, D draws a word.
"""

from collections.abc import Sequence

import numpy as np

from fl2fast import rng

VARIANTS = 2
DELETE, EXCHANGE = 0.2, 0.1  # shares of the words
RECIPE = f"delete {DELETE}, exchange {EXCHANGE}, {VARIANTS} variants"  # names what a cache holds
DRAWS = 3
BLOCK = 1024  # texts drawn for at once


def strong_views(texts: Sequence[str], rows_N: np.ndarray, seed: int) -> list[tuple[str, ...]]:
    """The variants of every text, which depend on its own row and the seed alone."""
    made = []
    for start in range(0, len(texts), BLOCK):
        split = [text.split() for text in texts[start : start + BLOCK]]
        rows, longest = rows_N[start : start + BLOCK], max(map(len, split))
        variants = []
        for variant in range(VARIANTS):
            drawn = rng.words(seed, "text augmentation", rows, variant, num=longest * DRAWS)
            uniform_NLD = (drawn * 2.0**-32).reshape(len(split), longest, DRAWS)
            variants.append(
                [_vary(words, u_LD) for words, u_LD in zip(split, uniform_NLD, strict=True)]
            )
        made += zip(*variants, strict=True)
    return made


def _vary(words: list[str], uniform_LD: np.ndarray) -> str:
    """At least one word goes and at least one stays; a lone word is left as it is."""
    delete, exchange, partner = uniform_LD[: len(words)].T
    keep = delete >= DELETE
    keep[delete.argmin()] = False
    keep[delete.argmax()] = True
    kept = [word for word, stays in zip(words, keep, strict=True) if stays]
    for place in np.flatnonzero(exchange[keep] < EXCHANGE):
        other = int(partner[keep][place] * len(kept))
        kept[place], kept[other] = kept[other], kept[place]
    return " ".join(kept)
