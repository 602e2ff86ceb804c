"""What people write with micrograd's Values runs here with only the import changed, and gives torch's numbers."""

import math
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


def trace(root):
    """micrograd's own: the nodes and edges that its notebook draws."""
    nodes, edges = set(), set()

    def build(v):
        if v not in nodes:
            nodes.add(v)
            for child in v._prev:
                edges.add((child, v))
                build(child)

    build(root)
    return nodes, edges


def test_the_graph_as_micrograds_notebook_draws_it():
    a, b = Value(2.0), Value(-3.0)
    c = a * b
    d = c + c
    nodes, edges = trace((d + a).relu())
    assert len(nodes) == 6
    assert sorted(node._op for node in nodes) == ["", "", "*", "+", "+", "relu"]
    assert {(a, c), (b, c), (c, d)} < edges


def test_gradients_by_hand_one_backward_at_a_time():
    a, b = Value(2.0), Value(-3.0)
    c = a * b
    d = c.tanh()
    d.grad = 1.0
    d._backward()
    c._backward()
    by_hand = a.grad, b.grad
    a.grad = b.grad = 0.0
    (a * b).tanh().backward()
    assert (a.grad, b.grad) == by_hand
    a._backward()  # a leaf has nobody to hand on to


def test_an_operation_of_ones_own():
    def micrograd_tanh(x):
        return Value(math.tanh(x.data), (x,), "tanh")

    with pytest.raises(TypeError, match=r'label is \(Value.*expected text, .*op="tanh", parents=\(x,\), derivatives='):
        micrograd_tanh(Value(0.5))
    with pytest.raises(TypeError, match="expected text"):
        Value(0.5, (Value(1.0),))
    with pytest.raises(AttributeError, match="Give its derivatives"):
        Value(0.5)._backward = lambda: None

    x = Value(0.5)
    y = 2 * Value(x.data**3, op="cube", parents=(x,), derivatives=(3 * x.data**2,))
    y.backward()
    assert x.grad == 1.5


@pytest.mark.parametrize("derivatives", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_a_derivative_for_each_parent(derivatives):
    parents = Value(1.0), Value(2.0)
    with pytest.raises(ValueError, match=rf"op='f'\): 2 parents and {len(derivatives)} derivatives"):
        Value(3.0, op="f", parents=parents, derivatives=derivatives)
    with pytest.raises(ValueError, match="0 parents and 1 derivatives"):
        Value(3.0, op="f", derivatives=(1.0,))
