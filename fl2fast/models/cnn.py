"""A small batch-norm CNN, for runs that must answer in minutes on a CPU."""

import torch.nn.functional as F
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Three 3x3 convolutions of 16, 32 and 64 channels, each halving the image."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(64)
        self.head = nn.Linear(64 * 4 * 4, num_classes)
        for conv in (self.conv1, self.conv2, self.conv3):
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        if x.shape[-2:] != (4, 4):  # images of another side than 32
            x = F.adaptive_avg_pool2d(x, 4)
        return self.head(x.flatten(1))
