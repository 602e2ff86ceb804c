"""Optimizers against torch.optim, step by step in float64."""

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.tensor import optim

OPTIMIZERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("Adam", {}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.3}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_thirty_steps_match_torch(name, options):
    rng = np.random.default_rng(0)
    start = [rng.normal(size=(3, 4)), rng.normal(size=4), rng.normal(size=2)]
    ours = [T.Tensor(array, requires_grad=True) for array in start]
    theirs = [torch.tensor(array, requires_grad=True) for array in start]
    optimizer = getattr(optim, name)(ours, **options)
    reference = getattr(torch.optim, name)(theirs, **options)
    for step in range(30):
        x = rng.normal(size=(5, 3))
        optimizer.zero_grad()
        reference.zero_grad()
        (T.tanh(x @ ours[0] + ours[1]) ** 2).sum().backward()
        (torch.tanh(torch.tensor(x) @ theirs[0] + theirs[1]) ** 2).sum().backward()
        if step % 3 == 0:  # the third parameter has a gradient only in some steps
            (ours[2] * ours[2]).sum().backward()
            (theirs[2] * theirs[2]).sum().backward()
        optimizer.step()
        reference.step()
        for parameter, expected in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(parameter.data, expected.detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_large_gradient_in_float16_moves_a_parameter_as_in_torch(name):
    ours, theirs = T.Tensor(np.ones(2, np.float16), requires_grad=True), torch.ones(2, dtype=torch.float16)
    theirs.requires_grad_()
    optimizer, reference = getattr(optim, name)([ours], lr=0.01), getattr(torch.optim, name)([theirs], lr=0.01)
    for _ in range(3):
        ours.grad, theirs.grad = np.array([300, 2], np.float16), torch.tensor([300, 2], dtype=torch.float16)
        optimizer.step()
        reference.step()
    assert ours.data.dtype == np.float16
    np.testing.assert_allclose(ours.data, theirs.detach(), atol=2e-3)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_parameter_of_a_single_number(name):
    ours, theirs = T.Tensor(0.5, requires_grad=True), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    optimizers = getattr(optim, name)([ours], lr=0.1), getattr(torch.optim, name)([theirs], lr=0.1)
    for _ in range(3):
        (ours * ours).backward()
        (theirs * theirs).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert ours.data.shape == ()
    assert abs(ours.item() - theirs.item()) < 1e-15


def test_a_step_between_forward_and_backward_raises_an_error():
    w = T.Tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    loss = (w * w).sum()
    optim.SGD([w], lr=0.1).step()
    with pytest.raises(T.AutogradError, match="modified by an inplace operation"):
        loss.backward()


def weight():
    return T.Tensor([1.0], requires_grad=True)


def a_step_with_a_gradient_of_another_shape():
    weights = [weight(), weight()]
    weights[1].grad = np.ones(3)
    optim.SGD(weights, lr=0.1).step()


@pytest.mark.parametrize(
    ("broken", "kind", "message"),
    [
        (lambda: optim.SGD([], 0.1), ValueError, "empty parameter list"),
        (lambda: optim.Adam([T.Tensor([1.0])]), TypeError, "can't optimize Tensor.*require a gradient"),
        (lambda: optim.AdamW([T.Tensor([1.0], requires_grad=True)], lr=-1), ValueError, "Invalid learning rate: -1"),
        (lambda: optim.SGD([weight()], lr=float("nan")), ValueError, "Invalid learning rate: nan"),
        (lambda: optim.SGD([weight()], lr="0.1"), ValueError, "Invalid learning rate: '0.1'"),
        (lambda: optim.SGD([weight()], lr=0.1, momentum=-1), ValueError, "momentum value: -1; expected 0 or more"),
        (lambda: optim.Adam([weight()], betas=(0.9, 1.0)), ValueError, r"Invalid betas: \(0.9, 1.0\); expected two"),
        (lambda: optim.Adam([weight()], betas=0.9), ValueError, "Invalid betas: 0.9"),
        (lambda: optim.Adam([weight()], eps=-1e-8), ValueError, "Invalid eps value"),
        (lambda: optim.AdamW([weight()], weight_decay=-0.1), ValueError, "Invalid weight_decay value: -0.1"),
        (a_step_with_a_gradient_of_another_shape, ValueError, r"1 has shape \(1,\) and a gradient of shape \(3,\)"),
    ],
)
def test_errors(broken, kind, message):
    with pytest.raises(kind, match=message):
        broken()


def test_a_parameter_that_appears_twice_is_named():
    w = T.Tensor([1.0], requires_grad=True)
    with pytest.raises(ValueError, match="appear more than once and would be updated twice"):
        optim.SGD([w, w], lr=0.1)
