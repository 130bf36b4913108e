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
    """To the nearest, ties away from zero: 13 of float32's 23 bits go; other types stay whole."""
    if x.dtype != torch.float32:  # a model is checked in float64 before it runs
        return x.clone()
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


_rounded: Any = _Round.apply
_with_rounded_gradient: Any = _RoundGradient.apply


class _Conv2d(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        out = F.conv2d(_rounded(input), _rounded(self.weight), None, self.stride, self.padding)
        return _with_rounded_gradient(out)


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return _with_rounded_gradient(F.linear(_rounded(input), _rounded(self.weight))) + self.bias


def cnn(num_classes: int) -> nn.Module:
    model = SmallCNN(num_classes)
    for layer in model.modules():
        if type(layer) is nn.Conv2d:
            layer.__class__ = _Conv2d
        elif type(layer) is nn.Linear:
            layer.__class__ = _Linear
    return model
