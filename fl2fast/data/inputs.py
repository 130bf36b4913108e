"""What a model is fed: views of the training rows, clean rows, test rows; all as [N, C, H, W].

Images are one resident uint8 tensor that is augmented on the device. A text is a row of features
per view, made once; to a model it is an image of one pixel with a channel for every feature.

Shapes: N rows, D rows of the dataset, V views, F features, C, H, W of an input.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fl2fast.data.augment import normalise, ship
from fl2fast.data.views import Augment, ViewDraws


class Inputs(Protocol):
    @property
    def device(self) -> torch.device: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def views(self, row_N: Tensor, draws: ViewDraws, view: str) -> Tensor:
        """Views of training rows, by their draws; `clean` ones draw nothing."""
        ...

    def clean(self, row_N: Tensor) -> Tensor:
        """Training rows as they are."""
        ...

    def test(self, start: int, stop: int) -> Tensor: ...

    def noise(self, normal_N: Tensor) -> Tensor:
        """An input that shows nothing, from as many standard normal numbers as it has values."""
        ...


@dataclass(frozen=True)
class Images:
    images: Tensor  # uint8 [D, C, H, W], resident
    test_images: Tensor
    augment: Augment
    mean: Tensor  # of a channel, after division by 255
    std: Tensor

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    def views(self, row_N: Tensor, draws: ViewDraws, view: str) -> Tensor:
        if view == "clean":
            return self.clean(row_N)
        return self._normalised(self.augment(self.images[row_N], draws, view))

    def clean(self, row_N: Tensor) -> Tensor:
        return self._normalised(self.images[row_N])

    def test(self, start: int, stop: int) -> Tensor:
        return self._normalised(self.test_images[start:stop])

    def noise(self, normal_N: Tensor) -> Tensor:
        pixels = (125 + 125 * normal_N).clamp(0, 255).to(torch.uint8)
        return self._normalised(pixels.view(1, *self.shape))[0]

    def _normalised(self, images: Tensor) -> Tensor:
        return normalise(images, self.mean, self.std)


@dataclass(frozen=True)
class TextFeatures:
    train_DVF: Tensor  # view 0 is the text itself, the others are strong
    test_DF: Tensor

    @property
    def device(self) -> torch.device:
        return self.train_DVF.device

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.train_DVF.shape[-1], 1, 1)

    def views(self, row_N: Tensor, draws: ViewDraws, view: str) -> Tensor:
        if view != "strong":
            return self.clean(row_N)
        word_N, num_strong = draws.crop[:, 0], self.train_DVF.shape[1] - 1
        chosen_N = ship(1 + (word_N * num_strong >> 32), self.device)
        return self.train_DVF[row_N, chosen_N][..., None, None]

    def clean(self, row_N: Tensor) -> Tensor:
        return self.train_DVF[row_N, 0][..., None, None]

    def test(self, start: int, stop: int) -> Tensor:
        return self.test_DF[start:stop, :, None, None]

    def noise(self, normal_N: Tensor) -> Tensor:
        return normal_N.to(self.train_DVF).view(self.shape)
