"""The solutions of the first chapters against calculus and torch, not against themselves."""

import functools
import math
import random

import pytest
import torch
from sklearn.datasets import make_moons

from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_01 import exercises as chapter_01
from mlx_grpo_kit.course.chapters.chapter_02 import exercises as chapter_02
from mlx_grpo_kit.course.chapters.chapter_03 import exercises as chapter_03
from mlx_grpo_kit.scalar import Value, nn

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
    assert find("03.5").solution == len(nn.MLP(2, [16, 16, 1]).parameters())


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


def test_the_network_is_the_kits_network():
    inputs = [1.5, -0.25]
    outputs = []
    for make in (chapter_03.MLP, nn.MLP):
        random.seed(2)
        model = make(2, [5, 4, 1])
        score = model(inputs)
        score.backward()
        outputs.append([score.data, *(p.data for p in model.parameters()), *(p.grad for p in model.parameters())])
        model.zero_grad()
        assert not any(p.grad for p in model.parameters())
    assert outputs[0] == outputs[1]


def test_the_engine_against_torch():
    def program(x, y):
        return (2 * x * y - 0.3).tanh() * (1 + x) - y * y

    x, y = chapter_02.Num(0.7), chapter_02.Num(-1.1)
    result = program(x, y)
    result.backward()
    expected = torch_gradients(program, 0.7, -1.1)
    assert [x.grad, y.grad] == pytest.approx(expected)
    result.backward()
    assert [x.grad, y.grad] == pytest.approx([2 * slope for slope in expected])


# -- What notebook 03 says of more than one seed -----------------------------------------------------------------------


@functools.cache
def moons():
    points, labels = make_moons(n_samples=100, noise=0.1, random_state=1)
    return points[:50].tolist(), (2 * labels - 1)[:50].tolist()


def scores_after(steps, *, seed, width, learning_rate):
    points, labels = moons()
    random.seed(seed)
    model = chapter_03.MLP(2, [width, width, 1])
    for _ in range(steps):
        chapter_03.train_step(model, points, labels, learning_rate)
    return [model(point).data for point in points]


def share_right(scores):
    return sum((score > 0) == (label > 0) for score, label in zip(scores, moons()[1], strict=True)) / len(scores)


@pytest.mark.parametrize("seed", [0, 4, 7])
def test_far_above_a_good_rate_all_scores_become_equal(seed):
    assert len(set(scores_after(10, seed=seed, width=8, learning_rate=10**1.5))) == 1


def test_with_a_width_of_1_most_seeds_never_learn():
    dead = {seed for seed in range(8) if len(set(scores_after(0, seed=seed, width=1, learning_rate=0.5))) == 1}
    assert dead == {0, 2, 3, 4, 6}
    for seed in {1, 5, 7}:
        assert share_right(scores_after(40, seed=seed, width=1, learning_rate=0.5)) > 0.85
