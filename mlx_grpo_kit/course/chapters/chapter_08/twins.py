"""The kit's ResNet in torch's own layers, with the same names, for comparison."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch


class TorchBlock(torch.nn.Module):
    """relu(x + f(x)), as `mlx_grpo_kit.tensor.resnet.BasicBlock`."""

    def __init__(self, before: int, after: int, stride: int = 1):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = torch.nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn1, self.bn2 = torch.nn.BatchNorm2d(after), torch.nn.BatchNorm2d(after)
        self.downsample = torch.nn.Sequential()
        if stride != 1 or before != after:
            self.downsample = torch.nn.Sequential(
                torch.nn.Conv2d(before, after, 1, stride, bias=False), torch.nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        f = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(self.downsample(x) + f)


def torch_resnet(widths: Sequence[int], blocks: int, channels: int) -> torch.nn.Module:
    """ResNet(widths, blocks, in_channels=channels), in float64."""
    parts = {
        "conv1": torch.nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
        "bn1": torch.nn.BatchNorm2d(widths[0]),
        "relu": torch.nn.ReLU(),
    }
    for number, (before, after) in enumerate(zip([widths[0], *widths], widths, strict=False), start=1):
        first = TorchBlock(before, after, 1 if number == 1 else 2)
        parts[f"layer{number}"] = torch.nn.Sequential(first, *(TorchBlock(after, after) for _ in range(blocks - 1)))
    parts |= {"mean": torch.nn.AdaptiveAvgPool2d(1), "flat": torch.nn.Flatten(), "fc": torch.nn.Linear(widths[-1], 10)}
    return torch.nn.Sequential(OrderedDict(parts)).double()
