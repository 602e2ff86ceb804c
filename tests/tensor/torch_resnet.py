"""The kit's ResNet in torch, with the same names."""

import itertools

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = nn.Identity()
        if stride > 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        return functional.relu(self.downsample(x) + self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x))))))


class TorchResNet(nn.Module):
    def __init__(self, widths, blocks, in_channels=3, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.layers = []
        for number, (before, width) in enumerate(itertools.pairwise([widths[0], *widths]), start=1):
            stage = [Block(before, width, 1 if number == 1 else 2)]
            stage += [Block(width, width, 1) for _ in range(blocks - 1)]
            self.layers.append(f"layer{number}")
            self.add_module(self.layers[-1], nn.Sequential(*stage))
        self.fc = nn.Linear(widths[-1], num_classes)

    def forward(self, x):
        x = functional.relu(self.bn1(self.conv1(x)))
        for name in self.layers:
            x = getattr(self, name)(x)
        return self.fc(torch.mean(x, dim=(2, 3)))
