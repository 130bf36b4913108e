"""From an experiment to its data: labels on the host, inputs on the device."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fl2fast.data import agnews
from fl2fast.data.arrays import Arrays
from fl2fast.data.backends import choose, make_augment
from fl2fast.data.features import Features, text_features
from fl2fast.data.inputs import Images, Inputs, TextFeatures
from fl2fast.data.load import fit_images, load
from fl2fast.data.settings import TEXTS
from fl2fast.engine.batches import block_rows
from fl2fast.errors import UsageError
from fl2fast.experiment import Experiment

Say = Callable[[str], object]


class Dataset(Protocol):
    @property
    def train_labels(self) -> np.ndarray: ...

    @property
    def test_labels(self) -> np.ndarray: ...

    def shape(self, channels: int | None = None) -> tuple[int, ...]:
        """Of an input to a model that wants so many channels; None: as many as there are."""
        ...

    def make_inputs(
        self, experiment: Experiment, channels: int | None, like: Tensor, say: Say
    ) -> tuple[Experiment, Inputs]:
        """The inputs, and the experiment with `augment` resolved."""
        ...


def read_dataset(experiment: Experiment, data_dir: Path, say: Say) -> Dataset:
    e = experiment
    sizes = e.train_size, e.test_size, e.data_seed
    if e.dataset in TEXTS:
        texts = agnews.read(data_dir, *sizes)
        encode = partial(text_features, texts, e.encoder, e.data_seed, say)
        return Text(texts.train_labels, texts.test_labels, encode)
    arrays = load(e.dataset, data_dir, *sizes)
    return Pictures(arrays.train_labels, arrays.test_labels, arrays)


def num_classes(dataset: Dataset) -> int:
    return int(max(dataset.train_labels.max(), dataset.test_labels.max())) + 1


@dataclass(frozen=True)
class Pictures:
    train_labels: np.ndarray
    test_labels: np.ndarray
    arrays: Arrays

    def shape(self, channels: int | None = None) -> tuple[int, ...]:
        one = self.arrays.train_images[:1]
        return fit_images(one, channels or one.shape[1]).shape[1:]

    def make_inputs(
        self, experiment: Experiment, channels: int | None, like: Tensor, say: Say
    ) -> tuple[Experiment, Inputs]:
        e, channels = experiment, channels or self.shape()[0]
        train, test = (
            fit_images(images, channels)
            for images in (self.arrays.train_images, self.arrays.test_images)
        )
        shape = train.shape[1:]
        mean, std = (_per_channel(values, channels, like) for values in (e.mean, e.std))
        if e.augment == "auto":
            verdict = choose(shape, block_rows(e), like.device, e.strong_views)
            say(f"augment auto: {verdict}")
            e = replace(e, augment=verdict.choice)
        return e, Images(
            images=torch.tensor(train, device=like.device),  # a copy: the file may go away
            test_images=torch.tensor(test, device=like.device),
            augment=make_augment(
                e.augment,
                flip=e.flip,
                crop=e.crop,
                shape=shape,
                device=like.device,
                strong=e.strong_views,
            ),
            mean=mean,
            std=std,
        )


def _per_channel(values: tuple[float, ...], channels: int, like: Tensor) -> Tensor:
    """One value per channel; a grey model takes the mean of a colour row."""
    if len(values) != channels and 1 not in (len(values), channels):
        raise UsageError(
            f"mean and std have {len(values)} values, but the images have {channels} channels: "
            f"give {channels}"
        )
    tensor = torch.tensor(values, dtype=torch.float64)
    return (tensor if len(values) == channels else tensor.mean().expand(channels)).to(like)


@dataclass(frozen=True)
class Text:
    train_labels: np.ndarray
    test_labels: np.ndarray
    encode: Callable[[], Features]

    @cached_property
    def features(self) -> Features:
        """Made when they are asked for: what is wrong with labels is said before."""
        return self.encode()

    def shape(self, channels: int | None = None) -> tuple[int, ...]:
        if channels is not None:
            raise UsageError(
                f"the model takes images of {channels} channels, but the dataset is text whose "
                "features are ready: use --model linear"
            )
        return (self.features.train_NVF.shape[-1], 1, 1)

    def make_inputs(
        self, experiment: Experiment, channels: int | None, like: Tensor, say: Say
    ) -> tuple[Experiment, Inputs]:
        train, test = (
            torch.from_numpy(array).to(like)
            for array in (self.features.train_NVF, self.features.test_NF)
        )
        # views are looked up, not made: there is no backend to choose
        return replace(experiment, augment="torch"), TextFeatures(train, test)
