"""A training step of the tensor engine beside torch's: the digits perceptron, and ResNet-18 in its CIFAR form."""

import itertools

import numpy as np
import torch
from sklearn.datasets import load_digits

import mlx_grpo_kit.tensor as T  # noqa: N812
from mlx_grpo_kit.tensor import nn, optim

F = torch.nn.functional


def parity(ours, theirs, tolerance):
    for (name, parameter), (_, reference) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        scale = float(reference.grad.abs().max())
        np.testing.assert_allclose(parameter.grad, reference.grad, rtol=0, atol=tolerance * scale, err_msg=name)


def training(ours, theirs, x, y, make_optimizer):
    """Two functions that do one step, here and in torch."""
    ours.load_state_dict(theirs.state_dict())
    optimizer, reference = make_optimizer(optim, ours.parameters()), make_optimizer(torch.optim, theirs.parameters())
    torch_x, torch_y = torch.tensor(x), torch.tensor(y)

    def step():
        optimizer.zero_grad()
        T.cross_entropy(ours(x), y).backward()
        optimizer.step()

    def torch_step():
        reference.zero_grad()
        F.cross_entropy(theirs(torch_x), torch_y).backward()
        reference.step()

    return step, torch_step


def test_digits_perceptron(race):
    x, y = load_digits(return_X_y=True)
    x, y = (x[:64] / 16).astype(np.float32), y[:64]
    sizes = [64, 128, 64, 10]
    ours = nn.Sequential(nn.Linear(*sizes[:2]), T.relu, nn.Linear(*sizes[1:3]), T.relu, nn.Linear(*sizes[2:]))
    theirs = torch.nn.Sequential(torch.nn.Linear(*sizes[:2]), torch.nn.ReLU(), torch.nn.Linear(*sizes[1:3]),
                                 torch.nn.ReLU(), torch.nn.Linear(*sizes[2:]))
    step, torch_step = training(ours, theirs, x, y, lambda lib, parameters: lib.Adam(parameters, lr=1e-3))
    step()
    torch_step()
    parity(ours, theirs, 1e-5)
    race(lambda: [step() for _ in range(20)], {"torch": lambda: [torch_step() for _ in range(20)]}, rounds=20,
         targets={"torch": 0.5}, rate=("steps/s", 20))


class Block(nn.Module):
    """Two convolutions and a shortcut around them (He et al., 2015)."""

    def __init__(self, channels, out_channels, stride):
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(out_channels)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out_channels, 1, stride, bias=False),
                                          nn.BatchNorm(out_channels))

    def forward(self, x):
        return T.relu(self.bn2(self.conv2(T.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class TorchBlock(torch.nn.Module):
    def __init__(self, channels, out_channels, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(out_channels)
        self.conv2 = torch.nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(out_channels)
        self.shortcut = torch.nn.Sequential()
        if stride > 1:
            self.shortcut = torch.nn.Sequential(torch.nn.Conv2d(channels, out_channels, 1, stride, bias=False),
                                                torch.nn.BatchNorm2d(out_channels))

    def forward(self, x):
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class GlobalMean(torch.nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def resnet18s():
    widths = [64, 64, 128, 256, 512]
    stages = [(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    blocks = [block for a, b, stride in stages for block in ((a, b, stride), (b, b, 1))]
    ours = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm(64), T.relu,
                         *[Block(*block) for block in blocks], lambda x: T.mean(x, axis=(2, 3)), nn.Linear(512, 10))
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.BatchNorm2d(64),
                                 torch.nn.ReLU(), *[TorchBlock(*block) for block in blocks], GlobalMean(),
                                 torch.nn.Linear(512, 10))
    return ours, theirs


def batch(count):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, count)


def test_resnet18_in_double_precision_is_torchs():
    torch.manual_seed(0)
    ours, theirs = resnet18s()
    ours, theirs = ours.astype(np.float64), theirs.double()
    assert sum(parameter.size for parameter in ours.parameters()) == 11_173_962
    x, y = batch(2)
    step, torch_step = training(ours, theirs, x.astype(np.float64), y,
                                lambda lib, parameters: lib.SGD(parameters, lr=0.01))
    step()
    torch_step()
    parity(ours, theirs, 1e-9)


def test_resnet18(race):
    torch.manual_seed(0)
    x, y = batch(8)
    step, torch_step = training(*resnet18s(), x, y, lambda lib, parameters: lib.SGD(parameters, lr=0.01, momentum=0.9))
    race(step, {"torch": torch_step}, rounds=3, targets={"torch": 0.25})
