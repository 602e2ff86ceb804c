"""The perceptron against torch.nn, parameter by parameter, through a training run; the messages."""

import random

import pytest
import torch
from sklearn.datasets import make_moons

from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.scalar.nn import MLP, Layer, Module, Neuron, sgd_step

F64 = torch.float64


def torch_twin(model):
    """torch.nn.Sequential with the same weights, in float64."""
    layers = []
    for index, layer in enumerate(model.layers):
        linear = torch.nn.Linear(len(layer.neurons[0].w), len(layer.neurons), dtype=F64)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor([[w.data for w in neuron.w] for neuron in layer.neurons], dtype=F64))
            linear.bias.copy_(torch.tensor([neuron.b.data for neuron in layer.neurons], dtype=F64))
        layers += [linear] if index == len(model.layers) - 1 else [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def twin_parameters(twin, what):
    """All numbers of the twin's parameters, or of their gradients, in our order: a neuron's weights, then its bias."""
    numbers = []
    for linear in twin[::2]:
        for weights, bias in zip(what(linear.weight), what(linear.bias), strict=True):
            numbers += [*weights.tolist(), bias.item()]
    return numbers


def test_ten_steps_of_the_hinge_loss_on_moons_beside_torch():
    random.seed(3)
    inputs, labels = make_moons(n_samples=24, noise=0.1, random_state=0)
    labels = 2 * labels - 1
    model = MLP(2, [8, 8, 1])
    twin = torch_twin(model)
    for _ in range(10):
        margins = [label * model(x) for x, label in zip(inputs, labels.tolist(), strict=True)]
        loss = sum((1 - margin).relu() for margin in margins) / len(margins)
        reference = (1 - torch.tensor(labels) * twin(torch.tensor(inputs))[:, 0]).relu().mean()
        model.zero_grad()
        loss.backward()
        twin.zero_grad()
        reference.backward()
        assert loss.data == pytest.approx(reference.item(), rel=1e-10)
        expected = twin_parameters(twin, lambda p: p.grad)
        assert [p.grad for p in model.parameters()] == pytest.approx(expected, rel=1e-10, abs=1e-10)
        sgd_step(model.parameters(), 0.5)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter -= 0.5 * parameter.grad
    expected = twin_parameters(twin, lambda p: p.data)
    assert [p.data for p in model.parameters()] == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_zero_grad_forgets():
    model = MLP(2, [3, 1])
    model([1.0, 2.0]).backward()
    assert any(p.grad for p in model.parameters())
    model.zero_grad()
    assert not any(p.grad for p in model.parameters())


def test_seeded_weights_are_repeatable():
    weights = []
    for _ in range(2):
        random.seed(7)
        weights.append([p.data for p in MLP(2, [3, 1]).parameters()])
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: Neuron(2)([1.0]), r"ReLUNeuron\(2\) has 2 weights and got 1 inputs"),
        (lambda: MLP(2, [3, 1])([1.0, 2.0, 3.0]), "has 2 weights and got 3 inputs"),
    ],
)
def test_errors_say_what_was_expected(broken, message):
    with pytest.raises(ValueError, match=message):
        broken()


def test_a_module_without_parameters_says_what_to_write():
    with pytest.raises(NotImplementedError, match=r"Module without a parameters\(\) method"):
        Module().zero_grad()


def test_a_layer_of_one_returns_the_value_itself():
    assert isinstance(Layer(2, 1)([1.0, 2.0]), Value)
