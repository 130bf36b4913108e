"""Architectures by name, and the lane axis that runs many learners of one at once."""

import math
import re
from collections.abc import Callable

import torch
from torch import nn

from fl2fast.errors import UsageError, brief
from fl2fast.models.cnn import SmallCNN
from fl2fast.models.linear import LinearClassifier
from fl2fast.models.wrn import WideResNet
from fl2fast.plugin import load_function

MODEL_NAMES = (
    "cnn, linear, wrn-DEPTH-WIDTH with DEPTH = 6n+4 (such as wrn-28-2), or path/to/file.py:factory"
)

MOST_DEPTH, MOST_WIDTH = 124, 16  # of a WideResNet: half a billion parameters

Factory = Callable[[int], nn.Module]


def find_model(name: str, input_shape: tuple[int, ...] = (3, 32, 32)) -> Factory:
    """A function from the number of classes to a freshly initialised module."""
    if ".py:" in name:
        return load_function("model", name)
    if name == "cnn":
        return SmallCNN
    if name == "linear":
        return lambda num_classes: LinearClassifier(math.prod(input_shape), num_classes)
    match = re.fullmatch(r"wrn-([0-9]{1,9})-([0-9]{1,9})", name)
    if match is None:
        raise UsageError(f"unknown model {brief(name)}: choose {MODEL_NAMES}")
    depth, widen = int(match[1]), int(match[2])
    if not 10 <= depth <= MOST_DEPTH or (depth - 4) % 6:
        raise UsageError(
            f"model {name!r} has depth {depth}, but a WideResNet's is 6n+4: 10, 16, 22, 28, ..., "
            f"{MOST_DEPTH}"
        )
    if not 1 <= widen <= MOST_WIDTH:
        raise UsageError(f"model {name!r} has width {widen}, but it must be from 1 to {MOST_WIDTH}")
    return lambda num_classes: WideResNet(depth, widen, num_classes)


def in_channels(module: nn.Module) -> int | None:
    """Image channels the module expects: those of its first convolution, if it has one."""
    convs = (m for m in module.modules() if isinstance(m, nn.Conv2d))
    return next((conv.in_channels for conv in convs), None)


def check_module(
    module: nn.Module, name: str, image_shape: tuple[int, ...], num_classes: int
) -> None:
    """Refuse a module that does not map images to one logit per class."""
    try:
        with torch.no_grad():
            shape = tuple(module.eval()(torch.zeros(2, *image_shape)).shape)
    except (Exception, SystemExit) as error:  # the user's own: whatever it raises is the news
        raise UsageError(f"model {name!r} fails on images of {image_shape}: {error}") from error
    if shape != (2, num_classes):
        raise UsageError(
            f"model {name!r} maps 2 images to a tensor of shape {shape}, but it must be "
            f"(2, {num_classes}): one logit per class"
        )
