"""Networks here and in torch, side by side through training; and what is said when one of them is broken."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.gradcheck import LockstepError, lockstep
from mlx_grpo_kit.tensor import nn
from mlx_grpo_kit.tensor.resnet import ResNet


def batches(count, size=32, image=False):
    x, y = load_digits(return_X_y=True)
    x = x / 16
    rng = np.random.default_rng(0)
    for _ in range(count):
        chosen = rng.integers(0, len(x), size)
        yield (x[chosen].reshape(-1, 1, 8, 8) if image else x[chosen]), y[chosen]


def mlps():
    torch.manual_seed(0)
    return (nn.Sequential(nn.Linear(64, 32), T.relu, nn.Linear(32, 32), T.tanh, nn.Linear(32, 10)),
            torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.Tanh(),
                                torch.nn.Linear(32, 10)).double())


def test_an_mlp_with_adam_for_200_steps():
    steps = list(lockstep(*mlps(), batches(200), optimizer="Adam", lr=3e-3, tolerance=1e-9))
    assert [step.step for step in steps] == list(range(1, 201))
    assert max(step.largest_difference for step in steps) <= 1e-9
    assert steps[-1].loss < 0.3 < steps[0].loss
    assert set(steps[0].metrics) == {"loss", "torch_loss", "largest_difference"}


def test_a_thin_resnet_for_20_steps(torch_resnet):
    torch.manual_seed(0)
    ours, theirs = (make([8, 16], blocks=2, in_channels=1) for make in (ResNet, torch_resnet))
    steps = list(lockstep(ours, theirs.double(), batches(20, size=16, image=True), optimizer="AdamW", lr=1e-3,
                          tolerance=1e-9))
    assert len(steps) == 20
    assert max(step.largest_difference for step in steps) <= 1e-9


def test_another_loss_and_optimizer():
    loss = (lambda y, t: T.mean((y - np.eye(10)[t]) ** 2),
            lambda y, t: torch.mean((y - torch.eye(10, dtype=torch.float64)[t]) ** 2))
    steps = lockstep(*mlps(), batches(3), optimizer="SGD", lr=0.1, momentum=0.9, loss=loss)
    assert len(list(steps)) == 3


@pytest.mark.parametrize(("rule", "message"), [
    ({"weight": lambda g, x: 1.01 * g.T @ x}, r"Step 1: the gradient of '4.weight' differs. Of 320 elements \d+ are"),
    ({"x": lambda g, weight: -g @ weight}, r"Step 1: the gradient of '2.bias' differs"),
    ({"bias": lambda g: 2 * g}, r"Step 1: the gradient of '4.bias' differs. Of 10 elements"),
])
def test_a_broken_rule_is_named_where_it_came_in(rule, message):
    with T.replaced_gradient("linear", **rule), pytest.raises(LockstepError, match=message):
        list(lockstep(*mlps(), batches(3), lr=1e-3))


def test_a_broken_forward_and_a_broken_optimizer():
    ours, theirs = mlps()
    theirs[1] = torch.nn.LeakyReLU()
    with pytest.raises(LockstepError, match=r"Step 1: the loss differs by more than 1e-09: \d\.\d+ here, \d\.\d+ in"):
        list(lockstep(ours, theirs, batches(3), lr=1e-3))

    class Sloppy(T.optim.Adam):
        def update(self, number, data, grad):
            return super().update(number, data, grad) * (1.001 if self.steps[number] == 2 else 1)

    original = T.optim.Adam
    T.optim.Adam = Sloppy
    try:
        with pytest.raises(LockstepError, match=r"Step 2: '0.weight' after the step differs"):
            list(lockstep(*mlps(), batches(3), lr=1e-3))
    finally:
        T.optim.Adam = original
