"""ResNet for small images: blocks of convolutions that add to their input (He et al., 2015, section 4.2).

    model = resnet18()                       # 11,173,962 parameters
    logits = model(images)                   # [N, 3, 32, 32] -> [N, 10]
    thin = ResNet([8, 16], blocks=1, in_channels=1)

Parameters are named as in torchvision ("layer2.0.downsample.0.weight").
"""

from __future__ import annotations

from collections.abc import Sequence

from mlx_grpo_kit.tensor import nn
from mlx_grpo_kit.tensor.rules.elementwise import relu
from mlx_grpo_kit.tensor.rules.reductions import mean
from mlx_grpo_kit.tensor.tensor import Tensor


class BasicBlock(nn.Module):
    """relu(x + f(x)), where f is two 3x3 convolutions, each with its batch norm.

    x [N, in_channels, H, W] -> [N, out_channels, H', W'] with H' = ceil(H / stride). Where the shape changes, x passes
    through a 1x1 convolution, `downsample`, before it is added.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1):
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(out_channels)
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return relu(shortcut + self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """Images [N, in_channels, H, W] -> logits [N, num_classes].

    After a 3x3 convolution, there are `blocks` basic blocks for each of `widths`; every width after the first halves
    height and width of the image. At the end, a linear layer takes each channel's mean. There is no max pooling at the
    start, because the images are small.

    Raises:
        ValueError: `widths` is empty or not a sequence, or `blocks` is not a whole number of 1 or more.
    """

    def __init__(self, widths: Sequence[int], blocks: int, in_channels: int = 3, num_classes: int = 10):
        if not isinstance(widths, Sequence) or not widths:
            raise ValueError(
                f"ResNet: widths is {widths!r}; expected the channels of each stage, such as [16, 32, 64]."
            )
        if not isinstance(blocks, int) or blocks < 1:
            raise ValueError(f"ResNet: blocks is {blocks!r}; expected a whole number of blocks per stage, 1 or more.")
        self.conv1 = nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(widths[0])
        self.stages = len(widths)
        before = widths[0]
        for number, width in enumerate(widths, start=1):
            first = BasicBlock(before, width, stride=1 if number == 1 else 2)
            rest = [BasicBlock(width, width) for _ in range(blocks - 1)]
            setattr(self, f"layer{number}", nn.Sequential(first, *rest))
            before = width
        self.fc = nn.Linear(before, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)))
        for number in range(1, self.stages + 1):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(mean(x, axis=(2, 3)))


def resnet18(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """Make a ResNet-18 in the form used for CIFAR's 32x32 images."""
    return ResNet([64, 128, 256, 512], blocks=2, in_channels=in_channels, num_classes=num_classes)
