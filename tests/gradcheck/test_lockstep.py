"""Networks here and in torch, side by side through training; and what is said when one of them is broken."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.gradcheck import LockstepError, lockstep
from mlx_grpo_kit.tensor import nn
from mlx_grpo_kit.tensor.resnet import ResNet
from tests.tensor.torch_resnet import TorchResNet


def batches(count, size=32, image=False):
    x, y = load_digits(return_X_y=True)
    x = x / 16
    rng = np.random.default_rng(0)
    for _ in range(count):
        chosen = rng.integers(0, len(x), size)
        yield (x[chosen].reshape(-1, 1, 8, 8) if image else x[chosen]), y[chosen]


def mlps():
    torch.manual_seed(0)
    return (
        nn.Sequential(nn.Linear(64, 32), T.relu, nn.Linear(32, 32), T.tanh, nn.Linear(32, 10)),
        torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)
        ).double(),
    )


def test_an_mlp_with_adam_for_200_steps():
    steps = list(lockstep(*mlps(), batches(200), optimizer="Adam", lr=3e-3, tolerance=1e-9))
    assert [step.step for step in steps] == list(range(1, 201))
    assert max(step.largest_difference for step in steps) <= 1e-9
    assert steps[-1].loss < 0.3 < steps[0].loss
    assert set(steps[0].metrics) == {"loss", "torch_loss", "largest_difference"}


def test_a_thin_resnet_for_20_steps():
    torch.manual_seed(0)
    ours, theirs = (make([8, 16], blocks=2, in_channels=1) for make in (ResNet, TorchResNet))
    steps = list(
        lockstep(ours, theirs.double(), batches(20, size=16, image=True), optimizer="AdamW", lr=1e-3, tolerance=1e-9)
    )
    assert len(steps) == 20
    assert max(step.largest_difference for step in steps) <= 1e-9


def cnns(dtype=torch.float64):
    torch.manual_seed(0)
    ours = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm(8), T.relu, nn.Conv2d(8, 8, 3), nn.BatchNorm(8),
        lambda x: x.reshape(len(x), -1), nn.Linear(128, 10),
    )  # fmt: skip
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3),
        torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(128, 10),
    )  # fmt: skip
    return ours, theirs.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "lr"),
    [(torch.float64, 1e-9, 1e-1), (torch.float64, 1e-9, 1e-3), (torch.float32, 1e-4, 1e-3)],
)
def test_a_bias_before_batch_norm_has_a_gradient_of_rounding_that_adam_amplifies(dtype, tolerance, lr):
    ours, theirs = cnns(dtype)
    steps = list(lockstep(ours, theirs, batches(10, image=True), optimizer="Adam", lr=lr, tolerance=tolerance))
    assert len(steps) == 10
    assert np.abs(ours.parameters()[1].grad).max() < 1e-6 < np.abs(ours.parameters()[0].grad).max()


def test_a_small_gradient_that_is_no_rounding_is_our_own():
    """Its error is within the tolerance, and Adam shows it."""
    x, y = np.ones((4, 1)), np.array([[1.0], [2.0], [3.0], [4.0]])
    loss = tuple(lambda outputs, targets, mean=mean: mean((outputs - targets) ** 2) for mean in (T.mean, torch.mean))
    torch.manual_seed(0)
    ours, theirs = nn.Linear(1, 1), torch.nn.Linear(1, 1).double()
    small = T.replaced_gradient("linear", weight=lambda g, x: 1e-10 * g.T @ x, bias=lambda g: g)
    theirs.weight.register_hook(lambda grad: 1.5e-10 * grad)
    with small, pytest.raises(LockstepError, match="Step 1: 'weight' after the step differs"):
        list(lockstep(ours, theirs, [(x, y)], loss=loss, lr=0.1))


def test_another_loss_and_optimizer():
    loss = (
        lambda y, t: T.mean((y - np.eye(10)[t]) ** 2),
        lambda y, t: torch.mean((y - torch.eye(10, dtype=torch.float64)[t]) ** 2),
    )
    steps = lockstep(*mlps(), batches(3), optimizer="SGD", lr=0.1, momentum=0.9, loss=loss)
    assert len(list(steps)) == 3


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"weight": lambda g, x: 1.01 * g.T @ x}, r"Step 1: the gradient of '4.weight' differs. Of 320 elements \d+"),
        ({"x": lambda g, weight: -g @ weight}, r"Step 1: the gradient of '2.bias' differs"),
        ({"bias": lambda g: 2 * g}, r"Step 1: the gradient of '4.bias' differs. Of 10 elements"),
    ],
)
def test_a_broken_rule_is_named_where_it_came_in(rule, message):
    with T.replaced_gradient("linear", **rule), pytest.raises(LockstepError, match=message):
        list(lockstep(*mlps(), batches(3), lr=1e-3))


def test_a_broken_forward_and_a_broken_optimizer():
    ours, theirs = mlps()
    theirs[1] = torch.nn.LeakyReLU()
    with pytest.raises(LockstepError, match=r"Step 1: the loss differs by more than 1e-09 of 2.3: \d\.\d+ here, \d"):
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


def linear(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Linear(4, 3), torch.nn.Linear(4, 3).to(dtype)


X, Y = np.random.default_rng(0).normal(size=(8, 4)), np.arange(8) % 3
CROSS = torch.nn.functional.cross_entropy


@pytest.mark.parametrize("scale", [1e6, 1e12])
def test_the_tolerance_is_relative_where_numbers_are_large(scale):
    loss = (lambda y, t: T.mean(y * y * 3.0) / 3.0, lambda y, t: torch.mean(y * y))  # equal but for rounding
    rows = [(scale * X, np.zeros(8))] * 3
    assert len(list(lockstep(*linear(), rows, optimizer="SGD", loss=loss, lr=1e-30))) == 3
    broken = T.replaced_gradient("linear", weight=lambda g, x: (1 + 1e-7) * g.T @ x)
    words = r"the gradient of 'weight' differs. Of 12 elements .* are off by more than \d"
    with broken, pytest.raises(LockstepError, match=words):
        list(lockstep(*linear(), rows, optimizer="SGD", loss=loss, lr=1e-30))


@pytest.mark.parametrize(
    ("kind", "message", "changes"),
    [
        (ValueError, "optimizer is Adamm; expected the name of one", {"optimizer": "Adamm"}),
        (ValueError, "optimizer is RMSprop; expected", {"optimizer": "RMSprop"}),
        (ValueError, "optimizer is <class", {"optimizer": torch.optim.Adam}),
        (ValueError, "tolerance is nan; expected 0 or more", {"tolerance": float("nan")}),
        (ValueError, "tolerance is -1; expected 0 or more", {"tolerance": -1}),
        (ValueError, "batches is empty, so nothing was compared", {"batches": []}),
        (
            ValueError,
            r"Step 1: the batch is of type ndarray; expected a pair .* batches is \[\(x, targets\)\]",
            {"batches": (X, Y)},
        ),
        (ValueError, "Step 1: the batch is 3 things", {"batches": [(X, Y, Y)]}),
        (TypeError, "cannot take x of dtype uint8 .* x / 255", {"batches": [(X.astype(np.uint8), Y)]}),
        (TypeError, "loss is <function .* expected a pair", {"loss": T.cross_entropy}),
        (TypeError, r"first of the two .* returned a Tensor of shape \(8, 3\)", {"loss": (lambda y, t: y, CROSS)}),
        (TypeError, "second .* returned a float .* torch Tensor", {"loss": (T.cross_entropy, lambda y, t: 1.0)}),
        (
            ValueError,
            r"size mismatch for weight: state_dict has shape \(5, 4\)",
            {"torch_model": torch.nn.Linear(4, 5).double()},
        ),
        (ValueError, "missing .* unexpected", {"torch_model": torch.nn.Sequential(torch.nn.Linear(4, 3)).double()}),
        (TypeError, "torch_model is a mlx_grpo_kit.*; expected a torch.nn.Module", {"torch_model": nn.Linear(4, 3)}),
        (TypeError, "model is a builtins.NoneType; expected a Module of mlx_grpo_kit", {"model": None}),
        (ValueError, "torch_model has no parameters", {"torch_model": torch.nn.ReLU()}),
        (ValueError, "torch_model has parameters in bfloat16; expected", {"torch_model": linear(torch.bfloat16)[1]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_that_do_not_fit(kind, message, changes):
    model, torch_model = linear()
    arguments = {"model": model, "torch_model": torch_model, "batches": [(X, Y)], "lr": 0.1} | changes
    with pytest.raises(kind, match=message):
        list(lockstep(**arguments))


def test_what_is_frozen_in_one_is_frozen_in_the_other():
    model, torch_model = linear()
    torch_model.bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"\['bias'\] would be trained in one of the two only"):
        list(lockstep(model, torch_model, [(X, Y)], lr=0.1))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_nan_that_both_have_is_no_difference_and_no_success(wrong):
    x = X.copy()
    x[2, 1] = wrong
    with pytest.raises(LockstepError, match=r"Step 2: the loss is nan or inf, here and in torch alike"):
        list(lockstep(*linear(), [(X, Y), (x, Y)], lr=0.1))


def test_float32_held_to_float64s_tolerance():
    with pytest.raises(LockstepError, match=r"may be rounding: float32 carries 7 digits\. .* larger tolerance"):
        list(lockstep(*linear(torch.float32), [(X, Y)] * 20, lr=0.1))
    assert len(list(lockstep(*linear(torch.float32), [(X, Y)] * 20, lr=0.1, tolerance=1e-4))) == 20


def test_a_real_difference_in_float32_is_not_called_rounding():
    with (
        T.replaced_gradient("linear", bias=lambda g: 1.01 * g.sum(axis=0)),
        pytest.raises(LockstepError, match="the gradient of 'bias' differs") as error,
    ):
        list(lockstep(*linear(torch.float32), [(X, Y)], lr=0.1, tolerance=1e-5))
    assert "rounding" not in str(error.value)


@pytest.mark.parametrize(
    "targets",
    [Y.astype(np.int32), Y.astype(np.uint8), Y.tolist(), torch.tensor(Y)],
    ids=["int32", "uint8", "list", "torch"],
)
def test_whole_numbers_of_any_kind_are_targets(targets):
    for x in (X, X.astype(np.float32), X.tolist(), T.Tensor(X)):
        assert len(list(lockstep(*linear(), [(x, targets)] * 2, lr=0.1))) == 2
