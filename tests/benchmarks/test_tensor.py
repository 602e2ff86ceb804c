"""A training step of the tensor engine beside torch's: the digits perceptron, and ResNet-18 in its CIFAR form."""

import numpy as np
import torch
from sklearn.datasets import load_digits

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.tensor import nn, optim
from mlx_grpo_kit.tensor.resnet import resnet18

F = torch.nn.functional
WIDTHS = [64, 128, 256, 512]  # of ResNet-18


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
    theirs = torch.nn.Sequential(
        torch.nn.Linear(*sizes[:2]),
        torch.nn.ReLU(),
        torch.nn.Linear(*sizes[1:3]),
        torch.nn.ReLU(),
        torch.nn.Linear(*sizes[2:]),
    )
    step, torch_step = training(ours, theirs, x, y, lambda lib, parameters: lib.Adam(parameters, lr=1e-3))
    step()
    torch_step()
    parity(ours, theirs, 1e-5)
    race(
        lambda: [step() for _ in range(20)],
        {"torch": lambda: [torch_step() for _ in range(20)]},
        rounds=20,
        targets={"torch": 0.5},
        rate=("steps/s", 20),
    )


def batch(count):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, count)


def test_resnet18_in_double_precision_is_torchs(torch_resnet):
    torch.manual_seed(0)
    ours, theirs = resnet18().astype(np.float64), torch_resnet(WIDTHS, blocks=2).double()
    assert sum(parameter.size for parameter in ours.parameters()) == 11_173_962
    x, y = batch(2)
    step, torch_step = training(
        ours, theirs, x.astype(np.float64), y, lambda lib, parameters: lib.SGD(parameters, lr=0.01)
    )
    step()
    torch_step()
    parity(ours, theirs, 1e-9)


def test_resnet18(race, torch_resnet):
    torch.manual_seed(0)
    x, y = batch(8)
    step, torch_step = training(
        resnet18(),
        torch_resnet(WIDTHS, blocks=2),
        x,
        y,
        lambda lib, parameters: lib.SGD(parameters, lr=0.01, momentum=0.9),
    )
    race(step, {"torch": torch_step}, rounds=3, targets={"torch": 0.25})
