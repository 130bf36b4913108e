"""AG News as a frozen encoder sees it: every view's features, made once and then read.

The cache's key is the encoder's files, the texts, and how views and features are made of them.

N texts, V views, F features.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from fl2fast.cache import cache_dir
from fl2fast.data import agnews, text_augment
from fl2fast.data import encoder as encoding
from fl2fast.data.agnews import Texts
from fl2fast.data.arrays import try_to_cache
from fl2fast.data.npy import map_npy
from fl2fast.errors import UsageError

Say = Callable[[str], object]
SAY_EVERY = 20  # seconds


class Features(NamedTuple):
    train_NVF: np.ndarray  # float32; view 0 is the text itself, the others are strong
    train_labels: np.ndarray  # int64 [N]
    test_NF: np.ndarray  # float32
    test_labels: np.ndarray

    @property
    def num_classes(self) -> int:
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1


def text_features(texts: Texts, encoder: str, data_seed: int, say: Say) -> Features:
    """What an encoder makes of the texts; `say` gets a sentence about each thing of note."""
    if texts.train_available != agnews.OFFICIAL_TRAIN:
        say(
            f"agnews/train.csv has {texts.train_available:,} texts, not AG News' "
            f"{agnews.OFFICIAL_TRAIN:,}: results are not those of the standard split"
        )
    stored = len(texts.train_NV[0]) > 1
    if not stored:
        say(
            "agnews/train.csv stores no back-translations (columns aug_0, aug_1): strong views "
            "are the built-in word deletion and exchange, not the paper's back-translation"
        )
    weights = encoding.find(encoder)
    augmentation = "stored" if stored else f"{text_augment.RECIPE}, seed {data_seed}"
    folder = cache_dir() / f"agnews-{_key(texts, encoding.fingerprint(weights), augmentation)}"
    if folder.is_dir():
        return _read_cached(folder, texts)
    features = _make(texts, weights, encoder, data_seed, say)
    try_to_cache(features, folder)
    return features


def _make(texts: Texts, weights: Path, name: str, seed: int, say: Say) -> Features:
    views_NV = texts.train_NV
    if len(views_NV[0]) == 1:
        originals = [views[0] for views in views_NV]
        strong = text_augment.strong_views(originals, texts.train_rows, seed)
        views_NV = [(text, *views) for text, views in zip(originals, strong, strict=True)]
    num, views = len(views_NV), len(views_NV[0])
    flat = [text for views in views_NV for text in views] + texts.test
    say(f"encoding {len(flat):,} texts ({num:,} x {views} views, {len(texts.test):,} test): {name}")
    start = told = perf_counter()

    def on_batch(done: int) -> None:
        nonlocal told
        if perf_counter() - told > SAY_EVERY:
            told = perf_counter()
            left = (told - start) * (len(flat) / done - 1)
            say(f"encoded {done:,} of {len(flat):,} texts, {left:.0f} s to go")

    features_TF = encoding.encode(weights, flat, on_batch)
    say(f"encoded {len(flat):,} texts in {perf_counter() - start:.1f} s")
    return Features(
        features_TF[: num * views].reshape(num, views, -1),
        texts.train_labels,
        features_TF[num * views :],
        texts.test_labels,
    )


def _key(texts: Texts, weights: str, augmentation: str) -> str:
    content = json.dumps(
        [
            *(weights, encoding.RECIPE, augmentation),
            *(texts.train_NV, texts.train_labels.tolist(), texts.train_rows.tolist()),
            *(texts.test, texts.test_labels.tolist()),
        ]
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _read_cached(folder: Path, texts: Texts) -> Features:
    try:
        made = Features(*(map_npy(folder / f"{name}.npy") for name in Features._fields))
        train, test = made.train_NVF, made.test_NF
        same = (made.train_labels, texts.train_labels), (made.test_labels, texts.test_labels)
        whole = all(np.array_equal(cached, own) for cached, own in same)
        whole &= train.ndim == 3 and len(train) == len(texts.train_labels) and train.shape[1] > 1
        whole &= test.ndim == 2 and len(test) == len(texts.test_labels)
        if not whole or train.shape[-1] != test.shape[-1] or not train.shape[-1]:
            raise ValueError("they are not of these texts")
        for array in (train, test):
            if array.dtype != np.float32 or not np.isfinite(array).all():
                raise ValueError("they are not finite numbers in float32")
        return made
    except (ValueError, OSError) as error:
        raise UsageError(
            f"the cached features in {str(folder)!r} are damaged ({error}): remove that folder"
        ) from error
