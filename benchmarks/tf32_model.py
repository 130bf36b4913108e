"""The quick preset's CNN as a GPU computes it in TF32: products of numbers with 10-bit mantissas.

Inputs and weights of every convolution and linear layer are rounded, and so are the gradients that
come back to them; sums stay in float32.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl2fast.models.cnn import SmallCNN


def round_to_tf32(x: Tensor) -> Tensor:
    """To the nearest, ties away from zero: 13 of float32's 23 bits go."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class _Round(torch.autograd.Function):
    """Rounds on the way in; its gradient is the rounded product's, unchanged."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return round_to_tf32(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


class _RoundGradient(_Round):
    """Rounds on the way back only."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return round_to_tf32(grad.contiguous())


class _Conv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        x, weight = _Round.apply(x), _Round.apply(self.weight)  # type: ignore[misc]
        return _RoundGradient.apply(  # type: ignore[return-value]
            F.conv2d(x, weight, None, self.stride, self.padding)
        )


class _Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        x, weight = _Round.apply(x), _Round.apply(self.weight)  # type: ignore[misc]
        return _RoundGradient.apply(F.linear(x, weight)) + self.bias  # type: ignore[operator]


def cnn(num_classes: int) -> nn.Module:
    model = SmallCNN(num_classes)
    for layer in model.modules():
        if type(layer) is nn.Conv2d:
            layer.__class__ = _Conv2d
        elif type(layer) is nn.Linear:
            layer.__class__ = _Linear
    return model
