"""WideResNet (Zagoruyko & Komodakis, 2016) in the form (FL)^2 trains: three pre-activation stages.

A widening block applies its first norm and ReLU before the split, so that the 1x1 shortcut and the
convolution path see the same activated input; an equal-width block adds its raw input. ReLUs work
in place: a norm's gradient needs its input, not its output.
"""

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn


def _conv3x3(width_in: int, width_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width_in, width_out, 3, stride=stride, padding=1, bias=False)


class Block(nn.Module):
    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width_in)
        self.conv1 = _conv3x3(width_in, width_out, stride)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.conv2 = _conv3x3(width_out, width_out)
        if width_in != width_out:
            self.shortcut = nn.Conv2d(width_in, width_out, 1, stride=stride, bias=False)
        else:
            self.shortcut = None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x), inplace=True)
        residual = self.conv2(F.relu(self.bn2(self.conv1(active)), inplace=True))
        return residual + (x if self.shortcut is None else self.shortcut(active))


def _stage(num_blocks: int, width_in: int, width_out: int, stride: int) -> nn.Sequential:
    blocks: OrderedDict[str, nn.Module] = OrderedDict(block0=Block(width_in, width_out, stride))
    for b in range(1, num_blocks):
        blocks[f"block{b}"] = Block(width_out, width_out, 1)
    return nn.Sequential(blocks)


class WideResNet(nn.Module):
    """`depth` = 6n+4 layers, `widen` times 16, 32 and 64 channels, at any image side.

    >>> sum(p.numel() for p in WideResNet(28, 2, 10).parameters())
    1467610
    """

    def __init__(self, depth: int, widen: int, num_classes: int) -> None:
        super().__init__()
        num_blocks = (depth - 4) // 6
        self.stem = _conv3x3(3, 16)
        self.stage1 = _stage(num_blocks, 16, 16 * widen, 1)
        self.stage2 = _stage(num_blocks, 16 * widen, 32 * widen, 2)
        self.stage3 = _stage(num_blocks, 32 * widen, 64 * widen, 2)
        self.head_bn = nn.BatchNorm2d(64 * widen)
        self.head = nn.Linear(64 * widen, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.head(F.relu(self.head_bn(x), inplace=True).mean((-2, -1)))
