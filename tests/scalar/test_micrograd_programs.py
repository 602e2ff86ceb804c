"""What people write for micrograd runs here with only the import changed, and gives torch's numbers."""

import random

import pytest
import torch

from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.scalar.nn import MLP, Layer, Neuron


def mixed(make):
    """A constant on either side, a value used many times, relu on a positive and on a negative number."""
    x = make(-3.0)
    doubled = x + 5 + 2 * x
    bent = doubled.relu() - x * doubled
    square = (bent * bent).relu()
    return square - bent * x + doubled, [x]


def augmented(make):
    """+=, -=, *=, powers, negation, division on both sides."""
    a, b = make(3.0), make(-1.5)
    total = a * b - b**2
    total += 2 * total + (-a)
    total -= (a + b).relu() / 4.0
    total *= 1 + (b - a).relu() + b
    ratio = (total - a) / (b * b)
    ratio += 6.0 / total**3
    return ratio, [a, b]


@pytest.mark.parametrize("program", [mixed, augmented])
def test_expression(program):
    ours, values = program(Value)
    theirs, tensors = program(lambda x: torch.tensor([x], dtype=torch.float64, requires_grad=True))
    ours.backward()
    theirs.backward()
    assert abs(ours.data - theirs.item()) < 1e-6
    for value, tensor in zip(values, tensors, strict=True):
        assert abs(value.grad - tensor.grad.item()) < 1e-6


def test_a_training_loop_in_micrograds_words():
    random.seed(1)
    model = MLP(2, [4, 1])
    inputs, labels = [[2.0, 3.0], [-1.0, 0.5], [0.5, 1.0], [-2.0, -1.0]], [1.0, -1.0, 1.0, -1.0]
    losses = []
    for _ in range(60):
        scores = list(map(model, [list(map(Value, row)) for row in inputs]))
        loss = sum((1 + -yi * scorei).relu() for yi, scorei in zip(labels, scores, strict=True)) * (1.0 / len(scores))
        loss = loss + 1e-4 * sum(p * p for p in model.parameters())
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad
        losses.append(loss.data)
    assert losses[-1] < 0.05 < 0.5 < losses[0]
    assert all((score.data > 0) == (label > 0) for score, label in zip(map(model, inputs), labels, strict=True))


def test_names_and_shapes():
    model = MLP(2, [16, 16, 1])
    assert len(model.parameters()) == 337
    assert isinstance(model.layers[0], Layer)
    assert isinstance(model.layers[0].neurons[0], Neuron)
    assert repr(MLP(1, [2, 1])) == ("MLP of [Layer of [ReLUNeuron(1), ReLUNeuron(1)], Layer of [LinearNeuron(2)]]")
    assert isinstance(model([1.0, -2.0]), Value)
    assert len(Layer(2, 3)([1, 2])) == 3
