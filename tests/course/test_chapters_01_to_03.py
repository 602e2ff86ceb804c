"""The solutions of the first chapters against calculus and torch, not against themselves."""

import math

import pytest
import torch

from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_01 import exercises as chapter_01
from mlx_grpo_kit.course.chapters.chapter_02 import exercises as chapter_02
from mlx_grpo_kit.course.chapters.chapter_03 import exercises as chapter_03
from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.scalar.nn import MLP

F64 = torch.float64


def torch_gradients(function, *numbers):
    tensors = [torch.tensor(float(x), dtype=F64, requires_grad=True) for x in numbers]
    function(*tensors).backward()
    return [tensor.grad.item() for tensor in tensors]


def test_slopes():
    assert chapter_01.forward_slope(math.sin, 1.0, 1e-6) == pytest.approx(math.cos(1.0), abs=1e-6)
    assert chapter_01.central_slope(math.sin, 1.0, 1e-4) == pytest.approx(math.cos(1.0), abs=1e-8)
    assert chapter_01.partial(lambda a, b: math.sin(a) * b, [1.0, 3.0], 0, 1e-4) == pytest.approx(3 * math.cos(1.0))
    composed = chapter_01.chain_slope(math.cos, math.exp, math.exp, 0.3)  # f = sin
    assert composed == pytest.approx(torch_gradients(lambda x: torch.sin(torch.exp(x)), 0.3)[0])


def test_values_worked_out_by_hand():
    assert list(find("01.3").solution) == torch_gradients(lambda a, b, c: a * b + c, 2, -3, 10)
    assert list(find("02.1").solution) == torch_gradients(lambda a, b, c, f: (a * b + c) * f, 1, 4, -2, 3)
    assert find("03.2").solution == len(MLP(2, [16, 16, 1]).parameters())


@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
def test_local_derivatives(op):
    functions = {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div}
    expected = torch_gradients(functions[op], 1.7, -0.6)
    assert list(chapter_02.local_derivatives(op, 1.7, -0.6)) == pytest.approx(expected)


def test_backward_and_softplus():
    root = chapter_02.long_way_and_short_way()
    order = chapter_02.topological_order(root)
    chapter_02.backward(order)
    grads = {value.label: value.grad for value in order if value.label}
    expected = torch_gradients(lambda a, b: ((a * b).tanh() + a) * (a * b) + a, 2.0, 0.7)
    assert [grads["a"], grads["b"]] == pytest.approx(expected)

    x = Value(0.8)
    chapter_02.softplus(x).backward()
    assert x.grad == pytest.approx(torch_gradients(torch.nn.functional.softplus, 0.8)[0])


def test_neuron_loss_and_accuracy():
    w, b = [Value(0.5), Value(-2.0)], Value(3.0)
    chapter_03.neuron(w, [1.5, 0.25], b).backward()
    expected = torch_gradients(lambda w1, w2, b: (w1 * 1.5 + w2 * 0.25 + b).relu(), 0.5, -2.0, 3.0)
    assert [w[0].grad, w[1].grad, b.grad] == expected

    scores = [Value(0.3), Value(-2.0), Value(-0.5)]
    chapter_03.hinge(scores, [1, -1, 1]).backward()
    labels = torch.tensor([1, -1, 1])
    expected = torch_gradients(lambda *s: (1 - labels * torch.stack(s)).relu().mean(), 0.3, -2.0, -0.5)
    assert [score.grad for score in scores] == pytest.approx(expected)
    assert chapter_03.accuracy(scores, [1, -1, 1]) == pytest.approx(2 / 3)
