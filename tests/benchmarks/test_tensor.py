"""A training step of the tensor engine beside torch's: the digits perceptron, and ResNet-18 in its CIFAR form."""

import numpy as np
import torch
from sklearn.datasets import load_digits

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.tensor import nn, optim
from mlx_grpo_kit.tensor.resnet import resnet18
from tests.benchmarks.contest import Contestant
from tests.tensor.torch_resnet import TorchResNet

F = torch.nn.functional
WIDTHS = [64, 128, 256, 512]  # of ResNet-18


def perceptron(nn, relu):
    sizes = [64, 128, 64, 10]
    return nn.Sequential(nn.Linear(*sizes[:2]), relu, nn.Linear(*sizes[1:3]), relu, nn.Linear(*sizes[2:]))


def digits():
    x, y = load_digits(return_X_y=True)
    return (x[:64] / 16).astype(np.float32), y[:64]


def images(count):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, count)


def twins(work):
    """(model of the engine, torch's with the same weights, x, y, a function from optimizers and parameters to one)"""
    torch.manual_seed(0)
    if work == "digits":
        ours, theirs, batch = perceptron(nn, T.relu), perceptron(torch.nn, torch.nn.ReLU()), digits()
        make_optimizer = lambda library, parameters: library.Adam(parameters, lr=1e-3)  # noqa: E731
    else:
        ours, theirs, batch = resnet18(), TorchResNet(WIDTHS, blocks=2), images(8)
        make_optimizer = lambda library, parameters: library.SGD(parameters, lr=0.01, momentum=0.9)  # noqa: E731
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, *batch, make_optimizer


def gradients(model):
    # np.array(tensor) would warn: torch's tensors know no keyword `copy` yet.
    return {name: np.asarray(each.grad).copy() for name, each in model.named_parameters()}


class Trainer:
    """A turn is `steps` steps; the evidence is every gradient of the very first step, by name."""

    grads = None

    def turn(self):
        for _ in range(self.steps):
            self.step()
            if self.grads is None:
                self.grads = gradients(self.model)

    def evidence(self):
        return self.grads


class Kit(Trainer):
    def __init__(self, work, steps):
        self.model, _, x, y, make_optimizer = twins(work)
        self.steps, optimizer = steps, make_optimizer(optim, self.model.parameters())

        def step():
            optimizer.zero_grad()
            T.cross_entropy(self.model(x), y).backward()
            optimizer.step()

        self.step = step


class Torch(Trainer):
    def __init__(self, work, steps):
        _, self.model, x, y, make_optimizer = twins(work)
        self.steps, optimizer = steps, make_optimizer(torch.optim, self.model.parameters())
        x, y = torch.tensor(x), torch.tensor(y)

        def step():
            optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            optimizer.step()

        self.step = step


def parity(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, grad in ours.items():
        scale = float(np.abs(theirs[name]).max())
        np.testing.assert_allclose(grad, theirs[name], rtol=0, atol=tolerance * scale, err_msg=name)


def race(bench, work, steps, **options):
    work = {"work": work, "steps": steps}
    results = bench({"the kit": Contestant(Kit, work), "torch": Contestant(Torch, work)}, **options)
    return [result.evidence[0] for result in results.values()]


def test_digits_perceptron(bench):
    grads = race(bench, "digits", 20, rounds=20, targets={"torch": 1.0}, rate=("steps/s", 20))
    parity(*grads, 1e-5)


def test_resnet18(bench):
    ours, theirs = race(bench, "resnet18", 1, rounds=10, targets={"torch": 1.0})
    assert ours.keys() == theirs.keys()


def test_resnet18_in_double_precision_is_torchs():
    ours, theirs, x, y, _ = twins("resnet18")
    ours, theirs, x, y = ours.astype(np.float64), theirs.double(), x[:2].astype(np.float64), y[:2]
    assert sum(parameter.size for parameter in ours.parameters()) == 11_173_962
    T.cross_entropy(ours(x), y).backward()
    F.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y)).backward()
    parity(gradients(ours), gradients(theirs), 1e-9)
