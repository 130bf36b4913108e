"""The one network that every program trains; no batch norm, so that averaging weights is all."""

from torch import nn


def small_cnn(num_classes: int) -> nn.Module:
    """Three 3x3 convolutions of 8, 16 and 32 channels, each halving a 32-pixel image."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, num_classes),
    )
